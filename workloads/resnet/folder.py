"""Images in folders by class: ``PATH/train/CLASS/*.jpg`` and ``PATH/val`` (or ``PATH/test``) alike.

The classes are the folders of ``train``, sorted by name. An image is decoded when it is asked for:
the square at its centre whose side is 224/256 of the shorter side, scaled to ``image_size``, as
ImageNet networks are usually evaluated. In training, too: the same bytes in every epoch, without
random crops or flips. A rotation noted in a file is not applied.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.api import Batch, WorkloadError
from workloads.made_once import reason
from workloads.resnet.architecture import CHANNELS

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")
TEST_SPLITS = ("val", "test")
_MARGIN = 256 / 224  # of the shorter side over the cut

#: What Pillow's decoders raise on a damaged file, besides its DecompressionBombError.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error)


@dataclass(frozen=True)
class FolderSamples:
    """One split: files and their classes; uint8 images (n, 3, size, size), int64 classes (n,)."""

    names: tuple[str, ...] = field(repr=False)  # as strings: there may be millions
    targets: NDArray[np.int64]
    size: int

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the images at ``indices``, decoded, and their classes.

        Raises IndexError for an index outside 0..n-1, and WorkloadError, with the file's name, for
        one that is no image.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"indices {indices.min()}..{indices.max()} of {len(self)} images")
        images = np.empty((len(indices), CHANNELS, self.size, self.size), np.uint8)
        for image, index in zip(images, indices.tolist(), strict=True):
            image[:] = decode(self.names[index], self.size)
        return images, self.targets[indices]

    def arrays(self) -> None:
        """Return None: the images are in files of their own."""
        return

    def files(self) -> tuple[Path, ...]:
        """Return the image files."""
        return tuple(map(Path, self.names))


def read_split(path: Path, size: int, classes: int, training: bool) -> FolderSamples:
    """List the images of a split.

    Raises WorkloadError where a folder is missing or empty, where the number of classes is not
    ``classes``, or where the test split has a class that the training split has not.
    """
    train = _classes(path / "train")
    if len(train) != classes:
        raise WorkloadError(
            f"{path / 'train'} has {len(train)} classes (folders), but the option classes is "
            f"{classes}; set classes: {len(train)}"
        )
    found = train if training else _classes(_test_folder(path))
    labels = {name: label for label, name in enumerate(train)}
    names: list[str] = []
    targets: list[int] = []
    for name, folder in found.items():
        if name not in labels:
            raise WorkloadError(
                f"{folder}: {path / 'train'} has no class of that name; add it there or remove it"
            )
        files = _images(folder)
        names += files
        targets += [labels[name]] * len(files)
    return FolderSamples(tuple(names), np.array(targets, np.int64), size)


def decode(name: str, size: int) -> NDArray[np.uint8]:
    """Return the image of a file, scaled and cut, (3, size, size); RGB whatever the file has."""
    pillow = image_module()
    try:
        with pillow.open(name) as opened:
            short = round(size * _MARGIN)
            # A JPEG is decoded at 1/2, 1/4 or 1/8 where that is still large enough: far faster.
            opened.draft("RGB", (short, short))
            image = _eight_bits(opened).convert("RGB")
    except (*_DAMAGE, pillow.DecompressionBombError) as error:
        raise WorkloadError(
            f"image {name} cannot be read: {_in_words(error, name)}; replace or remove it"
        ) from error
    half = min(image.size) / _MARGIN / 2  # of the side of the cut, in pixels of the source
    middle = [side / 2 for side in image.size]
    box = (middle[0] - half, middle[1] - half, middle[0] + half, middle[1] + half)
    cut = image.resize((size, size), pillow.Resampling.BILINEAR, box=box)
    return np.ascontiguousarray(np.asarray(cut).transpose(2, 0, 1))


def _eight_bits(opened: Any) -> Any:
    """Return a picture of 16-bit grey scaled to 8 bits: Pillow's own conversion clips it to white.

    WorkloadError for one of 32 bits, whose range nobody knows.
    """
    if opened.mode.startswith("I;16"):
        grey = np.asarray(opened).astype(np.uint16) >> 8
        return image_module().fromarray(grey.astype(np.uint8))
    if opened.mode in ("I", "F"):
        raise WorkloadError(
            f"image {opened.filename} has 32 bits a pixel (mode {opened.mode}), and no range that "
            "is known; convert it to 8 bits"
        )
    return opened


def image_module() -> Any:
    """Return Pillow's ``Image``; WorkloadError where Pillow is missing."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise WorkloadError(
            "an image folder needs Pillow, which is not installed: pip install pillow"
        ) from error


def _in_words(error: BaseException, name: str) -> str:
    """Return the cause of a decoder's error, one line, without the file's name once more."""
    text = reason(error) if isinstance(error, Exception) else str(error)
    if "cannot identify image file" in text:
        return "it is no image of a known format"
    return " ".join(text.replace(repr(name), "it").split()) or type(error).__name__


def _classes(split: Path) -> Mapping[str, Path]:
    """Return the class folders of a split by name, sorted."""
    try:
        with os.scandir(split) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise WorkloadError(
            f"image folder {split} cannot be read: {reason(error)}; option path must be a folder "
            "with train/CLASS/ and val/CLASS/ in it"
        ) from error
    if not names:
        raise WorkloadError(f"image folder {split} has no folders of classes in it")
    return {name: split / name for name in names}


def _images(folder: Path) -> list[str]:
    """Return the image files of a class, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(e.path for e in entries if e.name.lower().endswith(SUFFIXES))
    except OSError as error:
        raise WorkloadError(f"image folder {folder} cannot be read: {reason(error)}") from error
    if not found:
        raise WorkloadError(
            f"image folder {folder} has no images in it (known endings: {', '.join(SUFFIXES)})"
        )
    return found


def _test_folder(path: Path) -> Path:
    for name in TEST_SPLITS:
        if (path / name).is_dir():
            return path / name
    raise WorkloadError(f"{path} has no folder val or test; one of them must hold the test images")
