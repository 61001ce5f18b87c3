"""torch.compile of a model in parts, so that gradients are there before backward has ended.

Dynamo captures the model once. What it captured is cut as torch cuts it for its own DDP, and each
part compiled by itself. Importing this imports Dynamo, which takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.distributed import Bucket, DDPOptimizer
from typing_extensions import override

if not hasattr(DDPOptimizer, "add_param"):
    raise ImportError("it has no add_param")

Backend = Callable[..., Any]  # of a graph and its inputs makes what runs it


def in_parts(model: nn.Module, count: int, compile_part: Backend | None = None) -> Backend:
    """Return a backend for torch.compile that cuts ``model`` into ``count`` parts, if it can.

    Fewer become of a model whose parameters are used in fewer places. ``compile_part`` compiles
    one part, by default Inductor. Where Dynamo's own graph breaks, each graph of it is cut by
    shares of the whole model.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total_bytes = sum(parameter.untyped_storage().nbytes() for parameter in trained)
    inner = torch._dynamo.lookup_backend("inductor") if compile_part is None else compile_part

    def compile_parts(graph: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return _Shares(total_bytes, count, inner).compile_fn(graph, inputs)

    return compile_parts


class _Shares(DDPOptimizer):
    """torch's splitter, its parts ending where ``torch_pieces.pieces`` ends its runs.

    From the graph's end on, it ends a part that has ``bucket_bytes_cap`` of parameters. One cap for
    all makes fewer parts than were asked for where a part exceeds it by much, so each part gets its
    own: what is missing to its share of the sum so far.
    """

    def __init__(self, total_bytes: int, count: int, compile_part: Backend) -> None:
        share_bytes = max(1, -(-total_bytes // count))
        super().__init__(share_bytes, compile_part, first_bucket_cap=share_bytes)
        self._total_bytes, self._count = total_bytes, count
        self._names: set[str] = set()
        self._bytes = 0  # of the parameters so far
        self._parts = 0
        self._part: Bucket | None = None

    @override
    def add_param(self, bucket: Bucket, param: nn.Parameter, name: str) -> None:
        if name in self._names:
            return  # used in two places
        self._names.add(name)
        if bucket is not self._part:
            self._part = bucket
            self._parts += 1
            upto = -(-self._total_bytes * self._parts // self._count)
            last = self._parts == self._count
            self.bucket_bytes_cap = sys.maxsize if last else upto - self._bytes
        before = bucket.size
        super().add_param(bucket, param, name)
        self._bytes += bucket.size - before
