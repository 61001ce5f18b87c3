"""What both frameworks train with: normalisation, optimiser, evaluation."""

from __future__ import annotations

import numpy as np

from workloads.resnet.weights import Float

#: SGD as in Goyal et al. 2017: the weight decay is of all parameters and part of the gradient.
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4

#: Of the batch normalisations; the share of a moving statistic that stays in each step.
EPSILON = 1e-5
NORM_MOMENTUM = 0.9

EVALUATION_BATCH = 256
TOP = 5  # the target is among so many best outputs

#: ImageNet's mean and standard deviation of red, green and blue, of images in 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def scale_and_shift() -> tuple[Float, Float]:
    """Return (3,) and (3,): bytes x become ``x * scale + shift = (x / 255 - MEAN) / STD``."""
    mean, std = np.array(MEAN), np.array(STD)
    return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
