"""A language model: embedding, LSTM layers, projection to a vocabulary of bytes or words.

``source`` is synthetic text of a known entropy rate, ``text`` a user's own, ``corpus`` either as
tokens, ``store`` their file, ``shape`` the model's sizes and initial weights, ``evaluation`` its
perplexity, ``torch_model`` and ``tf_model`` the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from workloads.api import ArraySamples, OptionValue, Parts, Workload, WorkloadError
from workloads.lstm.corpus import Corpus, Synthetic, Text, train_tokens
from workloads.lstm.evaluation import Scoring
from workloads.lstm.options import INFO, check_together, shape_of
from workloads.lstm.source import MarkovSource

__all__ = ["Lstm"]


class Lstm(Workload):
    """The language model at given options.

    A sample is a run of ``sequence`` tokens, its targets the same run one token on. Sample i of a
    split follows sample i - 1, and the model goes on from the one to the other
    (``info.order`` is "streams"). The last tenth of the tokens is the test split.
    """

    info = INFO

    def __init__(self, options: Mapping[str, OptionValue], data_dir: Path) -> None:
        super().__init__(options, data_dir)
        check_together(self.options)
        self.shape = shape_of(self.options)
        self._source = None if self.options["data"] == "text" else self._make_source()
        self._corpus = self._make_corpus()

    @property
    def floor_nats(self) -> float | None:
        """The entropy rate of the synthetic source, nats a token; None for a text."""
        return None if self._source is None else self._source.floor_nats

    def train_size(self) -> int:
        """Return the training samples; of a text at word level its words may have to be counted.

        WorkloadError where a text is not there or too short.
        """
        return self._samples(train_tokens(self._checked_size()))

    def prepare(self) -> None:
        """Make the file of tokens where there is no good one; many processes may call this."""
        self._checked_size()
        self._corpus.ensure()

    def data_files(self) -> tuple[Path, ...]:
        """Return the file of tokens, and what is known of a text."""
        return self._corpus.files()

    def train(self) -> ArraySamples:
        """Return the samples of the first nine tenths of the tokens."""
        return self._split(test=False)

    def test(self) -> ArraySamples:
        """Return the samples of the last tenth of the tokens."""
        return self._split(test=True)

    def parts(self, framework: str, seed: int) -> Parts:
        """Build the model, equal on every rank and in every framework for one ``seed``."""
        scoring = Scoring(self.options["tokens"] == "byte", self.floor_nats)
        clip_norm = float(self.options["clip_norm"]) or None
        if framework == "torch":
            from workloads.lstm import torch_model

            return torch_model.build(self.shape, seed, scoring, clip_norm)
        if framework == "tensorflow":
            from workloads.lstm import tf_model

            return tf_model.build(self.shape, seed, scoring, clip_norm)
        raise WorkloadError(
            f"{self.info.name} has no {framework} model; it has: {', '.join(self.info.frameworks)}"
        )

    def _make_source(self) -> MarkovSource:
        chosen = self.options
        return MarkovSource(
            symbols=int(chosen["symbols"]) or self.shape.vocabulary,
            order=int(chosen["order"]),
            branches=int(chosen["branches"]),
            noise=float(chosen["noise"]),
            seed=int(chosen["data_seed"]),
        )

    def _make_corpus(self) -> Corpus:
        vocabulary = self.shape.vocabulary
        if self._source is not None:
            length = int(self.options["length"])
            return Synthetic(self._source, length, vocabulary, self.data_dir)
        path = Path(str(self.options["path"])).expanduser().absolute()
        return Text(path, self.options["tokens"] == "word", vocabulary, self.data_dir)

    def _samples(self, tokens: int) -> int:
        """Return how many samples so many tokens make: the last one's targets need one more."""
        return (tokens - 1) // self.shape.sequence

    def _checked_size(self) -> int:
        """Return the number of tokens; WorkloadError where a split would have no sample."""
        tokens = self._corpus.size()
        if tokens - train_tokens(tokens) > self.shape.sequence:
            return tokens
        units = "bytes" if self.options["tokens"] == "byte" else "words"
        text = self.options["data"] == "text"
        what = f"text {self.options['path']}" if text else "synthetic text"
        raise WorkloadError(
            f"workload lstm: {what} has {tokens} {units}, too few for a test split of a tenth with "
            f"sequences of {self.shape.sequence}; set "
            f"{'path to a text' if text else 'length to a number'} of at least "
            f"{10 * self.shape.sequence + 1}, or a shorter sequence"
        )

    def _split(self, *, test: bool) -> ArraySamples:
        file = self._corpus.file()
        tokens = file.open()
        cut = train_tokens(len(tokens))
        part = tokens[cut:] if test else tokens[:cut]
        count, sequence = self._samples(len(part)), self.shape.sequence
        used = count * sequence
        return ArraySamples(
            part[:used].reshape(count, sequence),
            part[1 : used + 1].reshape(count, sequence),
            file.path,
        )
