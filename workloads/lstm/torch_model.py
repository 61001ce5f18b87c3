"""The language model in PyTorch: embedding, LSTM with carried state, projection; Adam."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from workloads.api import Parts, Samples, WorkloadError
from workloads.lstm.evaluation import Scoring, streams
from workloads.lstm.shape import Shape, Weights, initial_weights
from workloads.torch_parts import evaluating, make_parts, seeded


class LanguageModel(nn.Module):
    """Tokens (n, sequence) to logits of the next ones, (n, sequence, vocabulary).

    Row r of a batch goes on where row r of the batch before it ended: ``hidden`` and ``cell``,
    (layers, n, hidden), are carried and no gradient goes through them (truncated back-propagation
    in time). A batch of another size begins with zeros. The buffers are no part of the state dict:
    what was read is not what was learnt.
    """

    hidden: torch.Tensor
    cell: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.embedding)
        self.lstm = nn.LSTM(shape.embedding, shape.hidden, shape.layers, batch_first=True)
        self.projection = nn.Linear(shape.hidden, shape.vocabulary)
        for layer in range(shape.layers):
            second = getattr(self.lstm, f"bias_hh_l{layer}")
            second.requires_grad_(False).zero_()
        # One row of zeros: whoever copies it into a state of n rows has emptied that.
        empty = torch.zeros(shape.layers, 1, shape.hidden)
        self.register_buffer("hidden", empty, persistent=False)
        self.register_buffer("cell", empty.clone(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits, and carry the state on."""
        if tokens.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            _check_bfloat16()
        logits: torch.Tensor = self.projection(self._read(self.embedding(tokens.long())))
        return logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _read(self, embedded: torch.Tensor) -> torch.Tensor:
        """Run the LSTM layers over (n, sequence, embedding), and carry the state on.

        torch.compile takes no LSTM; this says so, and what is before and after it is compiled.
        """
        if self.hidden.shape[1] != len(embedded):
            self._empty(len(embedded))
        # Copies, because backward still needs what the new state is about to be written over.
        state = self.hidden.clone(), self.cell.clone()
        outputs, (hidden, cell) = self.lstm(embedded, state)
        with torch.no_grad():
            self.hidden.copy_(hidden)
            self.cell.copy_(cell)
        read: torch.Tensor = outputs
        return read

    def forget(self) -> None:
        """Let every row begin anew."""
        self.hidden.zero_()
        self.cell.zero_()

    @contextmanager
    def reading_elsewhere(self) -> Iterator[None]:
        """Begin with an empty state, and put back the very buffers that there were."""
        before = self.hidden, self.cell
        self._empty(1)
        try:
            yield
        finally:
            self.hidden, self.cell = before

    def keep(self, rows: int) -> None:
        """Go on with the first rows alone."""
        self.hidden, self.cell = self.hidden[:, :rows].clone(), self.cell[:, :rows].clone()

    def _empty(self, rows: int) -> None:
        layers, _, width = self.hidden.shape
        self.hidden = self.hidden.new_zeros(layers, rows, width)
        self.cell = self.cell.new_zeros(layers, rows, width)


def _check_bfloat16() -> None:
    """Raise WorkloadError where oneDNN, which has the LSTM of a CPU, would fail obscurely."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise WorkloadError(
            "workload lstm: this CPU lacks the instructions (AVX-512) that oneDNN's LSTM needs for "
            "bfloat16; set execution.precision to fp32"
        )


def build(shape: Shape, seed: int, scoring: Scoring, clip_norm: float | None) -> Parts:
    """Build the model on the CPU, a pure function of ``seed``, with what trains it."""

    def evaluate(model: Any, samples: Samples) -> dict[str, float]:
        return scoring.metrics(mean_loss(model, samples))

    return make_parts(
        make_model(shape, seed),
        loss,
        adam,
        evaluate,
        shape.flops_per_sample,
        clip_norm=clip_norm,
        start_epoch=LanguageModel.forget,
    )


def make_model(shape: Shape, seed: int) -> LanguageModel:
    """Return the model with the initial weights of ``seed``; random states stay as they were."""
    with seeded(seed):  # PyTorch's own initialisation draws numbers that are not used
        model = LanguageModel(shape)
    load(model, initial_weights(shape, seed))
    return model


def load(model: LanguageModel, weights: Weights) -> None:
    """Put weights into a model, by their names; biases that are not trained are left out."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(torch.from_numpy(value))


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy a token, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


def adam(model: LanguageModel, learning_rate: float, fused: bool) -> torch.optim.Adam:
    """Return Adam over all trained parameters.

    Adam and not plain SGD, with which LSTMs are often trained: that needs a decay of its rate,
    found for each size of model, before its loss comes near a floor.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=learning_rate, fused=fused)


def mean_loss(model: LanguageModel, samples: Samples) -> float:
    """Return the mean cross-entropy a token, nats, the split read in order with carried state."""
    device = model.projection.weight.device
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    with evaluating(model), model.reading_elsewhere():
        rows = None
        for indices in streams(len(samples)):
            if rows is not None and len(indices) < rows:
                model.keep(len(indices))
            rows = len(indices)
            inputs, targets = (
                torch.from_numpy(array).to(device) for array in samples.gather(indices)
            )
            total += loss(model(inputs), targets).double() * targets.numel()
            tokens += targets.numel()
    return float(total) / tokens
