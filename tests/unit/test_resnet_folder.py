"""Image folders: classes, decoding, and what is said where something is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.requirements import require_modules
from workloads.api import WorkloadError
from workloads.resnet import ResNet, folder

require_modules("PIL")
from PIL import Image  # noqa: E402

COLOURS = {"apple": (200, 30, 20), "kiwi": (40, 180, 60), "plum": (60, 20, 140)}


def write(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a folder of three classes with two and one images each."""
    root = tmp_path / "images"
    for name, colour in COLOURS.items():
        write(root / "train" / name / "1.png", colour)
        write(root / "train" / name / "2.JPG", colour)
        write(root / "val" / name / "9.jpeg", colour)
    (root / "train" / "apple" / "notes.txt").write_text("no image")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "README").write_text("no class")
    return root


def workload(root: Path, **options: int) -> ResNet:
    chosen = {"data": "folder", "path": str(root), "classes": 3, "image_size": 16, **options}
    return ResNet(chosen, root.parent / "data")


def test_classes_are_the_sorted_folders_of_train(root: Path) -> None:
    made = workload(root)
    made.prepare()
    train, test = made.train(), made.test()
    assert made.train_size() == len(train) == 6
    assert len(test) == 3
    assert train.arrays() is None
    names = [path.relative_to(root).as_posix() for path in train.files()]
    assert names == [f"train/{name}/{file}" for name in COLOURS for file in ("1.png", "2.JPG")]
    inputs, targets = train.gather(np.array([5, 0, 0, 2]))
    assert targets.tolist() == [2, 0, 0, 1]
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((4, 3, 16, 16), np.uint8, np.int64)
    assert inputs.flags.c_contiguous
    expected = np.array([COLOURS["plum"], COLOURS["apple"], COLOURS["apple"], COLOURS["kiwi"]])
    assert np.abs(inputs.astype(int) - expected[:, :, np.newaxis, np.newaxis]).max() <= 3
    assert test.gather(np.arange(3))[1].tolist() == [0, 1, 2]
    assert train.gather(np.array([], np.int64))[0].shape == (0, 3, 16, 16)
    assert not (root.parent / "data").exists()


def test_a_folder_named_test_is_taken_where_val_is_missing(root: Path) -> None:
    (root / "val").rename(root / "test")
    (names,) = {path.parent.parent.name for path in workload(root).test().files()}
    assert names == "test"


