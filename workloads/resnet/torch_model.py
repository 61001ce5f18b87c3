"""ResNet v1.5 in PyTorch; its ``state_dict`` has torchvision's names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from workloads.api import Parts, Samples
from workloads.resnet.architecture import Architecture, Block, Convolution, initial_weights
from workloads.resnet.recipe import (
    EPSILON,
    EVALUATION_BATCH,
    MOMENTUM,
    NORM_MOMENTUM,
    TOP,
    WEIGHT_DECAY,
    scale_and_shift,
)
from workloads.resnet.weights import Float
from workloads.torch_parts import batches, evaluating, make_parts


class ResidualBlock(nn.Module):
    """``relu(branch(x) + shortcut(x))``, with the children conv1, bn1, conv2, bn2 ..."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        for index, conv in enumerate(block.branch, start=1):
            self.add_module(f"conv{index}", _conv(conv))
            self.add_module(f"bn{index}", _norm(conv))
        self._names = [(f"conv{i}", f"bn{i}") for i in range(1, len(block.branch) + 1)]
        self.downsample = (
            nn.Sequential(_conv(block.shortcut), _norm(block.shortcut)) if block.shortcut else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, outputs, h, w), with h and w over the stride."""
        branch = x
        for index, (conv, norm) in enumerate(self._names):
            if index:
                branch = functional.relu(branch, inplace=True)
            branch = getattr(self, norm)(getattr(self, conv)(branch))
        shortcut = x if self.downsample is None else self.downsample(x)
        return functional.relu(branch + shortcut, inplace=True)


class ResNet(nn.Module):
    """Images (n, 3, h, w) to logits (n, classes).

    uint8 images, 0 to 255, are normalised here with ImageNet's mean and standard deviation; images
    of a floating-point type are used as they are.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(architecture.stem), _norm(architecture.stem)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(
                *(
                    ResidualBlock(b)
                    for b in architecture.blocks
                    if b.name.startswith(f"layer{stage}.")
                )
            )
            for stage in range(1, 5)
        )
        self.fc = nn.Linear(architecture.features, architecture.classes)
        for name, values in zip(("scale", "shift"), scale_and_shift(), strict=True):
            # Not persistent: a constant, and torchvision's state has none of it.
            buffer = torch.from_numpy(values).reshape(1, -1, 1, 1)
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (n, classes)."""
        if images.dtype == torch.uint8:
            images = images.to(self.scale.dtype) * self.scale + self.shift
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        x = functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def build(architecture: Architecture, image_size: int, seed: int, zero_gamma: bool) -> Parts:
    """Build the network on the CPU, a pure function of ``seed``, with what trains it."""
    model = make_model(architecture, initial_weights(architecture, seed, zero_gamma))
    flops = architecture.flops_per_sample(image_size)
    return make_parts(model, nn.CrossEntropyLoss(), _sgd, evaluate, flops)


def make_model(architecture: Architecture, state: Mapping[str, Float]) -> ResNet:
    """Return the network with the weights ``state``, all of them and no others."""
    # On the meta device nothing is drawn: PyTorch's own initialisation takes seconds, and the
    # global random state.
    with torch.device("meta"):
        model = ResNet(architecture)
    model.to_empty(device="cpu")
    for name, values in zip(("scale", "shift"), scale_and_shift(), strict=True):
        getattr(model, name).copy_(torch.from_numpy(values).reshape(1, -1, 1, 1))
    counters = {
        name: torch.zeros_like(value)
        for name, value in model.state_dict().items()
        if name.endswith("num_batches_tracked")
    }
    tensors = {name: torch.from_numpy(values) for name, values in state.items()}
    model.load_state_dict({**tensors, **counters})
    return model


def evaluate(model: Any, samples: Samples) -> dict[str, float]:
    """Return ``accuracy`` (top 1), ``loss``, and ``top5`` where there are more than 5 classes.

    Means over all samples; the model stays as it was. Runs on the device of the model's parameters,
    in batches, without gradients.
    """
    weight = next(model.parameters())
    loss, right, near = 0.0, 0, 0
    classes = model.fc.out_features
    with evaluating(model):
        for inputs, targets in batches(samples, EVALUATION_BATCH, weight.device):
            images = inputs.to(weight.dtype) if inputs.is_floating_point() else inputs
            logits = model(images).float()
            loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
            best = logits.topk(min(TOP, classes), dim=1).indices == targets[:, None]
            right += int(best[:, 0].sum())
            near += int(best.sum())
    count = len(samples)
    metrics = {"accuracy": right / count, "loss": loss / count}
    return {**metrics, "top5": near / count} if classes > TOP else metrics


def _sgd(model: Any, learning_rate: float, fused: bool) -> torch.optim.SGD:
    """Return SGD with momentum and weight decay over all trainable parameters of ``model``."""
    return torch.optim.SGD(
        model.parameters(),
        lr=learning_rate,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        fused=fused,
    )


def _conv(conv: Convolution) -> nn.Conv2d:
    sizes = (conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.kernel // 2)
    return nn.Conv2d(*sizes, bias=False)


def _norm(conv: Convolution) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(conv.outputs, eps=EPSILON, momentum=1 - NORM_MOMENTUM)
