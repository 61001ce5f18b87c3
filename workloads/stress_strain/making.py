"""Makes the data set's file: its chunks, then its header; the rest is ``made_once``'s."""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from workloads.made_once import MadeFile, pwrite
from workloads.stress_strain import store
from workloads.stress_strain.curves import make_curves

_MAX_WORKERS = 8  # beyond it the disk decides


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
    """Write all chunks, by threads (NumPy and zlib let go of the interpreter), then the header."""
    sums = np.zeros((2, spec.chunks), "<u4")

    def write_chunk(chunk: int) -> None:
        start, stop = spec.span(chunk)
        inputs, labels = (
            array.astype("<f4", copy=False).data.cast("B")
            for array in make_curves(spec.curves, start, stop)
        )
        sums[:, chunk] = zlib.crc32(inputs), zlib.crc32(labels)
        pwrite(fd, inputs, spec.inputs_offset + start * store.INPUT_BYTES)
        pwrite(fd, labels, spec.labels_offset + start * store.LABEL_BYTES)

    workers = min(len(os.sched_getaffinity(0)), _MAX_WORKERS, spec.chunks)
    pool = ThreadPoolExecutor(workers)
    try:
        for _ in pool.map(write_chunk, range(spec.chunks)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    table = sums.tobytes()
    text = json.dumps({**spec.header(), "table_crc32": zlib.crc32(table)}, sort_keys=True).encode()
    lengths = np.array([len(text), zlib.crc32(text)], "<u4").tobytes()
    pwrite(fd, table, store.PAGE)
    pwrite(fd, store.MAGIC + lengths + text, 0)
