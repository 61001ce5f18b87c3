"""Which points are worst, what is said of them, and what is said where records lack something."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.diagnose import LIMITERS, diagnose, render_diagnosis
from harness.analysis.diagnose.evidence import _EVIDENCE
from harness.analysis.diagnose.knobs import _KNOBS
from harness.analysis.plain import json_text
from harness.analysis.results import load_results
from harness.cli import main
from harness.config import RunConfig
from harness.errors import AnalysisError, ConfigError
from harness.record import Telemetry
from tests.factories import PROVENANCE, config, failure, records, timeline, write_results
from tests.unit.diagnose_records import (
    MS,
    Kept,
    blocks,
    changed,
    diagnosed,
    finding,
    first,
    launch,
    rank,
    written,
)
from tests.unit.test_table import check_golden


def horovod(n: int = 2, **more: Any) -> RunConfig:
    return config("horovod", n, backend="mpi", **more)


def base(**more: Any) -> list[Kept]:
    return blocks(config("none", **more), [rank()], is_base=True)


def several() -> list[Kept]:
    """A late rank on the second of two nodes, a long cycle, and a point that loses nothing."""
    late = [rank(sync=60.5)] * 9 + [rank(forward=64.0, sync=0.5)]
    slow = horovod(2, horovod={"cycle_time_ms": 50})
    seen = timeline(slow).model_copy(update={"overheads": {}}).sealed()
    return [
        *base(),
        *blocks(horovod(10), late, isolated=0.4),
        *blocks(slow, [rank(sync=45.0)] * 2, isolated=50.0),
        *blocks(horovod(2), [rank(sync=0.2)] * 2, isolated=0.2),
        Kept(seen, None),
    ]


def text_of(folder: Path, kept: list[Kept], worst: int = 3) -> str:
    return render_diagnosis(diagnose(load_results(written(folder, kept)), worst))


def test_what_is_printed(tmp_path: Path) -> None:
    check_golden("diagnosis.txt", text_of(tmp_path, several()) + "\n")


def test_what_is_printed_of_one_block_without_a_base(tmp_path: Path) -> None:
    ranks = [rank(data=30.0, update=8.0, sync=3.0)] * 2
    kept = [launch(horovod(data="disk"), ranks, isolated=2.5, overheads={"phases": 0.08})]
    check_golden("diagnosis_one_block.txt", text_of(tmp_path, kept) + "\n")


def test_the_worst_come_first_by_efficiency(tmp_path: Path) -> None:
    results = load_results(written(tmp_path, several()))
    found = diagnose(results, worst=9)
    assert [one.rank for one in found] == [1, 2, 3]
    efficiencies = [one.efficiency.estimate for one in found if one.efficiency]
    assert efficiencies == sorted(efficiencies)
    assert len(efficiencies) == 3
    ranking = found[0].ranking
    assert (ranking.points, ranking.over_half, ranking.over_tenth) == (3, 2, 2)
    assert ranking.rule == "lowest efficiency"
    assert len(diagnose(results, worst=1)) == 1


def test_without_a_base_by_the_share_that_is_no_compute(tmp_path: Path) -> None:
    kept = [
        *blocks(horovod(2), [rank(sync=1.0)] * 2),
        *blocks(horovod(4), [rank(sync=50.0)] * 4),
    ]
    found = diagnose(load_results(written(tmp_path, kept)), worst=2)
    assert [one.world_size for one in found] == [4, 2]
    assert found[0].ranking.rule.startswith("largest share of the step outside forward")


def test_of_bases_alone_the_bases_are_diagnosed(tmp_path: Path) -> None:
    """A sweep over batches on one device has nothing but bases."""
    kept = [
        *blocks(config("none", 1, 75), [rank(forward=30.0, backward=0.75)], is_base=True),
        *blocks(config("none", 1, 1500), [rank(forward=30.0, backward=15.0)], is_base=True),
    ]
    found = diagnosed(tmp_path, kept)
    assert found.batch == "batch 75"
    assert found.no_base == "it is the base itself"
    assert first(found).limiter == "launch-bound"


def test_a_missing_base_is_said(tmp_path: Path) -> None:
    text = text_of(tmp_path, blocks(horovod(), [rank(sync=3.0)] * 2))
    assert "no base: no launch is its base none@1" in text
    assert "would tell: the sweep with its base" in text


def test_without_phases_they_are_asked_for_and_nothing_is_guessed(tmp_path: Path) -> None:
    kept = [
        changed(one, phases=None, steps_sha256=None)
        for one in [*base(), *blocks(horovod(), [rank(sync=30.0)] * 2, raw=False)]
    ]
    found = diagnosed(tmp_path, kept)
    assert found.findings == ()
    assert found.loses
    assert [one.add for one in found.missing] == ["measure.instruments: [phases]"]
    assert "what limits it, the records do not tell" in render_diagnosis([found])


def test_neither_base_nor_phases(tmp_path: Path) -> None:
    kept = [changed(one, phases=None) for one in blocks(horovod(), [rank()] * 2, raw=False)]
    found = diagnosed(tmp_path, kept)
    assert found.lost_s is None
    assert found.ranking.unranked == 1
    text = render_diagnosis([found])
    assert text.startswith("1 point, of which the records say too little to rank them.")
    assert "no ideal step" in text


def test_blocks_of_unlike_pace_hide_no_loss_that_their_ratio_shows(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), [rank(sync=20.0)] * 2)])
    assert found.lost_s is not None
    wide = replace(found, lost_s=replace(found.lost_s, low=-1.0, high=1.0))
    assert wide.loses
    assert "has no loss that is shown" not in render_diagnosis([wide])
    assert found.efficiency is not None
    denied = replace(wide, efficiency=replace(found.efficiency, low=0.1, high=1.1))
    assert not denied.loses


def test_a_point_that_loses_nothing_is_not_blamed(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), [rank(forward=1.0)] * 2)])
    text = render_diagnosis([found])
    assert text.startswith("None of 1 point loses more than a tenth of the step.")
    assert "has no loss that is shown: no limiter of any size is shown" in text


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"nothing to diagnose: .* run the sweep first"):
        diagnose(load_results(write_results(tmp_path, [])))


def test_failed_launches_alone_say_their_cause(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"its only launch failed, .* killed by SIGKILL"):
        diagnose(load_results(write_results(tmp_path, [failure(horovod())])))


def test_unlike_machines_are_refused_or_said(tmp_path: Path) -> None:
    other = PROVENANCE | {"cpu_model": "Another CPU"}
    kept = [*base(), *blocks(horovod(), [rank(sync=3.0)] * 2, provenance=other)]
    folder = written(tmp_path, kept)
    with pytest.raises(AnalysisError, match="unlike hardware"):
        load_results(folder)
    (found,) = diagnose(load_results(folder, mixed=True), worst=1)
    assert any(text.startswith("unlike launches mixed: cpu_model") for text in found.cautions)


def test_no_point_is_no_question(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one point"):
        diagnose(load_results(written(tmp_path, several())), worst=0)


def test_launches_whose_block_has_no_base_do_not_count(tmp_path: Path) -> None:
    kept = [*base()[:2], *blocks(horovod(), [rank(sync=30.0)] * 2)]
    found = diagnosed(tmp_path, kept)
    assert first(found).time_s.n == 2
    assert "1 of 3 launches has no base in its block" in found.cautions


def telemetry_of(utilisation: float) -> Telemetry:
    device = {
        "index": 0, "uuid": "GPU-0", "name": "Test GPU", "samples": 50,
        "utilisation_mean": utilisation, "sm_activity_mean": 0.07, "memory_used_max_bytes": 1,
        "power_mean_w": 100.0, "energy_j": 1.0, "energy_per_sample_j": 1.0,
        "sm_clock_mean_mhz": 1000.0, "throttle_reasons": ["power cap"],
    }  # fmt: skip
    node = {
        "host": "node0", "samples": 50, "interval_s": 0.1, "cpu_utilisation_mean": 0.5,
        "rank_cpu_mean": [1.0], "rank_rss_max_bytes": [1], "devices": [device],
    }  # fmt: skip
    return Telemetry.model_validate(
        {"nodes": [node], "power_mean_w": 100.0, "energy_per_sample_j": 1.0}
    )


def test_an_idle_gpu_that_waits_for_nothing_is_launch_bound(tmp_path: Path) -> None:
    """Idle for 80 % of 10 ms, of which 0.5 ms data and 2 ms exposed sync are explained."""
    kept = []
    for one in blocks(horovod(), [rank(0.5, 3.0, 4.0, 2.0, 0.5)] * 2):
        resolved = one.record.resolved.model_copy(update={"device": "cuda"})
        kept.append(changed(one, resolved=resolved, telemetry=telemetry_of(0.2)))
    found = diagnosed(tmp_path, kept)
    bound = finding(found, "launch-bound")
    assert bound.time_s.estimate == pytest.approx(1.01 * 5.5 * MS)
    assert "a kernel ran on the GPU 20 % of the time" in bound.evidence
    assert "multiprocessors were busy 7 % of the time" in bound.evidence


def test_synthetic_sweeps_without_raw_steps_are_diagnosed(tmp_path: Path) -> None:
    folder = write_results(tmp_path, records((1, 2, 16), blocks=3))
    found = diagnose(load_results(folder), worst=2)
    assert [one.world_size for one in found] == [16, 16]
    assert all(one.findings for one in found)
    assert found[0].placement == "8+8"


def test_every_limiter_has_evidence_knobs_and_a_meaning() -> None:
    assert set(_EVIDENCE) == set(_KNOBS) == set(LIMITERS)
    assert all(one.meaning for one in LIMITERS.values())


def test_every_knob_is_a_key_of_a_config(tmp_path: Path) -> None:
    """A key that the config does not know would be refused."""
    known = {"placement", "backend", "engine", "batch_size", "global_batch_size", "data"}
    known |= {"cores_per_rank", "loader.workers", "loader.prefetch", ""}
    measure = RunConfig.model_fields["measure"].default
    sections = {"horovod": RunConfig.model_fields["horovod"].default, "measure": measure}
    sections["execution"] = RunConfig.model_fields["execution"].default
    for section, model in sections.items():
        known |= {f"{section}.{key}" for key in type(model).model_fields}
    for one in diagnose(load_results(written(tmp_path, several())), worst=3):
        for each in one.findings:
            assert each.knobs
            assert {knob.key for knob in each.knobs} <= known


def test_as_json_numbers_are_numbers(tmp_path: Path) -> None:
    found = json.loads(json_text(diagnose(load_results(written(tmp_path, several())))))
    assert [one["rank"] for one in found] == [1, 2, 3]
    late = found[0]["findings"][0]
    assert late["limiter"] == "stragglers"
    assert math.isclose(late["time_s"]["estimate"], 1.01 * 60 * MS)
    assert late["verdict"] == "shown"


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "results" / "s", several())
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", "s", "--worst", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 of 3 points lose more than half of the step.")
    assert main(["diagnose", "s", "--json", "--worst", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["diagnose", "nowhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
