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

from workloads.normal import box_muller

Float = NDArray[np.float32]


def normals(name: str, shape: tuple[int, ...], seed: int) -> Float:
    """Return standard normal numbers of ``shape``, a function of ``(seed, name)`` alone."""
    count = math.prod(shape)
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(-(-count // 2))  # one word makes two numbers
    both: Float = np.concatenate(box_muller(words))
    return both[:count].reshape(shape)
