"""ResNet v1.5 of depth 18, 34, 50, 101 and 152 on images.

``architecture`` names the layers and counts, ``weights`` makes random numbers by name,
``torch_model`` and ``tf_model`` build the same network, ``recipe`` is what trains it. The images
are synthetic (``patterns``, in a file: ``store``), in folders (``folder``), or ``digits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from workloads.api import (
    ArraySamples,
    Option,
    OptionValue,
    Parts,
    Samples,
    Variant,
    Workload,
    WorkloadError,
    WorkloadInfo,
)
from workloads.resnet import digits, folder, store
from workloads.resnet.architecture import DEPTHS, describe
from workloads.resnet.patterns import ImageSpec

_DEPTH, _CLASSES, _IMAGE_SIZE = 50, 1000, 224
_TEST_SHARE = 8  # one of so many synthetic images is for testing

#: Published counts at 1,000 classes, by depth.
_PARAMETERS = {
    18: 11_689_512,
    34: 21_797_672,
    50: 25_557_032,
    101: 44_549_160,
    152: 60_192_808,
}
_VARIANTS = tuple(
    Variant(
        f"resnet{depth}",
        {"depth": depth},
        parameters=_PARAMETERS[depth],
        flops_per_sample=describe(depth, _CLASSES).flops_per_sample(_IMAGE_SIZE),
    )
    for depth in DEPTHS
)

_INFO = WorkloadInfo(
    name="resnet",
    title="Images to classes (ResNet v1.5 of depth 18 to 152)",
    frameworks=("torch", "tensorflow"),
    parameters=_PARAMETERS[_DEPTH],
    target_metric="accuracy",
    lower_is_better=False,
    learning_rate=0.1,
    learning_rate_batch=256,
    flops_per_sample=describe(_DEPTH, _CLASSES).flops_per_sample(_IMAGE_SIZE),
    data="uint8 images of 3 x 224 x 224: 10,240 synthetic ones are 1.5 GB; or an image folder; or "
    "scikit-learn's 1,797 digits",
    variants=_VARIANTS,
    image_inputs=True,
    options={
        "depth": Option(_DEPTH, "layers of the network", choices=DEPTHS),
        "classes": Option(
            _CLASSES, "outputs; as many as the data has", minimum=2, maximum=1_000_000
        ),
        "image_size": Option(
            _IMAGE_SIZE, "height and width of the images, pixels", minimum=8, maximum=4096
        ),
        "data": Option(
            "synthetic",
            "synthetic: made from data_seed; folder: PATH/train/CLASS/*.jpg and PATH/val; "
            "digits: scikit-learn's (classes: 10)",
            choices=("synthetic", "folder", "digits"),
        ),
        "samples": Option(
            10_240,
            "synthetic images; the first 7/8 are for training, the rest for testing",
            minimum=8,
            maximum=1_000_000_000,
        ),
        "data_seed": Option(1, "seed of the synthetic images", minimum=0, maximum=2**63 - 1),
        "path": Option("", "the image folder, where data is folder"),
        "zero_gamma": Option(
            True, "begin each residual block as the identity (its last normalisation at 0)"
        ),
    },
)


class ResNet(Workload):
    """The network and its images at given options."""

    info = _INFO

    def __init__(self, options: Mapping[str, OptionValue], data_dir: Path) -> None:
        super().__init__(options, data_dir)
        self._check_together()
        self._size = int(self.options["image_size"])
        self._classes = int(self.options["classes"])

    def train_size(self) -> int:
        """Return the number of training images; the files are counted where data is folder."""
        if self._kind == "digits":
            return digits.TRAINING
        if self._kind == "folder":
            return len(self._folder_train)
        return self._spec.count - self._spec.count // _TEST_SHARE

    def prepare(self) -> None:
        """Make the synthetic images where there is no good file, many processes at once or not.

        Of other data, see that they are there: WorkloadError where they are not.
        """
        if self._kind == "synthetic":
            self._spec.file(self.data_dir).ensure()
            return
        if self._kind == "folder":
            folder.image_module()
        self.train()
        self.test()

    def data_files(self) -> tuple[Path, ...]:
        """Return the file of synthetic images; other images are not below ``data_dir``."""
        return (self._spec.path(self.data_dir),) if self._kind == "synthetic" else ()

    def train(self) -> Samples:
        """Return the training split: uint8 images (n, 3, size, size), int64 classes (n,)."""
        if self._kind == "digits":
            return digits.read_split(self._size, training=True)
        if self._kind == "folder":
            return self._folder_train
        return self._part(slice(0, self.train_size()))

    def test(self) -> Samples:
        """Return the test split, alike."""
        if self._kind == "digits":
            return digits.read_split(self._size, training=False)
        if self._kind == "folder":
            return folder.read_split(self._path, self._size, self._classes, training=False)
        return self._part(slice(self.train_size(), self._spec.count))

    def parts(self, framework: str, seed: int) -> Parts:
        """Build the network, equal on every rank and in both frameworks for one ``seed``."""
        architecture = describe(int(self.options["depth"]), self._classes)
        zero_gamma = bool(self.options["zero_gamma"])
        if framework == "torch":
            from workloads.resnet import torch_model

            return torch_model.build(architecture, self._size, seed, zero_gamma)
        if framework == "tensorflow":
            from workloads.resnet import tf_model

            return tf_model.build(architecture, self._size, seed, zero_gamma)
        raise WorkloadError(
            f"{self.info.name} has no {framework} model; it has: {', '.join(self.info.frameworks)}"
        )

    @property
    def _kind(self) -> str:
        return str(self.options["data"])

    @property
    def _path(self) -> Path:
        return Path(str(self.options["path"])).expanduser()

    @property
    def _spec(self) -> store.DataSpec:
        seed = int(self.options["data_seed"])
        images = ImageSpec(seed, self._classes, self._size)
        return store.DataSpec(int(self.options["samples"]), images)

    @cached_property
    def _folder_train(self) -> folder.FolderSamples:
        return folder.read_split(self._path, self._size, self._classes, training=True)

    @cached_property
    def _synthetic(self) -> ArraySamples:
        return store.open_data(self._spec, self.data_dir)

    def _part(self, part: slice) -> ArraySamples:
        whole = self._synthetic
        return ArraySamples(whole.inputs[part], whole.targets[part], whole.source)

    def _check_together(self) -> None:
        """Raise WorkloadError where one option has no meaning, or is missing, beside another."""
        kind, where = self._kind, f"workload {self.info.name}, data {self._kind}"
        if kind == "folder" and not self.options["path"]:
            raise WorkloadError(f"{where}: option path is missing: the folder with train/CLASS/")
        used = {"path": "folder", "samples": "synthetic", "data_seed": "synthetic"}
        for name, only in used.items():
            if kind != only and self.options[name] != self.info.options[name].default:
                raise WorkloadError(f"{where}: option {name} has no meaning; it is for data {only}")
        if kind == "digits" and self.options["classes"] != digits.CLASSES:
            raise WorkloadError(
                f"{where}: there are {digits.CLASSES} classes, not {self.options['classes']}; "
                f"set classes: {digits.CLASSES}"
            )
