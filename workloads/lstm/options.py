"""What can be set, which settings go together, and the sizes that have a name."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.api import Option, OptionValue, Variant, WorkloadError, WorkloadInfo
from workloads.lstm.shape import Shape

BYTES = 256

_OPTIONS: dict[str, Option] = {
    "tokens": Option("byte", "what is predicted, one after the other", choices=("byte", "word")),
    "vocabulary": Option(
        10_000,
        "words, of which the most frequent are kept; at byte level there are 256 tokens",
        minimum=2,
        maximum=10_000_000,
    ),
    "embedding": Option(128, "numbers a token is embedded in", minimum=1, maximum=65_536),
    "hidden": Option(512, "width of an LSTM layer", minimum=1, maximum=65_536),
    "layers": Option(2, "LSTM layers, one on another", minimum=1, maximum=3),
    "sequence": Option(
        128, "tokens a sample; gradients go no further back", minimum=1, maximum=1_000_000
    ),
    "clip_norm": Option(
        1.0, "greatest L2 norm of the reduced gradient; 0 leaves it as it is", minimum=0.0
    ),
    "data": Option(
        "synthetic",
        "a Markov source of known entropy rate, or the text at path; the last tenth is for testing",
        choices=("synthetic", "text"),
    ),
    "path": Option("", "a text file, UTF-8 where tokens is word"),
    "length": Option(
        10_000_000, "tokens of the synthetic text", minimum=20, maximum=100_000_000_000
    ),
    "data_seed": Option(1, "seed of the synthetic source", minimum=0, maximum=2**63 - 1),
    "symbols": Option(
        0, "tokens that the source uses; 0: the whole vocabulary", minimum=0, maximum=10_000_000
    ),
    "order": Option(1, "tokens that the source's next one depends on", minimum=1, maximum=4),
    "branches": Option(
        4, "successors of each context, with random probabilities", minimum=1, maximum=64
    ),
    "noise": Option(
        0.05, "probability that the next token is any symbol", minimum=0.01, maximum=1.0
    ),
}

#: Settings that mean nothing but where another one has this value.
_ONLY_WITH: dict[str, tuple[str, OptionValue]] = {
    "vocabulary": ("tokens", "word"),
    "path": ("data", "text"),
    "length": ("data", "synthetic"),
    "data_seed": ("data", "synthetic"),
    "symbols": ("data", "synthetic"),
    "order": ("data", "synthetic"),
    "branches": ("data", "synthetic"),
    "noise": ("data", "synthetic"),
}


def shape_of(options: Mapping[str, OptionValue]) -> Shape:
    """Return the model's sizes at resolved options."""
    return Shape(
        vocabulary=BYTES if options["tokens"] == "byte" else int(options["vocabulary"]),
        embedding=int(options["embedding"]),
        hidden=int(options["hidden"]),
        layers=int(options["layers"]),
        sequence=int(options["sequence"]),
    )


def check_together(options: Mapping[str, OptionValue]) -> None:
    """Raise WorkloadError where a setting has no effect with another one, or is missing."""
    for name, (other, value) in _ONLY_WITH.items():
        if options[name] != _OPTIONS[name].default and options[other] != value:
            raise WorkloadError(
                f"workload lstm, option {name}: it has no effect with {other}: {options[other]}; "
                f"leave it out, or set {other} to {value}"
            )
    if options["data"] == "text" and not options["path"]:
        raise WorkloadError("workload lstm, option path: data: text needs the path of a text file")
    vocabulary = shape_of(options).vocabulary
    if int(options["symbols"]) > vocabulary:
        raise WorkloadError(
            f"workload lstm, option symbols: {options['symbols']} is more than the vocabulary of "
            f"{vocabulary}"
        )


def _variant(name: str, options: dict[str, OptionValue]) -> Variant:
    shape = shape_of({key: option.default for key, option in _OPTIONS.items()} | options)
    return Variant(name, options, shape.parameters, shape.flops_per_sample)


#: ``large`` has the sizes of Zaremba, Sutskever and Vinyals' large model of the Penn Treebank
#: (2014), without its dropout: what is trained must not depend on how many ranks draw numbers.
VARIANTS = (
    _variant(
        "small",
        {"tokens": "byte", "embedding": 128, "hidden": 512, "layers": 2, "sequence": 128},
    ),
    _variant(
        "large",
        {
            "tokens": "word",
            "vocabulary": 10_000,
            "embedding": 1500,
            "hidden": 1500,
            "layers": 2,
            "sequence": 35,
        },
    ),
)

INFO = WorkloadInfo(
    name="lstm",
    title="Language model of bytes or words (LSTM, truncated back-propagation with carried state)",
    frameworks=("torch", "tensorflow"),
    parameters=VARIANTS[0].parameters,
    target_metric="perplexity",
    learning_rate=2e-3,
    learning_rate_batch=64,
    options=_OPTIONS,
    flops_per_sample=VARIANTS[0].flops_per_sample,
    data="10,000,000 synthetic bytes of known entropy rate, or a text, in runs of 128",
    variants=VARIANTS,
    lower_is_better=True,
    order="streams",
)
