"""A flat gradient in pieces, each complete before the whole backward pass is through.

Backward makes gradients from the last layer to the first. Cut where they come to equal shares of
the parameters, the first piece can be reduced while the others are still being computed. A model
that is compiled whole hands out all its gradients at the end, so it is compiled in pieces, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def pieces(sizes: Sequence[int], count: int) -> list[int]:
    """Cut ``sizes`` into at most ``count`` runs of about equal sums; return the runs' lengths.

    A run ends with the number that takes the sum so far to the next share, so that no run is empty
    and the last one is never the longest by more than one number.
    """
    lengths: list[int] = []
    total, so_far, length = sum(sizes), 0, 0
    for size in sizes:
        so_far += size
        length += 1
        if len(lengths) < count - 1 and so_far * count >= total * (len(lengths) + 1):
            lengths.append(length)
            length = 0
    return [*lengths, length] if length else lengths


def backward_order(model: nn.Module) -> list[torch.Tensor]:
    """Return the trained parameters, the last layer's first, as backward comes to them."""
    return [p for p in reversed(list(model.parameters())) if p.requires_grad]


def break_graph(model: nn.Module, count: int) -> list[str]:
    """Let torch.compile break its graph before the children where pieces of the gradient end.

    Returns the children's names. Call it before compiling; a model of one child stays whole.
    """
    children = list(model.named_children())[::-1]
    sizes = [sum(p.numel() for p in child.parameters() if p.requires_grad) for _, child in children]
    # Asked for here: Dynamo takes seconds to import, and most launches compile nothing.
    dynamo: Any = torch._dynamo
    breaking = dynamo.disable(_nothing)  # where it cannot follow, its graph ends
    found, at = [], 0
    for length in pieces(sizes, count)[:-1]:
        at += length
        name, child = children[at - 1]
        child.register_forward_pre_hook(breaking)
        found.append(name)
    return found


def _nothing(module: nn.Module, inputs: Any) -> None:
    """Do nothing."""
