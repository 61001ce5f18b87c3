"""Wires over torch's own process groups (Gloo; NCCL between GPUs) and over MPI.

Part of the program on the nodes: imported by ``links`` alone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

_WORD_BYTES = 8


class TorchWire:
    """Two ranks of torch.distributed, and nobody else: a dead third one does not matter."""

    def __init__(self, group: Any, peer: int, device: Any) -> None:
        import torch

        self._torch, self._group, self._peer, self._device = torch, group, peer, device
        self._bytes = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=device)
        self._word = torch.zeros(1, dtype=torch.int64, device=device)

    def put(self, count_bytes: int) -> None:
        """Send so many bytes."""
        self._done(self._group.send([self._buffer(count_bytes)], self._peer, 0))

    def get(self, count_bytes: int) -> None:
        """Receive so many bytes."""
        self._done(self._group.recv([self._buffer(count_bytes)], self._peer, 0))

    def say(self, word: int) -> None:
        """Send a number."""
        self._word.fill_(word)
        self._done(self._group.send([self._word], self._peer, 0))

    def hear(self) -> int:
        """Receive a number."""
        self._done(self._group.recv([self._word], self._peer, 0))
        return int(self._word.item())

    def _buffer(self, count_bytes: int) -> Any:
        if count_bytes > len(self._bytes):
            # Written to, so that no page of it is first touched inside a transfer.
            self._bytes = self._torch.full(
                (count_bytes,), 1, dtype=self._torch.uint8, device=self._device
            )
        return self._bytes[:count_bytes]

    def _done(self, work: Any) -> None:
        work.wait()
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def gloo_wire(store: Any, rank: int, peer: int, name: str, patience_s: float) -> TorchWire:
    """Connect this rank with ``peer`` by Gloo; RuntimeError where that does not come about."""
    import torch
    import torch.distributed as dist

    c10d: Any = dist  # documented, and not in its stubs
    place = int(rank > peer)  # in a group of two
    group = c10d.ProcessGroupGloo(
        c10d.PrefixStore(name, store), place, 2, timedelta(seconds=patience_s)
    )
    return TorchWire(group, 1 - place, torch.device("cpu"))


def nccl_wire(peer: int, device: Any) -> TorchWire:
    """Use the default process group, which is NCCL's: it connects two ranks at their first send."""
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    return TorchWire(group, peer, device)


class MpiWire:
    """Two ranks of MPI, with buffers in the host's memory."""

    def __init__(self, comm: Any, peer: int) -> None:
        self._comm, self._peer = comm, peer
        self._bytes = np.zeros(_WORD_BYTES, dtype=np.uint8)
        self._word = np.zeros(1, dtype=np.int64)

    def put(self, count_bytes: int) -> None:
        """Send so many bytes."""
        self._comm.Send(self._buffer(count_bytes), dest=self._peer)

    def get(self, count_bytes: int) -> None:
        """Receive so many bytes."""
        self._comm.Recv(self._buffer(count_bytes), source=self._peer)

    def say(self, word: int) -> None:
        """Send a number."""
        self._word[0] = word
        self._comm.Send(self._word, dest=self._peer)

    def hear(self) -> int:
        """Receive a number."""
        self._comm.Recv(self._word, source=self._peer)
        return int(self._word[0])

    def _buffer(self, count_bytes: int) -> Any:
        if count_bytes > len(self._bytes):
            self._bytes = np.full(count_bytes, 1, dtype=np.uint8)
        return self._bytes[:count_bytes]
