#!/usr/bin/env python3
"""Write what torchvision's ResNets give for weights and images that anyone can make again.

    PYTHONPATH=. python3 tools/torchvision_outputs.py --out tests/golden/resnet_torchvision.json

Needs torch and torchvision, here alone: the tests hold the models of this project against the file.
The weights are a rule of names and shapes (``reference_value``), not stored. All on the CPU in
float32, with one thread, so that the sums are added in one order.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workloads.resnet.weights import Float, normals

DEPTHS = (18, 34, 50, 101, 152)
TRAIN_DEPTH = 50
IMAGES, EVALUATED = 4, 2  # images of the training step; the first of them are evaluated
IMAGE_SIZE = 64
CLASSES = 1000
EVERY = 10  # of the outputs is written
TARGETS = (1, 250, 500, 999)
GRADIENTS = (
    "conv1.weight",
    "bn1.weight",
    "layer1.0.conv1.weight",
    "layer1.0.downsample.0.weight",
    "layer2.0.conv2.weight",
    "layer2.0.downsample.1.bias",
    "layer3.5.bn3.weight",
    "layer4.2.conv2.weight",
    "fc.weight",
    "fc.bias",
)
STATISTICS = ("bn1.running_mean", "bn1.running_var", "layer4.2.bn3.running_var")


def reference_value(name: str, shape: tuple[int, ...]) -> Float:
    """Return the reference weights of the tensor ``name`` of torchvision's ``state_dict``.

    Convolutions keep the mean square of what went through a ReLU (He et al. 2015). The residual
    branches are damped by gammas of about 1/2, so that 50 blocks in a row do not blow up.
    """
    drawn = normals(name, shape, seed=0)
    kind = name.rpartition(".")[2]
    if kind == "running_var":
        spread: Float = np.exp(np.float32(0.2) * drawn)
        return spread
    if kind == "weight" and len(shape) > 1:
        gain = 2.0 if len(shape) == 4 else 1.0
        return drawn * np.float32(math.sqrt(gain / math.prod(shape[1:])))
    if kind == "weight":
        level = 0.5 if ".bn" in name else 1.0
        return np.float32(level) * (np.float32(1) + np.float32(0.1) * drawn)
    return np.float32(0.1) * drawn  # biases and running means


def reference_state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float]:
    """Return reference weights for all tensors by name, the counters of batches left out."""
    return {
        name: reference_value(name, tuple(shape))
        for name, shape in shapes.items()
        if not name.endswith("num_batches_tracked")
    }


def reference_images() -> Float:
    """Return ``IMAGES`` normalised images, (n, 3, size, size)."""
    return normals("images", (IMAGES, 3, IMAGE_SIZE, IMAGE_SIZE), seed=0)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    out: Path = parser.parse_args().out
    out.write_text(json.dumps(_document(), indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {out.stat().st_size} bytes")


def _document() -> dict[str, Any]:
    import torch
    import torchvision

    torch.set_num_threads(1)
    models = {str(depth): _evaluated(depth) for depth in DEPTHS}
    return {
        "made_with": {
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "image_size": IMAGE_SIZE,
        "every": EVERY,
        "models": models,
        "training_step": _trained(TRAIN_DEPTH),
    }


def _filled(depth: int) -> Any:
    """Return torchvision's model of ``depth`` with the reference weights."""
    import torch
    from torchvision import models

    model = getattr(models, f"resnet{depth}")(weights=None, num_classes=CLASSES)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    state = {name: torch.from_numpy(value) for name, value in reference_state(shapes).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + unexpected
    if wrong:
        raise SystemExit(f"resnet{depth}: tensors that do not fit: {wrong}")
    return model


def _evaluated(depth: int) -> dict[str, Any]:
    """Return the outputs in evaluation mode: every ``EVERY``th, and sums over all of them."""
    import torch

    model = _filled(depth).eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(reference_images()[:EVALUATED])).numpy()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": len(model.state_dict()),
        "outputs": [[_number(value) for value in row[::EVERY]] for row in outputs],
        "sums": [_number(row.sum(dtype=np.float64)) for row in outputs],
        "absolute_sums": [_number(np.abs(row).sum(dtype=np.float64)) for row in outputs],
    }


def _trained(depth: int) -> dict[str, Any]:
    """Return loss, gradient norms and moving statistics of one step in training mode."""
    import torch

    model = _filled(depth).train()
    outputs = model(torch.from_numpy(reference_images()))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(TARGETS))
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    state = model.state_dict()
    return {
        "depth": depth,
        "loss": _number(loss.item()),
        "gradient_norms": {name: _norm(gradients[name].numpy()) for name in GRADIENTS},
        "statistic_norms": {name: _norm(state[name].numpy()) for name in STATISTICS},
    }


def _norm(values: Any) -> float:
    return _number(np.linalg.norm(values.astype(np.float64)))


def _number(value: Any) -> float:
    """Return nine digits: they tell any two float32 numbers apart."""
    return float(f"{float(value):.9g}")


if __name__ == "__main__":
    main()
