"""A flat gradient in pieces, each complete before the whole backward pass is through.

Backward makes gradients from the last layer to the first. Cut where they come to equal shares of
the parameters, the first piece can be reduced while the others are still being computed. A model
that is compiled whole hands out all its gradients at the end, so it is compiled in parts, too (see
``torch_split``), and pieces end where parts end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def backward_parts(loss: torch.Tensor, trained: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the trained parameters by the call of backward that makes their gradients.

    In the order of these calls, read from the graph that ``loss`` has. Of a compiled model one call
    is a whole compiled part. A parameter that is used in several is complete with the last of them;
    those that ``loss`` does not depend on come last, together.
    """
    calls = _calls(loss)
    maker: dict[torch.Tensor, Any] = {}
    for node in calls:
        for following, _ in node.next_functions:
            if following is not None and hasattr(following, "variable"):
                maker[following.variable] = node
    parts: dict[Any, list[torch.Tensor]] = {node: [] for node in calls}
    unused: list[torch.Tensor] = []
    for parameter in trained:
        made = parts[maker[parameter]] if parameter in maker else unused
        made.append(parameter)
    return [part for part in [*parts.values(), unused] if part]


def _calls(loss: torch.Tensor) -> list[Any]:
    """Return the nodes of the graph of ``loss`` in the order in which autograd runs them."""
    found: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    # Of the nodes that are ready autograd runs the one that forward made last, and it made every
    # node after those that follow it.
    return sorted(found, key=lambda node: node._sequence_nr(), reverse=True)
