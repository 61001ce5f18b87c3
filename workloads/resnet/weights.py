"""Weights by name, the same in every framework and on every machine: NumPy alone makes them.

Each tensor has random numbers of its own, decided by the seed and its name, so that neither the
order of the layers nor the framework has a part in them. They come from Philox (Salmon et al.
2011), whose words NumPy promises for good; the normal distribution is made from them here (Box &
Muller 1958), since NumPy does not promise the streams of its distributions.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]


def normals(name: str, shape: tuple[int, ...], seed: int) -> Float:
    """Return standard normal numbers of ``shape``, a function of ``(seed, name)`` alone."""
    count = math.prod(shape)
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(-(-count // 2))  # one word makes two numbers
    scale = np.float32(2.0**-24)
    high = (words >> np.uint64(40)).astype(np.float32)  # 24 bits: exact in float32
    low = ((words >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float32)
    # (0, 1], so that the logarithm is finite; the largest number is sqrt(48 ln 2) = 5.8.
    radius = np.sqrt(np.float32(-2) * np.log((high + np.float32(1)) * scale))
    angle = low * np.float32(2 * np.pi * 2.0**-24)
    both: Float = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].reshape(shape)
