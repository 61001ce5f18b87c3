"""Labelled images by index: image i of a data set depends on (seed, i, classes, size) alone.

A class is a pattern of 8x8 coloured cells, blown up to the image. An image is its class's pattern,
moved round the edges by a random offset and halved in contrast, plus noise of the same range: a
network has to find the pattern wherever it is. Bytes are made by integer arithmetic from Philox's
words (which NumPy promises for good), so images are equal bit for bit on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.resnet.architecture import CHANNELS

Bytes = NDArray[np.uint8]

#: Raised whenever the same (seed, i, classes, size) would give another image.
GENERATOR_VERSION = 1

_CELLS = 8  # a row and a column of a pattern
_CHOICE_WORDS = 4  # class, two offsets, one spare; a multiple of the words of a counter
_WORDS_PER_COUNTER = 4
_IMAGE_DOMAIN = 0x6876645F696D << 64  # "hvd_im": other uses of the same seed get other streams
_CLASS_DOMAIN = 0x6876645F636C << 64  # "hvd_cl"


@dataclass(frozen=True)
class ImageSpec:
    """What decides an image besides its index."""

    seed: int
    classes: int
    size: int  # height and width

    @property
    def image_bytes(self) -> int:
        """The size of one image."""
        return CHANNELS * self.size**2


def make_images(
    spec: ImageSpec, patterns: Bytes, start: int, stop: int
) -> tuple[Bytes, NDArray[np.int64]]:
    """Return images (n, 3, size, size) and classes (n,) of the images ``start`` to ``stop`` - 1.

    ``patterns`` is what ``class_patterns`` returns.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"images {start} to {stop} are no range")
    counters = -(-spec.image_bytes // (8 * _WORDS_PER_COUNTER)) + _CHOICE_WORDS // 4
    bits = np.random.Philox(key=_IMAGE_DOMAIN | spec.seed, counter=start * counters)
    images = np.empty((stop - start, CHANNELS, spec.size, spec.size), np.uint8)
    labels = np.empty(stop - start, np.int64)
    place = np.arange(spec.size)
    for index, image in enumerate(images):
        words = bits.random_raw(counters * _WORDS_PER_COUNTER)
        choices = (int(word) >> 32 for word in words[:3])
        label, down, right = (
            choice * limit >> 32
            for choice, limit in zip(choices, (spec.classes, spec.size, spec.size), strict=True)
        )
        noise = words[_CHOICE_WORDS:].astype("<u8", copy=False).view(np.uint8)
        rows, columns = (((place + o) % spec.size) * _CELLS // spec.size for o in (down, right))
        pattern = patterns[label][:, rows[:, np.newaxis], columns]  # 0..127, as is the noise
        np.add(pattern, noise[: spec.image_bytes].reshape(image.shape) >> np.uint8(1), out=image)
        labels[index] = label
    return images, labels


def class_patterns(spec: ImageSpec) -> Bytes:
    """Return the cells of each class, 0 to 127, (classes, 3, 8, 8)."""
    cells = CHANNELS * _CELLS**2  # 24 words a class
    words = np.random.Philox(key=_CLASS_DOMAIN | spec.seed).random_raw(spec.classes * cells // 8)
    values: Bytes = words.astype("<u8", copy=False).view(np.uint8) >> np.uint8(1)
    return values.reshape(spec.classes, CHANNELS, _CELLS, _CELLS)
