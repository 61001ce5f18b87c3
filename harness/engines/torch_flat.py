"""A captured step whose gradients lie in one buffer, ready to be reduced in one piece or a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from harness.config.models import Execution
from harness.engines.torch_graph import GraphStep
from harness.engines.torch_pieces import backward_order, backward_parts, pieces
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
    several pieces each is complete, and its event recorded, while backward goes on. Of a compiled
    model they end where its parts do, which are known once it has been compiled, in the first step.
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
        self._count = count
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []  # where each gradient is in it
        self._pieces: list[Piece] = []
        self._open: dict[Piece, int] | None = None  # gradients still to come, in the last backward
        if count == 1 or not execution.compile:
            self._cut([[parameter] for parameter in backward_order(self._plain)])

    def _cut(self, parts: list[list[torch.Tensor]]) -> None:
        """Make the pieces of whole ``parts``, whose gradients come together, in their order."""
        sizes = [sum(parameter.numel() for parameter in part) for part in parts]
        lengths = pieces(sizes, self._count)
        first, start = 0, 0
        for length in lengths:
            mine = tuple(parameter for part in parts[first : first + length] for parameter in part)
            end = start + sum(sizes[first : first + length])
            ready = self._recorder.event() if len(lengths) > 1 else None
            piece = Piece(mine, self._flat[start:end], self._wire[start:end], ready)
            views = torch.split(piece.flat, [parameter.numel() for parameter in mine])
            self._views += [(one, view.view_as(one)) for one, view in zip(mine, views, strict=True)]
            self._pieces.append(piece)
            first, start = first + length, end
            if ready is not None:
                self._watch(piece)

    def _watch(self, piece: Piece) -> None:
        parameter: Any  # the method is untyped in torch
        for parameter in piece.parameters:
            parameter.register_post_accumulate_grad_hook(self._arrival(piece))

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
        if not self._pieces:
            self._cut(backward_parts(self._last_loss, self._trained))
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
