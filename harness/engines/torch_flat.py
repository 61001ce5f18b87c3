"""A captured step whose gradients lie in one buffer, ready to be reduced in one piece or a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from harness.config.models import Execution
from harness.engines.torch_graph import GraphStep
from harness.engines.torch_pieces import backward_order, pieces
from harness.engines.torch_recorder import Event, Recorder
from workloads.api import Parts


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the flat gradient, and the parameters whose gradients it has."""

    parameters: tuple[torch.Tensor, ...]
    flat: torch.Tensor  # (numbers,) float32
    wire: torch.Tensor  # (numbers,) as it is sent; the same memory where that is float32
    ready: Event | None  # recorded when it is complete; None: when backward has ended


class FlatGraphStep(GraphStep):
    """A graph step whose gradients lie in one buffer, which is reduced in one or more pieces.

    Backward begins with this rank's share of the mean loss, so that the sum is the mean, and no
    pass over the buffer divides it. ``wire_dtype`` is what is sent; the update is in float32. Of
    several pieces each is complete, and its event recorded, while backward goes on.
    """

    def __init__(
        self,
        parts: Parts,
        model: Any,
        optimiser: Any,
        execution: Execution,
        device: torch.device,
        *,
        world_size: int,
        wire_dtype: torch.dtype = torch.float32,
        count: int = 1,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(parts, model, optimiser, execution, device, recorder=recorder)
        self._share = 1.0 / world_size
        self._flat = torch.zeros(sum(p.numel() for p in self._trained), device=device)
        self._wire = self._flat
        if wire_dtype != torch.float32:
            self._wire = torch.zeros_like(self._flat, dtype=wire_dtype)
        self.wire_bytes = self._wire.nbytes
        order = backward_order(self._plain)
        sizes = [parameter.numel() for parameter in order]
        self._views = [
            (parameter, view.view_as(parameter))
            for view, parameter in zip(torch.split(self._flat, sizes), order, strict=True)
        ]
        self._pieces = self._cut(order, pieces(sizes, count))
        self._open: dict[Piece, int] | None = None  # gradients still to come, in the last backward
        if len(self._pieces) > 1:
            for piece in self._pieces:
                parameter: Any  # the method is untyped in torch
                for parameter in piece.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrival(piece))

    def _cut(self, order: list[torch.Tensor], lengths: list[int]) -> list[Piece]:
        found, first, start = [], 0, 0
        for length in lengths:
            mine = tuple(order[first : first + length])
            end = start + sum(parameter.numel() for parameter in mine)
            ready = self._recorder.event() if len(lengths) > 1 else None
            found.append(Piece(mine, self._flat[start:end], self._wire[start:end], ready))
            first, start = first + length, end
        return found

    def _arrival(self, piece: Piece) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            if self._open is None or piece not in self._open:
                return  # a pass of its own: an estimate, or an earlier part of this batch
            self._open[piece] -= 1
            if self._open[piece] == 0:
                self._complete(piece)

        return arrived

    @override
    def _to_differentiate(self, loss: Any) -> Any:
        return loss if self._share == 1.0 else loss * self._share

    @override
    def _backward_stage(self, sync: bool) -> None:
        self._open = {piece: len(piece.parameters) for piece in self._pieces}
        super()._backward_stage(sync)

    @override
    def _collect(self) -> None:
        """Complete what is not: the only piece, or one with a parameter that had no part."""
        assert self._open is not None
        for piece in list(self._open):
            self._complete(piece)
        self._open = None

    def _complete(self, piece: Piece) -> None:
        assert self._open is not None
        del self._open[piece]
        with torch.no_grad():
            gradients = [self._gradient_of(p).reshape(-1) for p in piece.parameters]
            torch.cat(gradients, out=piece.flat)
            if self._wire is not self._flat:
                piece.wire.copy_(piece.flat)
        if piece.ready is not None:
            piece.ready.record()

    @staticmethod
    def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
        # One that took no part in this batch has none, and the same place in the buffer.
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    @override
    def _before_update(self) -> None:
        if self._wire is not self._flat:
            self._flat.copy_(self._wire)
        for parameter, view in self._views:
            parameter.grad = view
