"""Makes the data set's file: its chunks, then its header; the rest is ``made_once``'s."""

from __future__ import annotations

from pathlib import Path

from workloads import headed
from workloads.made_once import MadeFile
from workloads.stress_strain import store
from workloads.stress_strain.curves import Float, make_curves


def ensure(spec: store.DataSpec, folder: Path) -> Path:
    """Make the data set where there is no good file of it; return its path.

    Safe when many processes call it at once. A file that is partial, damaged or foreign is
    replaced, with a warning. Raises WorkloadError where the folder cannot be written or is full.
    """
    path = spec.path(folder)
    MadeFile(
        path,
        spec.file_bytes,
        write=lambda fd: _write_all(spec, fd),
        check=lambda fd: store.check(spec, fd),
        what="stress_strain data",
        fewer="set fewer samples",
    ).ensure()
    return path


def _write_all(spec: store.DataSpec, fd: int) -> None:
    def make(chunk: int) -> tuple[Float, Float]:
        inputs, labels = make_curves(spec.curves, *spec.span(chunk))
        return inputs.astype("<f4", copy=False), labels.astype("<f4", copy=False)

    headed.write_chunks(fd, store.MAGIC, spec.header(), spec.chunks, spec.parts, make)
