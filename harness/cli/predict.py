"""``hvdscale predict``: larger device counts, or the measured step with one thing changed."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    from harness.analysis.models.api import Network
    from harness.analysis.models.prediction import CurvePrediction
    from harness.analysis.results import Results
    from harness.collectives.record import CollectivesRecord


_DIGITS = 9  # of a device count


def command_predict(
    path: str,
    devices: str | None,
    devices_per_node: int | None,
    network: tuple[float | None, float | None],
    what_if: Sequence[str],
    allreduce: Path | None,
    results: Path,
    *,
    base: str | None,
    mixed: bool,
    as_json: bool,
) -> int:
    """Print what a sweep's curves would do at other device counts, or with one thing changed.

    ``network`` is (latency in microseconds, bandwidth in GB/s) between nodes. With ``what_if``
    alone nothing is predicted. Raises ConfigError on flags, AnalysisError where no curve can be
    predicted at all.
    """
    wanted = parse_devices(devices)
    joined = parse_network(*network)
    if what_if and devices is None and (devices_per_node or joined or allreduce):
        raise ConfigError(
            "--what-if replays what was measured: with it, place flags need --devices"
        )
    from harness.cli.listing import sweep_folder

    folder = sweep_folder(path, results)
    record = _allreduce(allreduce)
    from harness.analysis.results import load_results

    found = load_results(folder, base=base, mixed=mixed)
    answers: dict[str, Any] = {}
    texts: list[str] = []
    if not what_if or devices is not None:
        made = _predict(found, wanted, devices_per_node, joined, record)
        from harness.analysis.models.render import render_predictions

        answers["predictions"] = made
        texts.append(render_predictions(made))
    if what_if:
        from harness.analysis.models.whatif import render_what_if
        from harness.analysis.models.whatif import what_if as replay

        replays = replay(found, what_if)
        answers["what_if"] = replays
        texts.append(render_what_if(replays))
    if as_json:
        from harness.analysis.plain import json_text

        print(json_text(answers))
    else:
        print("\n\n".join(texts))
    sys.stdout.flush()
    return 0


def parse_devices(text: str | None) -> tuple[int, ...]:
    """Return the device counts of ``64,256,1024``; none of no text."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS and int(word) > 0):
            raise ConfigError(
                f"--devices: '{word}' is no device count; give e.g. --devices 64,256,1024"
            )
    return tuple(map(int, words))


def parse_network(latency_us: float | None, bandwidth_gbs: float | None) -> Network | None:
    """Return what joins nodes, from both flags or neither; GB/s are 10^9 bytes a second."""
    if latency_us is None and bandwidth_gbs is None:
        return None
    for value, flag in ((latency_us, "--inter-node-us"), (bandwidth_gbs, "--inter-node-gbs")):
        if value is None:
            raise ConfigError(f"{flag} is missing: a network takes latency and bandwidth together")
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{flag}: {value:g} is not a positive number")
    assert latency_us is not None
    assert bandwidth_gbs is not None
    from harness.analysis.models.api import Network

    return Network(latency_us * 1e-6, bandwidth_gbs * 1e9)


def _predict(
    results: Results,
    devices: Sequence[int],
    devices_per_node: int | None,
    network: Network | None,
    allreduce: CollectivesRecord | None,
) -> tuple[CurvePrediction, ...]:
    """Predict; AnalysisError where not one number comes of it."""
    from harness.analysis.models.predict import predict

    made = predict(
        results, devices, devices_per_node=devices_per_node, network=network, allreduce=allreduce
    )
    if any(row.refused is None for one in made for row in one.predictions):
        return made
    from harness.analysis.models.render import refusals

    reasons: dict[str, list[str]] = {}
    for one in made:
        reasons.setdefault(one.refused or "; ".join(refusals(one)), []).append(one.label)
    text = "; ".join(f"{why} ({_which(labels)})" for why, labels in reasons.items())
    raise AnalysisError(f"nothing can be predicted: {text}")


def _which(labels: Sequence[str]) -> str:
    """Name curves; labels have commas of their own, so of several only the count."""
    return labels[0] if len(labels) == 1 else f"{len(labels)} curves, the first: {labels[0]}"


def _allreduce(folder: Path | None) -> CollectivesRecord | None:
    if folder is None:
        return None
    from harness.collectives.record import read_record

    return read_record(folder / "record.json" if os.path.isdir(folder) else folder)
