"""scikit-learn's digits: 1,797 handwritten digits of 8x8 grey levels, as images of any size.

The data are in scikit-learn's package (from the UCI repository: Alpaydin and Kaynak 1998). A fixed
permutation decides which 1,437 (80 %) are for training; the other 360 are for testing.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np

from workloads.api import ArraySamples, WorkloadError
from workloads.resnet.architecture import CHANNELS

CLASSES = 10
COUNT = 1797
TRAINING = 1437
_LEVELS = 16  # a grey level is 0 to 16
_SPLIT_KEY = 0x6876645F6467  # "hvd_dg"


def read_split(size: int, training: bool) -> ArraySamples:
    """Return a split: uint8 images (n, 3, size, size), three equal channels; int64 classes (n,).

    Each pixel is repeated, not blended. WorkloadError where scikit-learn is missing.
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError as error:
        raise WorkloadError(
            "data: digits needs scikit-learn, which is not installed: pip install scikit-learn"
        ) from error
    levels, labels = datasets.load_digits(return_X_y=True)
    if levels.shape != (COUNT, 64):
        raise WorkloadError(f"scikit-learn's digits are {levels.shape}, not ({COUNT}, 64)")
    # Sorting random words is a permutation that does not depend on NumPy's shuffling.
    order = np.argsort(np.random.Philox(key=_SPLIT_KEY).random_raw(COUNT), kind="stable")
    chosen = order[:TRAINING] if training else order[TRAINING:]
    grey = np.rint(levels[chosen] * (255 / _LEVELS)).astype(np.uint8).reshape(-1, 1, 8, 8)
    pixel = np.arange(size) * 8 // size
    large = grey[:, :, pixel[:, np.newaxis], pixel]
    images = np.ascontiguousarray(np.broadcast_to(large, (len(chosen), CHANNELS, size, size)))
    return ArraySamples(images, labels[chosen].astype(np.int64))
