"""The data set's file: its layout, its checks, and how ranks map it.

Layout, little-endian::

    0            the header and the table of checksums of ``workloads.headed``
    (4096 * k)   float32   inputs (n, 3, 200), C order
    behind it    float32   labels (n, 2), C order

Whenever a file is opened, its size, header, table and eight chunks (of ``CHUNK`` curves) spread
over the file are checked, which costs milliseconds; all chunks are checked on demand. The rest is
settled by how a file is made (``workloads.made_once``): it gets its name when it is whole.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from workloads import headed
from workloads.api import WorkloadError
from workloads.made_once import UnusableFile, reason
from workloads.stress_strain.curves import (
    CHANNELS,
    GENERATOR_VERSION,
    LABELS,
    POINTS,
    CurveSpec,
    Float,
)

MAGIC = b"hvdsscv\x01"
CHUNK = 2048  # curves a chunk: 4.9 MB, the unit of work and of checksums
_PROBES = 8  # chunks looked at when a file is opened
INPUT_BYTES = CHANNELS * POINTS * 4  # a curve
LABEL_BYTES = LABELS * 4


@dataclass(frozen=True)
class DataSpec:
    """Everything that decides the bytes of a data set."""

    count: int
    curves: CurveSpec

    def header(self) -> dict[str, object]:
        """Return what the file's header must say, less the checksum of its table."""
        return {
            "format": "hvdscale stress_strain",
            "generator": GENERATOR_VERSION,
            "count": self.count,
            "shape": [CHANNELS, POINTS],
            "labels": LABELS,
            "dtype": "<f4",
            "chunk": CHUNK,
            **asdict(self.curves),
        }

    def path(self, folder: Path) -> Path:
        """Return the file of this data set; unlike data sets have unlike names."""
        text = json.dumps(self.header(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return folder / f"stress_strain-{self.count}-{digest}.f32"

    @property
    def chunks(self) -> int:
        """The number of chunks, the last of which may be short."""
        return -(-self.count // CHUNK)

    @property
    def inputs_offset(self) -> int:
        """Where the inputs begin, in bytes."""
        return headed.table_end(self.chunks)

    @property
    def labels_offset(self) -> int:
        """Where the labels begin, in bytes."""
        return self.inputs_offset + self.count * INPUT_BYTES

    @property
    def file_bytes(self) -> int:
        """The exact size of the file."""
        return self.labels_offset + self.count * LABEL_BYTES

    def span(self, chunk: int) -> tuple[int, int]:
        """Return the first curve of a chunk and the one behind its last."""
        return chunk * CHUNK, min((chunk + 1) * CHUNK, self.count)

    def parts(self, chunk: int) -> tuple[headed.Piece, headed.Piece]:
        """Return (offset, bytes) of a chunk's inputs and of its labels."""
        start, stop = self.span(chunk)
        return (
            (self.inputs_offset + start * INPUT_BYTES, (stop - start) * INPUT_BYTES),
            (self.labels_offset + start * LABEL_BYTES, (stop - start) * LABEL_BYTES),
        )


@dataclass(frozen=True)
class DataSet:
    """A checked, read-only, memory-mapped data set."""

    inputs: Float  # (n, 3, 200)
    labels: Float  # (n, 2)


def open_data(spec: DataSpec, folder: Path, every_chunk: bool = False) -> DataSet:
    """Check the file and map it, read-only; raise WorkloadError where there is no good one."""
    path = spec.path(folder)
    try:
        with path.open("rb") as file:
            check(spec, file.fileno(), every_chunk)
            # The very file that was checked is mapped, even if its name has been given away since.
            inputs = np.memmap(
                file, "<f4", "r", spec.inputs_offset, (spec.count, CHANNELS, POINTS), "C"
            )
            labels = np.memmap(file, "<f4", "r", spec.labels_offset, (spec.count, LABELS), "C")
    except (OSError, UnusableFile) as error:
        raise WorkloadError(
            f"stress_strain data {path} cannot be used: {reason(error)}; prepare it first"
        ) from error
    return DataSet(np.asarray(inputs), np.asarray(labels))


def check(spec: DataSpec, fd: int, every_chunk: bool = False) -> None:
    """Raise UnusableFile unless the open file is the whole data set ``spec``."""
    probes = spec.chunks if every_chunk else _PROBES
    headed.check_chunks(fd, MAGIC, spec.header(), spec.file_bytes, spec.chunks, spec.parts, probes)
