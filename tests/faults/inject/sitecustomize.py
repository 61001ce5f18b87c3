"""Makes a rank fail on purpose: on the PYTHONPATH of a test, Python imports this by itself.

``HVDSCALE_TEST_FAULTS`` says which fault a point has, by its batch size: ``75=kill,76=stop``. It
strikes rank 1, and ``forward`` all ranks: most when its timed window would begin, a lack of memory
before the first step, as it would come by itself, and what is about starting when Python starts.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HEADROOM_BYTES = 8 << 20  # for what is small; a layer's output at a batch of 700 is 18 MB
AT_START = {"absent", "late", "versions"}
OF_THE_MODEL = {"forward", "nan", "shape"}
#: How late a rank is that is late.
LATE_S = float(os.environ.get("HVDSCALE_TEST_LATE_S", "4"))

inside_window = False


def strike(fault: str) -> None:
    """Do what is to be done in the middle of a rank's work."""
    tell(fault)
    if fault == "memory":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + HEADROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segv":
        ctypes.string_at(0)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "hang":  # its threads go on
        time.sleep(3600)
    if fault == "balloon":
        kept = []
        while True:
            kept.append(b"x" * (64 << 20))
    if fault == "raise":
        raise ValueError("a fault on purpose")
    if fault == "garbage":
        for descriptor in (1, 2):
            os.write(descriptor, bytes(range(256)) * 8 + b"\n\x1b[31mred\x07\n")
        os._exit(7)
    if fault == "leave":
        os._exit(0)


def start_badly(fault: str) -> None:
    """Do what is to be done before a rank is anything."""
    if fault == "absent":
        time.sleep(3600)
    if fault == "late":
        time.sleep(LATE_S)
    if fault == "versions":
        folder = Path(tempfile.mkdtemp(dir=os.environ["HVDSCALE_TEST_FOLDER"]))
        info = folder / "numpy-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
        sys.path.insert(0, str(folder))


def changed(parts: Any, fault: str, rank: int) -> Any:
    """Return a workload's parts with a model that has ``fault``."""
    import torch

    model = parts.model
    if fault == "forward":
        model.register_forward_pre_hook(raise_in_window)
        tell(fault)
    if rank == 1 and fault == "nan":
        first = next(model.parameters())
        first.register_hook(lambda gradient: gradient * float("nan") if inside_window else None)
        tell(fault)
    if rank == 1 and fault == "shape":
        layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
        last = layers[-1]
        last.weight = torch.nn.Parameter(torch.zeros(last.out_features + 1, last.in_features))
        tell(fault)
    return replace(parts, model=model)


def raise_in_window(*_: object) -> None:
    if inside_window:
        raise ValueError("a fault in forward on purpose")


def tell(fault: str) -> None:
    print(f"rank {RANK}: now comes {fault}", flush=True)


def patch(bench: ModuleType, fault: str) -> None:
    """Put ourselves before what ``harness.bench`` calls."""
    if fault in OF_THE_MODEL:
        create = bench.registry.create

        def create_changed(*arguments: object) -> object:
            workload = create(*arguments)
            parts = workload.parts
            workload.parts = lambda *given: changed(parts(*given), fault, RANK)
            return workload

        bench.registry.create = create_changed
    name = "warm_up" if fault == "memory" else "run_window"
    setattr(bench.window, name, before(getattr(bench.window, name), fault))


def before(real: Callable[..., object], fault: str) -> Callable[..., object]:
    """Return ``real`` with ``fault`` before it."""

    def struck(*arguments: object) -> object:
        global inside_window
        inside_window = True
        if RANK == 1 and fault not in AT_START | OF_THE_MODEL:
            strike(fault)
        return real(*arguments)

    return struck


class AfterImport:
    """Calls ``then`` with a module as soon as it is there; a finder for ``sys.meta_path``."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def own_rank() -> int:
    """Return this process's rank; -1 where it is none, as a launcher."""
    from harness.ranks import find_place

    place = find_place(os.environ)
    return place.rank if place is not None else -1


def own_fault() -> str | None:
    """Return the fault of this launch, by its batch size."""
    known = os.environ.get("HVDSCALE_TEST_FAULTS", "")
    if not known or "--run" not in sys.orig_argv:
        return None
    run_file = sys.orig_argv[sys.orig_argv.index("--run") + 1]
    batch = json.loads(Path(run_file).read_text())["config"]["batch_size"]
    return dict(part.split("=") for part in known.split(",")).get(str(batch))


FAULT = own_fault()
RANK = -1 if FAULT is None else own_rank()
if FAULT is not None and RANK >= 0:
    if RANK == 1 and FAULT in AT_START:
        start_badly(FAULT)
    fault = FAULT
    sys.meta_path.insert(0, AfterImport("harness.bench", lambda bench: patch(bench, fault)))