def test_an_index_outside_is_refused(root: Path) -> None:
    for outside in (6, -1):
        with pytest.raises(IndexError, match="of 6 images"):
            workload(root).train().gather(np.array([0, outside]))


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("turned", [False, True])
def test_the_centre_is_cut_and_scaled(suffix: str, turned: bool, tmp_path: Path) -> None:
    """A wide image is black but for a white square as large as the cut: it fills the result."""
    pixels = np.zeros((512, 1024, 3), np.uint8)
    pixels[32:480, 288:736] = 255  # 448 = 512 * 224 / 256
    image = Image.fromarray(pixels.transpose(1, 0, 2) if turned else pixels)
    path = tmp_path / f"wide{suffix}"
    image.save(path)
    found = folder.decode(str(path), 64)
    assert found.shape == (3, 64, 64)
    assert found[:, 1:-1, 1:-1].min() > 240
    pixels[32:480, 288:736] = (np.arange(448) // 2)[:, np.newaxis, np.newaxis]
    Image.fromarray(pixels).save(path)
    rows = folder.decode(str(path), 64)[0, 2:-2, 32].astype(float)
    assert np.diff(rows) == pytest.approx(np.full(59, 3.5), abs=2)  # 7 source rows a row


def test_every_mode_becomes_rgb(tmp_path: Path) -> None:
    for mode, colour in (("L", 90), ("RGBA", (10, 90, 30, 255)), ("P", 3), ("1", 1), ("CMYK", 7)):
        path = tmp_path / f"{mode}.{'tiff' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (20, 20), colour).save(path)
        expected = Image.new(mode, (1, 1), colour).convert("RGB").getpixel((0, 0))
        assert folder.decode(str(path), 16)[:, 8, 8].tolist() == list(expected)


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_grey_of_16_bits_is_scaled_and_not_clipped(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"grey{suffix}"
    rows = np.linspace(0, 65535, 64).astype(np.uint16)
    Image.fromarray(np.repeat(rows[:, np.newaxis], 64, axis=1)).save(path)
    found = folder.decode(str(path), 56)[0, :, 28].astype(float)
    assert found[0] < 20
    assert found[-1] > 235
    assert np.diff(found) == pytest.approx(np.full(55, 255 / 63), abs=2)


def test_pixels_of_32_bits_have_no_range(tmp_path: Path) -> None:
    path = tmp_path / "depth.tiff"
    Image.fromarray(np.ones((20, 20), np.float32)).save(path)
    with pytest.raises(WorkloadError, match=r"depth.tiff has 32 bits a pixel \(mode F\)"):
        folder.decode(str(path), 16)


def test_an_image_smaller_than_asked_is_enlarged(tmp_path: Path) -> None:
    path = write(tmp_path / "dot.png", (9, 99, 199), size=(1, 3))
    found = folder.decode(str(path), 32)
    assert np.array_equal(
        found, np.broadcast_to(np.array([9, 99, 199])[:, None, None], (3, 32, 32))
    )


@pytest.mark.parametrize("damage", ["text", "empty", "half jpeg", "half png", "png header", "gone"])
def test_an_unreadable_image_is_named(damage: str, root: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = root / "train" / "kiwi" / ("2.JPG" if damage == "half jpeg" else "1.png")
    Image.fromarray(random).save(path)
    whole = path.read_bytes()
    content = {
        "text": b"this is no image",
        "empty": b"",
        "png header": whole[:12] + b"XXXX" + whole[16:],
    }
    path.write_bytes(content.get(damage, whole[: len(whole) // 2]))
    made = workload(root)
    train = made.train()
    if damage == "gone":
        path.unlink()
    with pytest.raises(WorkloadError) as caught:
        train.gather(np.array([2, 3]))
    text = str(caught.value)
    assert text.startswith(f"image {path} cannot be read: ")
    assert text.endswith("; replace or remove it")
    assert text.count(str(path)) == 1
    assert "\n" not in text


def test_a_bomb_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # more than twice that is an error
    with pytest.raises(WorkloadError, match=r"1\.png cannot be read: .*decompression bomb"):
        workload(root).train().gather(np.array([0]))


def test_what_is_wrong_with_the_folder_is_one_line(root: Path) -> None:
    def refused(message: str, path: Path = root, **options: int) -> None:
        for call in (ResNet.train_size, ResNet.prepare):
            with pytest.raises(WorkloadError, match=message) as caught:
                call(workload(path, **options))
            assert "\n" not in str(caught.value)

    refused(
        "nowhere/train cannot be read: No such file or directory; .* train/CLASS/", root / "nowhere"
    )
    refused(r"train has 3 classes \(folders\), but .* is 1000; set classes: 3", classes=1000)
    (root / "train" / "empty").mkdir()
    refused("train/empty has no images in it", classes=4)
    (root / "train" / "empty").rmdir()
    write(root / "val" / "quince" / "1.png", (0, 0, 0))
    with pytest.raises(WorkloadError, match=r"val/quince: .*train has no class of that name"):
        workload(root).prepare()
    (root / "val").rename(root / "validation")
    with pytest.raises(WorkloadError, match="images has no folder val or test"):
        workload(root).prepare()
    (root / "other" / "train").mkdir(parents=True)
    refused("has no folders of classes", root / "other")


def test_without_pillow_it_is_said_what_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(WorkloadError, match=r"needs Pillow.*: pip install pillow"):
        workload(root).prepare()
