"""The file of synthetic images: all bytes are decided by a ``DataSpec``, and checked by checksums.

Layout, little-endian::

    0            the header and the table of checksums of ``workloads.headed``
    (4096 * k)   uint8     images (n, 3, size, size), C order
    behind it    int64     labels (n,), at a multiple of 8

Whenever a file is opened, its size, header, table and four chunks (of some MB) spread over the file
are checked; the rest is settled by how a file is made (``workloads.made_once``): it gets its name
when it is whole.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads import headed
from workloads.api import ArraySamples, WorkloadError
from workloads.made_once import MadeFile, UnusableFile, reason
from workloads.resnet.architecture import CHANNELS
from workloads.resnet.patterns import GENERATOR_VERSION, ImageSpec, class_patterns, make_images

MAGIC = b"hvdimgs\x01"
_LABEL_BYTES = 8
_CHUNK_BYTES = 4 << 20  # about: the unit of work and of checksums
_PROBES = 4  # chunks looked at when a file is opened


@dataclass(frozen=True)
class DataSpec:
    """Everything that decides the bytes of a data set."""

    count: int
    images: ImageSpec

    def header(self) -> dict[str, object]:
        """Return what the file's header must say, less the checksum of its table."""
        return {
            "format": "hvdscale images",
            "generator": GENERATOR_VERSION,
            "count": self.count,
            "chunk": self.chunk,
            **asdict(self.images),
        }

    def path(self, folder: Path) -> Path:
        """Return the file of this data set; unlike data sets have unlike names."""
        text = json.dumps(self.header(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return folder / f"images-{self.images.size}-{self.count}-{digest}.u8"

    @property
    def chunk(self) -> int:
        """The images of a chunk."""
        return max(1, _CHUNK_BYTES // self.images.image_bytes)

    @property
    def chunks(self) -> int:
        """The number of chunks, the last of which may be short."""
        return -(-self.count // self.chunk)

    @property
    def images_offset(self) -> int:
        """Where the images begin, in bytes."""
        return headed.table_end(self.chunks)

    @property
    def labels_offset(self) -> int:
        """Where the labels begin, in bytes."""
        end = self.images_offset + self.count * self.images.image_bytes
        return -(-end // _LABEL_BYTES) * _LABEL_BYTES

    @property
    def file_bytes(self) -> int:
        """The exact size of the file."""
        return self.labels_offset + self.count * _LABEL_BYTES

    def parts(self, chunk: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (offset, bytes) of a chunk's images and of its labels."""
        start, stop = self.span(chunk)
        size = self.images.image_bytes
        return (
            (self.images_offset + start * size, (stop - start) * size),
            (self.labels_offset + start * _LABEL_BYTES, (stop - start) * _LABEL_BYTES),
        )

    def span(self, chunk: int) -> tuple[int, int]:
        """Return the first image of a chunk and the one behind its last."""
        return chunk * self.chunk, min((chunk + 1) * self.chunk, self.count)

    def file(self, folder: Path) -> MadeFile:
        """Return the file of this data set, to be made where it is not there."""
        return MadeFile(
            self.path(folder),
            self.file_bytes,
            write=lambda fd: _write(self, fd),
            check=lambda fd: check(self, fd),
            what="resnet data",
            fewer="set fewer samples or a smaller image_size",
        )


def open_data(spec: DataSpec, folder: Path, every_chunk: bool = False) -> ArraySamples:
    """Check the file and map it, read-only; raise WorkloadError where there is no good one."""
    path = spec.path(folder)
    size = spec.images.size
    try:
        with path.open("rb") as file:
            check(spec, file.fileno(), every_chunk)
            # The very file that was checked is mapped, even if its name has been given away since.
            shape = (spec.count, CHANNELS, size, size)
            images = np.memmap(file, np.uint8, "r", spec.images_offset, shape, "C")
            labels = np.memmap(file, "<i8", "r", spec.labels_offset, (spec.count,), "C")
    except (OSError, UnusableFile) as error:
        raise WorkloadError(
            f"resnet data {path} cannot be used: {reason(error)}; prepare it first"
        ) from error
    return ArraySamples(np.asarray(images), np.asarray(labels), path)


def check(spec: DataSpec, fd: int, every_chunk: bool = False) -> None:
    """Raise UnusableFile unless the open file is the whole data set ``spec``."""
    probes = spec.chunks if every_chunk else _PROBES
    headed.check_chunks(fd, MAGIC, spec.header(), spec.file_bytes, spec.chunks, spec.parts, probes)


def _write(spec: DataSpec, fd: int) -> None:
    patterns = class_patterns(spec.images)

    def make(chunk: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images, labels = make_images(spec.images, patterns, *spec.span(chunk))
        return images, labels.astype("<i8", copy=False)

    headed.write_chunks(fd, MAGIC, spec.header(), spec.chunks, spec.parts, make)
