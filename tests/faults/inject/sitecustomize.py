"""Makes a rank fail on purpose: on the PYTHONPATH of a test, Python imports this by itself.

``HVDSCALE_TEST_FAULTS`` says which fault a point has, by its batch size: ``75=kill,76=stop``. It
strikes rank 1 when its timed window would begin.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def strike(fault: str) -> None:
    print(f"rank 1: now comes {fault}", flush=True)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "raise":
        raise ValueError("a fault on purpose")
    if fault == "garbage":
        for descriptor in (1, 2):
            os.write(descriptor, bytes(range(256)) * 8 + b"\n\x1b[31mred\x07\n")
        os._exit(7)
    if fault == "leave":
        os._exit(0)


def patch(faults: dict[str, str]) -> None:
    """Put ourselves before ``run_window`` as soon as that module is there."""
    while True:
        module = sys.modules.get("harness.measure.window")
        if module is not None and hasattr(module, "run_window"):
            break
        time.sleep(0.005)
    real = module.run_window

    def run_window(step: object, next_batch: object, engine: object, steps: int) -> object:
        place = sys.modules["harness.ranks"].find_place(os.environ)
        size = next_batch()[0].shape[0]  # type: ignore[operator]
        if place.rank == 1 and str(size) in faults:
            strike(faults[str(size)])
        return real(step, next_batch, engine, steps)

    module.run_window = run_window


_faults = dict(
    part.split("=") for part in os.environ.get("HVDSCALE_TEST_FAULTS", "").split(",") if part
)
if _faults and "--run" in sys.orig_argv:
    threading.Thread(target=patch, args=(_faults,), daemon=True).start()
