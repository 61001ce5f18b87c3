"""Makes a rank fail on purpose: on the PYTHONPATH of a test, Python imports this by itself.

``HVDSCALE_TEST_FAULTS`` says which fault a point has, by its batch size: ``75=kill,76=stop``. It
strikes rank 1 when its timed window would begin; a lack of memory before the first step, as it
would come by itself.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time

HEADROOM_BYTES = 8 << 20  # for what is small; a layer's output at a batch of 700 is 18 MB


def strike(fault: str) -> None:
    print(f"rank 1: now comes {fault}", flush=True)
    if fault == "memory":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + HEADROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
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
    """Put ourselves before a function of ``measure.window`` as soon as that module is there."""
    while True:
        module = sys.modules.get("harness.measure.window")
        if module is not None and hasattr(module, "run_window"):
            break
        time.sleep(0.005)
    for name, early in {"run_window": False, "warm_up": True}.items():
        setattr(module, name, before(getattr(module, name), faults, early))


def before(real: object, faults: dict[str, str], early: bool) -> object:
    """Return ``real`` with the fault of its batch before it, if that is an early one or not."""

    def struck(step: object, next_batch: object, *rest: object) -> object:
        place = sys.modules["harness.ranks"].find_place(os.environ)
        fault = faults.get(str(next_batch()[0].shape[0]))  # type: ignore[operator]
        if place.rank == 1 and fault is not None and (fault == "memory") == early:
            strike(fault)
        return real(step, next_batch, *rest)  # type: ignore[operator]

    return struck


_faults = dict(
    part.split("=") for part in os.environ.get("HVDSCALE_TEST_FAULTS", "").split(",") if part
)
if _faults and "--run" in sys.orig_argv:
    threading.Thread(target=patch, args=(_faults,), daemon=True).start()
