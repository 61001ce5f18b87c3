"""The layers of ResNet v1.5 by torchvision's names: one description that every framework builds.

He et al. 2015, "Deep Residual Learning for Image Recognition", table 1, with the bottleneck's
stride in its 3x3 convolution (v1.5; the paper has it in the first 1x1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads.resnet.weights import Float, normals

STEM_CHANNELS = 64
STEM_KERNEL = 7
CHANNELS = 3  # of an image
_STAGE_CHANNELS = (64, 128, 256, 512)
_EXPANSION = 4  # of a bottleneck: its output channels over its inner ones
_BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
DEPTHS = (*_BASIC, *_BOTTLENECK)
_FC_STD = 0.01


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias, followed by a batch normalisation; padded to kernel // 2."""

    name: str  # of the convolution
    norm: str  # of the normalisation
    inputs: int
    outputs: int
    kernel: int
    stride: int

    def out_size(self, size: int) -> int:
        """Return the height and width of the output for an input of ``size``."""
        return (size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    def flops(self, size: int) -> int:
        """Return the operations of one image of ``size``, forward; a multiply-add is two."""
        return 2 * self.out_size(size) ** 2 * self.outputs * self.inputs * self.kernel**2


@dataclass(frozen=True)
class Block:
    """A residual block: ``relu(branch(x) + shortcut(x))``, no ReLU behind the branch's last norm.

    ``shortcut`` is None where it is the identity.
    """

    name: str
    branch: tuple[Convolution, ...]
    shortcut: Convolution | None


@dataclass(frozen=True)
class Architecture:
    """A ResNet of one depth: stem, 3x3 max pooling of stride 2, blocks, mean, dense layer."""

    depth: int
    classes: int
    stem: Convolution
    blocks: tuple[Block, ...]
    features: int  # inputs of the dense layer

    def convolutions(self) -> Iterator[Convolution]:
        """Yield all convolutions in the order of torchvision's ``state_dict``."""
        yield self.stem
        for block in self.blocks:
            yield from block.branch
            if block.shortcut is not None:
                yield block.shortcut

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by torchvision's names, counters of batches left out.

        Convolutions are (outputs, inputs, kernel, kernel), the dense layer (classes, features).
        """
        found: dict[str, tuple[int, ...]] = {}
        for conv in self.convolutions():
            found[f"{conv.name}.weight"] = (conv.outputs, conv.inputs, conv.kernel, conv.kernel)
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"{conv.norm}.{part}"] = (conv.outputs,)
        found["fc.weight"] = (self.classes, self.features)
        found["fc.bias"] = (self.classes,)
        return found

    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        shapes = self.shapes().items()
        return sum(math.prod(shape) for name, shape in shapes if ".running_" not in name)

    def flops_per_sample(self, image_size: int) -> float:
        """Return the floating-point operations of one training step, an image.

        Convention: a multiply-add is two; convolutions and the dense layer alone are counted, not
        normalisation, activations, pooling, loss and optimiser. Backward takes each product twice
        more, for the gradients of weights and of inputs; the images need none.
        """
        first, size = self.stem.flops(image_size), pooled(self.stem.out_size(image_size))
        rest = 2 * self.features * self.classes
        for block in self.blocks:
            inner = size
            for conv in block.branch:
                rest += conv.flops(inner)
                inner = conv.out_size(inner)
            if block.shortcut is not None:
                rest += block.shortcut.flops(size)
            size = inner
        return float(2 * first + 3 * rest)


def describe(depth: int, classes: int) -> Architecture:
    """Return the layers of ``depth``, one of ``DEPTHS``."""
    bottleneck = depth in _BOTTLENECK
    counts = (_BOTTLENECK if bottleneck else _BASIC)[depth]
    channels = STEM_CHANNELS
    blocks: list[Block] = []
    for stage, (width, count) in enumerate(zip(_STAGE_CHANNELS, counts, strict=True), start=1):
        for index in range(count):
            stride = 2 if stage > 1 and index == 0 else 1
            block = _block(f"layer{stage}.{index}", channels, width, stride, bottleneck)
            channels = block.branch[-1].outputs
            blocks.append(block)
    stem = Convolution("conv1", "bn1", CHANNELS, STEM_CHANNELS, STEM_KERNEL, 2)
    return Architecture(depth, classes, stem, tuple(blocks), channels)


def _block(name: str, inputs: int, width: int, stride: int, bottleneck: bool) -> Block:
    outputs = width * _EXPANSION if bottleneck else width
    plan = (
        [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if bottleneck
        else [(inputs, width, 3, stride), (width, width, 3, 1)]
    )
    branch = tuple(
        Convolution(f"{name}.conv{i}", f"{name}.bn{i}", *sizes) for i, sizes in enumerate(plan, 1)
    )
    if stride == 1 and inputs == outputs:
        return Block(name, branch, None)
    shortcut = (f"{name}.downsample.0", f"{name}.downsample.1", inputs, outputs, 1, stride)
    return Block(name, branch, Convolution(*shortcut))


def pooled(size: int) -> int:
    """Return the height and width behind the max pooling: 3x3, stride 2, padded by 1."""
    return (size - 1) // 2 + 1


def initial_weights(architecture: Architecture, seed: int, zero_gamma: bool) -> dict[str, Float]:
    """Return the weights to begin with, by torchvision's names; a function of ``seed``.

    Convolutions are normal with variance 2 / fan-out (He et al. 2015); the dense layer is normal
    with a standard deviation of 0.01, its bias 0 (Goyal et al. 2017, section 5.1). With
    ``zero_gamma`` the last normalisation of each residual branch begins at 0, so that each block
    begins as the identity (there, too); all others begin at 1.
    """
    zeroed = {f"{block.branch[-1].norm}.weight" for block in architecture.blocks if zero_gamma}
    state: dict[str, Float] = {}
    for name, shape in architecture.shapes().items():
        if len(shape) == 4:
            std = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
            state[name] = normals(name, shape, seed) * np.float32(std)
        elif name == "fc.weight":
            state[name] = normals(name, shape, seed) * np.float32(_FC_STD)
        else:
            one = name.endswith(("weight", "running_var")) and name not in zeroed
            state[name] = np.full(shape, 1 if one else 0, np.float32)
    return state
