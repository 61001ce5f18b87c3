"""Normal numbers that are the same in every version: from words, which NumPy promises for good."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]


def box_muller(words: NDArray[np.uint64]) -> tuple[Float, Float]:
    """Return two arrays of standard normal numbers, shaped like ``words`` (Box & Muller 1958)."""
    scale = np.float32(2.0**-24)
    high = (words >> np.uint64(40)).astype(np.float32)  # 24 bits: exact in float32
    low = ((words >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float32)
    # (0, 1], so that the logarithm is finite; the largest number is sqrt(48 ln 2) = 5.8.
    radius = np.sqrt(np.float32(-2) * np.log((high + np.float32(1)) * scale))
    angle = low * np.float32(2 * np.pi * 2.0**-24)
    return radius * np.cos(angle), radius * np.sin(angle)
