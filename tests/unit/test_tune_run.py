"""A whole tuning with launches of a stub: search, validation, preset, and the same once more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.config import HorovodTuning, RunConfig, expand, parse_sweep
from harness.config.tuning_presets import (
    load_tuning_preset,
    preset_about,
    tuning_preset_names,
)
from harness.config.yaml_dialect import load_text
from harness.detect import Host, Machine, Mpi
from harness.errors import ConfigError, LaunchError, StoreError
from harness.runner import listing
from harness.store import Store
from harness.tuner import state
from harness.tuner.outcome import Outcome
from harness.tuner.tell import as_data, render
from harness.tuning import AUTOTUNE_STEPS
from tests.unit.stub_sweep import MACHINE
from tests.unit.tune_stub import Launches, Notes, request, tuned

NAME = "tune-stress_strain"


def rate(config: RunConfig, repeat: int) -> float:
    """Cycle time and groups matter; each block is a per mille faster than the one before."""
    tuning = config.horovod
    value = 1000 - 50 * min(tuning.cycle_time_ms, 5) - 5 * abs(tuning.groups - 4)
    return (800 if tuning.autotune else value) * (1 + repeat / 1000)


def noisy(config: RunConfig, repeat: int) -> float:
    """As ``rate``, and no two ratios are alike."""
    order = hash((config.horovod.cycle_time_ms, repeat)) % 7
    return rate(config, repeat) * (1 + order / 1e4)


def stored(results: Path, name: str = NAME) -> Store:
    return Store.open(results / name)


def validations(results: Path) -> list[Path]:
    return sorted(results.glob(f"{NAME}-validation-*"))


def test_the_best_of_the_search_is_validated_and_written(tmp_path: Path) -> None:
    launches = Launches(noisy)
    found = tuned(request(), launches, tmp_path)
    assert found.exit_code == 0
    assert found.winner is not None
    best = max(found.trials, key=lambda trial: trial.rate or 0.0)
    assert found.winner == best.tuning
    assert found.knobs["cycle_time_ms"] < 1
    assert found.over_default is not None
    assert found.over_default.says == "gain"
    wanted = rate(_config(found.winner), 0) / rate(_config(HorovodTuning()), 0)
    assert found.over_default.ratio.estimate == pytest.approx(wanted, rel=2e-3)
    assert [(arm.name, arm.blocks) for arm in found.arms] == [("default", 3), ("winner", 3)]
    # 12 trials, each once; two arms of three blocks, in a folder of their own.
    assert [repeat for _, repeat in launches.asked] == [0] * 12 + [0, 0, 1, 1, 2, 2]
    assert len(stored(tmp_path).done_ids()) == 12
    (validation,) = validations(tmp_path)
    assert found.validation == validation
    assert len(Store.open(validation).done_ids()) == 6
    assert found.trials[0].tuning == HorovodTuning()


def _config(tuning: HorovodTuning) -> RunConfig:
    return RunConfig(workload={"name": "stress_strain"}, batch_size=20, horovod=tuning)


def test_the_preset_says_where_it_is_from_and_makes_the_winner(tmp_path: Path) -> None:
    found = tuned(request(), Launches(noisy), tmp_path)
    path = tmp_path / NAME / "tuned.yaml"
    assert found.preset == path
    about = preset_about(str(path))
    gain = found.over_default
    assert gain is not None
    assert about == (
        "hvdscale tune 2026-01-02: stress_strain, 2 ranks (1x2), batch 20 a rank, backend gloo, "
        f"Test CPU 3000. Gain over the default: {gain.ratio.estimate:.3f} of its throughput (95% "
        f"interval {gain.ratio.low:.3f} to {gain.ratio.high:.3f}, 3 blocks)."
    )
    (point,) = expand(
        parse_sweep(
            {
                "name": "s",
                "workload": "stress_strain",
                "batch_size": 20,
                "base": None,
                "horovod": {"preset": str(path)},
            }
        )
    ).points
    assert point.horovod == found.winner


def test_the_same_command_does_nothing_again(tmp_path: Path) -> None:
    first = tuned(request(), Launches(noisy), tmp_path)
    path = tmp_path / NAME / "tuned.yaml"
    text, again = path.read_bytes(), Launches(noisy)
    second = tuned(request(), again, tmp_path)
    assert again.asked == []
    assert second == first
    assert path.read_bytes() == text


def test_more_trials_go_on_from_those_that_are_there(tmp_path: Path) -> None:
    first = tuned(request(trials=5), Launches(noisy), tmp_path)
    launches = Launches(noisy)
    more = tuned(request(trials=9), launches, tmp_path)
    assert more.trials[:5] == first.trials
    assert len(more.trials) == 9
    search = [config for config, _ in launches.asked if config.measure.warmup_steps][:4]
    assert [config.horovod for config in search] == [trial.tuning for trial in more.trials[5:]]


def test_luck_in_the_search_is_no_gain(tmp_path: Path) -> None:
    """The winner's curse: one launch was lucky, and in the validation nothing is different."""

    def lucky(config: RunConfig, repeat: int) -> float:
        if len(launches.asked) == 4:
            return 2000.0
        return 1000.0 + len(launches.asked) % 3

    launches = Launches(lucky)
    found = tuned(request(trials=8, blocks=5), launches, tmp_path)
    assert found.winner == found.trials[3].tuning
    assert found.over_default is not None
    assert found.over_default.says == "not shown"
    assert found.over_default.ratio.estimate == pytest.approx(1, abs=0.01)
    assert found.preset is not None
    assert "No gain shown over the default" in preset_about(str(found.preset))
    text = render(found)
    assert f"{NAME}: no gain shown: " in text.splitlines()[0]
    assert "the search's own measurements are no part of the gain" in text
    assert found.exit_code == 0


def test_where_the_default_is_the_best_nothing_is_validated(tmp_path: Path) -> None:
    launches = Launches(lambda config, repeat: 2000 if config.horovod == HorovodTuning() else 1000)
    found = tuned(request(), launches, tmp_path)
    assert len(launches.asked) == 12
    assert found.knobs == {}
    assert found.over_default is None
    assert "nothing that was tried was faster than the default" in render(found)
    assert found.preset is not None
    assert load_tuning_preset(str(found.preset)) == {}
    assert "No gain shown" in preset_about(str(found.preset))
    assert not validations(tmp_path)


def test_horovods_autotuner_runs_beside_and_is_given_its_steps(tmp_path: Path) -> None:
    launches = Launches(noisy)
    found = tuned(request(autotune=True), launches, tmp_path)
    own = [config for config, _ in launches.asked if config.horovod.autotune]
    assert len(own) == 3
    assert {config.measure.warmup_steps for config in own} == {AUTOTUNE_STEPS + 20}
    others = {c.measure.warmup_steps for c, _ in launches.asked if not c.horovod.autotune}
    assert others == {20}
    assert {arm.name for arm in found.arms} == {"default", "winner", "autotune"}
    assert found.over_autotune is not None
    assert found.over_autotune.says == "gain"
    assert found.chosen is not None
    assert found.chosen.cycle_time_ms == 2.5
    assert found.searching_still == 0
    assert found.preset is not None
    assert "Gain over Horovod autotuning itself" in preset_about(str(found.preset))
    assert "it chose (block 1) cycle_time_ms 2.5, fusion_threshold_mb 25.7, cache on" in render(
        found
    )
    # Launches for it have longer than others, and all of a sweep have one limit.
    (validation,) = validations(tmp_path)
    kept = load_text((validation / "sweep.yaml").read_text(), "kept")
    assert kept["measure"]["timeout_s"] > 4 * AUTOTUNE_STEPS * (0.05 + 40 / 1000)


def test_an_autotuner_that_is_not_done_is_told(tmp_path: Path) -> None:
    found = tuned(request(autotune=True), Launches(noisy, log="names\n"), tmp_path)
    assert (found.chosen, found.searching_still) == (None, 3)
    assert "in 3 launches it has not logged an end of its search" in render(found)


def test_what_it_would_choose_is_set_so_it_is_left_out(tmp_path: Path) -> None:
    launches = Launches(noisy)
    found = tuned(request("horovod.cycle_time_ms=3", autotune=True), launches, tmp_path)
    assert not any(config.horovod.autotune for config, _ in launches.asked)
    assert {config.horovod.cycle_time_ms for config, _ in launches.asked} == {3.0}
    assert found.no_autotune == "horovod.cycle_time_ms is set, and it would choose that"
    assert found.preset is not None
    assert load_tuning_preset(str(found.preset))["cycle_time_ms"] == 3.0


def test_a_shell_that_fixes_its_knobs_is_refused_at_once(tmp_path: Path) -> None:
    environ = {"HOROVOD_FUSION_THRESHOLD": "1"}
    with pytest.raises(ConfigError, match=r"HOROVOD_FUSION_THRESHOLD=1 .* or give --no-autotune"):
        tuned(request(autotune=True), Launches(noisy), tmp_path, environ=environ)
    tuned(request(trials=1), Launches(noisy), tmp_path, environ=environ)


def failing(config: RunConfig, repeat: int) -> float | None:
    return None if config.horovod.cache_capacity == 0 else noisy(config, repeat)


def test_a_launch_that_fails_is_a_record_and_a_trial_without_a_measurement(tmp_path: Path) -> None:
    launches = Launches(failing)
    found = tuned(request(), launches, tmp_path)
    lost = [trial for trial in found.trials if trial.rate is None]
    assert lost
    assert {trial.cause for trial in lost} == {"it crashed"}
    assert {name for name, _ in stored(tmp_path).attempts()} == {trial.run_id for trial in lost}
    assert len(found.trials) == 12
    assert found.launches_failed == len(lost)
    assert found.exit_code == 1
    assert f"({len(lost)} without a measurement)" in render(found)
    again = Launches(failing)
    assert tuned(request(), again, tmp_path) == found
    assert again.asked == []


def test_a_trial_that_hangs_does_not_take_all_of_the_time(tmp_path: Path) -> None:
    launches = Launches(noisy)
    tuned(request(trials=3), launches, tmp_path / "a")
    assert launches.limits_s[:3] == [600.0, 100.0, 100.0]  # the default took 10 s
    assert set(launches.limits_s[3:]) == {600.0}
    shorter = Launches(noisy)
    tuned(request("measure.timeout_s=70", trials=3), shorter, tmp_path / "b")
    assert shorter.limits_s[:3] == [70.0, 70.0, 70.0]


def test_where_nothing_can_be_measured_that_is_an_error(tmp_path: Path) -> None:
    launches = Launches(lambda config, repeat: None)
    with pytest.raises(
        LaunchError, match=r"none of 4 trials gave a measurement; .* it crashed"
    ) as e:
        tuned(request(trials=4), launches, tmp_path)
    assert e.value.exit_code == 1
    # The cause may be gone when it is tried again.
    launches = Launches(noisy)
    found = tuned(request(trials=4), launches, tmp_path)
    assert len(launches.asked) == 4 + 6
    assert (found.launches_failed, found.exit_code) == (0, 0)


def test_what_failed_in_a_search_that_is_not_over_is_tried_again(tmp_path: Path) -> None:
    def first_time(config: RunConfig, repeat: int) -> float | None:
        return None if len(broken.asked) in (2, 3) else noisy(config, repeat)

    broken = Launches(first_time, interrupt_at=6)
    lost = [t.tuning for t in tuned(request(), broken, tmp_path).trials if t.rate is None]
    assert len(lost) == 2
    rest = Launches(noisy)
    found = tuned(request(), rest, tmp_path)
    assert [config.horovod for config, _ in rest.asked[:2]] == lost
    assert all(trial.rate is not None for trial in found.trials)
    assert found.exit_code == 0


def test_ctrl_c_keeps_everything_and_the_rest_follows(tmp_path: Path) -> None:
    whole = tuned(request(), Launches(noisy), tmp_path / "whole")
    for at in (5, 12, 14):  # in the search, at its end, in the validation
        results = tmp_path / str(at)
        broken = Launches(noisy, interrupt_at=at)
        found = tuned(request(), broken, results)
        assert found.exit_code == 130
        assert found.preset is None
        assert "run it again for the rest" in render(found)
        rest = Launches(noisy)
        again = tuned(request(), rest, results)
        assert again.trials == whole.trials
        assert again.arms == whole.arms
        assert again.exit_code == 0
        assert len(rest.asked) == 18 - (at - 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Launches]:
    """Give the tuner's clock to the launches of the test: they put themselves in."""
    holder: list[Launches] = []
    monkeypatch.setattr(state.time, "monotonic", lambda: holder[0].now_s if holder else 0.0)
    return holder


def test_the_budget_ends_the_search_in_time_for_the_validation(
    tmp_path: Path, clock: list[Launches]
) -> None:
    launches = Launches(noisy)
    clock.append(launches)
    asked = request(budget_s=205.0, trials=None, blocks=5)
    found = tuned(asked, launches, tmp_path)
    # Launches take 10 s: 100 s for the validation leave the search 10 of them.
    assert len(found.trials) == 10
    assert found.ended_by == "its time"
    assert len(launches.asked) == 20
    assert found.spent_s == pytest.approx(200.0)
    assert found.notes == ()
    again = Launches(noisy)
    clock[0] = again
    assert tuned(asked, again, tmp_path) == found
    assert again.asked == []


def test_a_budget_that_is_too_short_says_what_is_left_out(
    tmp_path: Path, clock: list[Launches]
) -> None:
    launches, report = Launches(noisy), Notes()
    clock.append(launches)
    found = tuned(
        request(budget_s=100.0, trials=None, blocks=5, autotune=True), launches, tmp_path, report
    )
    assert found.no_autotune == "the budget has no room for it"
    assert {arm.blocks for arm in found.arms} == {3}
    assert "3 blocks instead of 5, without Horovod's autotuner" in found.notes[0]
    assert found.notes[0] in report.lines
    assert found.spent_s <= 100.0


def test_without_time_for_a_second_trial_nothing_is_claimed(
    tmp_path: Path, clock: list[Launches]
) -> None:
    launches = Launches(noisy)
    clock.append(launches)
    found = tuned(request(budget_s=30.0, trials=None), launches, tmp_path)
    assert len(launches.asked) == 1
    assert "no gain shown: nothing was tried but the default" in render(found)
    assert "will not be kept" in found.notes[0]


GPUS = Machine(
    hosts=(Host("a", 8, 2), Host("b", 8, 2)),
    device="cuda",
    mpi=Mpi("openmpi", "5.0.11", "/bin/mpirun"),
    launchers={name: f"/bin/{name}" for name in ("mpirun", "horovodrun")},
    modules=frozenset({"torch", "horovod"}),
)


def test_presets_come_first_and_settings_that_do_not_go_together_are_no_failures(
    tmp_path: Path,
) -> None:
    """NCCL on two nodes: hierarchical needs the MPI controller, and both are searched."""
    asked = request(
        machine=GPUS, flags={"backend": "nccl", "placement": "2x2"}, trials=60, blocks=2
    )

    def rate_of(config: RunConfig, repeat: int) -> float:
        tuning = config.horovod
        gloo = 300 if tuning.controller == "gloo" else 0
        return noisy(config, repeat) + gloo + 300 * tuning.hierarchical_allreduce

    found = tuned(asked, Launches(rate_of), tmp_path, machine=GPUS)
    origins = [trial.origin for trial in found.trials]
    named = {str(load_tuning_preset(name)): f"preset {name}" for name in tuning_preset_names()}
    assert origins[: len(named) + 1] == ["default", *named.values()]
    assert found.trials[1].tuning.async_completion
    illegal = [trial for trial in found.trials if trial.illegal]
    assert illegal
    for trial in illegal:
        assert trial.rate is None
        assert trial.tuning.controller == "gloo"
        assert "hierarchical_allreduce needs the MPI controller" in trial.cause
    assert {name for name, _ in stored(tmp_path).attempts()} == {t.run_id for t in illegal}
    assert (found.launches_failed, found.exit_code) == (0, 0)


def test_what_is_not_searched_and_why_is_told(tmp_path: Path) -> None:
    report = Notes()
    tuned(request(trials=1), Launches(noisy), tmp_path, report)
    text = "\n".join(report.lines)
    assert "searching cycle_time_ms, fusion_threshold_mb, groups, cache_capacity" in text
    assert "async_completion true is not searched: horovod.async_completion needs a CUDA" in text
    assert "preset latency is not tried: engine horovod with backend gloo cannot use" in text
    assert "compression" not in text
    assert "trial 1, the default: 930 samples/s [10 s]" in text


def test_a_machine_that_would_measure_otherwise_is_refused(tmp_path: Path) -> None:
    """Of a search without a validation: that has the check of every sweep."""
    asked = request("cores_per_rank=fixed", trials=1)
    tuned(asked, Launches(noisy), tmp_path)
    fewer = replace(MACHINE, hosts=(Host("stub", 8, 4),))
    with pytest.raises(StoreError, match="cores_per_rank 1, and would now be with 2") as caught:
        tuned(asked, Launches(noisy), tmp_path, machine=fewer)
    assert "give another --name or --results" in str(caught.value)


def test_json_has_all_of_it(tmp_path: Path) -> None:
    found = tuned(request(autotune=True), Launches(noisy), tmp_path)
    data = json.loads(json.dumps(as_data(found)))
    assert data["exit_code"] == 0
    assert data["winner"]["cycle_time_ms"] == found.knobs["cycle_time_ms"]
    assert data["over_default"]["ratio"]["estimate"] > 1
    assert data["over_default"]["says"] == "gain"
    assert len(data["trials"]) == 12
    assert data["trials"][0]["origin"] == "default"
    assert data["preset"] == str(found.preset)
    assert set(data) == {*Outcome.__dataclass_fields__, "exit_code"}


def test_both_folders_are_results_like_others(tmp_path: Path) -> None:
    tuned(request(), Launches(noisy), tmp_path)
    search = listing.list_sweep(tmp_path / NAME)
    assert sum(point.done for point in search.points) == 12
    validation = listing.list_sweep(validations(tmp_path)[0])
    assert [(point.done, point.asked) for point in validation.points] == [(3, 3)] * 2


def test_another_winner_is_measured_beside_a_default_of_its_own(tmp_path: Path) -> None:
    """Drift between two commands is no gain: what is paired has been measured together."""
    tuned(request(trials=2), Launches(noisy), tmp_path)
    drifted = Launches(lambda config, repeat: 2 * rate(config, repeat))  # a faster hour
    found = tuned(request(trials=6), drifted, tmp_path)
    assert len(validations(tmp_path)) == 2
    assert [(arm.name, arm.blocks) for arm in found.arms] == [("default", 3), ("winner", 3)]
    wanted = rate(_config(found.winner or HorovodTuning()), 0) / rate(_config(HorovodTuning()), 0)
    assert found.over_default is not None
    assert found.over_default.ratio.estimate == pytest.approx(wanted, rel=2e-3)
    # More blocks of the same winner belong to those that are there.
    more = Launches(lambda config, repeat: 2 * rate(config, repeat))
    tuned(request(trials=6, blocks=4), more, tmp_path)
    assert [repeat for _, repeat in more.asked] == [3, 3]
    assert len(validations(tmp_path)) == 2


def test_a_time_limit_given_as_text_does_not_end_the_validation(tmp_path: Path) -> None:
    launches = Launches(noisy)
    found = tuned(request("measure.timeout_s='70'", trials=3), launches, tmp_path)
    assert set(launches.limits_s) == {70.0}
    assert found.over_default is not None


def test_trials_do_not_go_among_the_points_of_a_sweep(tmp_path: Path) -> None:
    tuned(request(trials=3), Launches(noisy), tmp_path)
    (validation,) = validations(tmp_path)
    launches = Launches(noisy)
    with pytest.raises(ConfigError, match="has the results of a sweep; give another --name"):
        tuned(request(flags={"name": validation.name}), launches, tmp_path)
    assert not launches.asked


def test_one_block_is_no_gain(tmp_path: Path) -> None:
    found = tuned(request(blocks=1), Launches(noisy), tmp_path)
    assert found.over_default is not None
    assert found.over_default.says == "cannot tell"
    first, *_ = render(found).splitlines()
    assert first.startswith(f"{NAME}: no gain shown: one block has no interval (")
    assert first.endswith("of the default, 1 block)")


def test_the_preset_is_named_as_yaml_takes_it(tmp_path: Path) -> None:
    out = tmp_path / "mine, {new}: x.yaml"
    found = tuned(request(trials=3), Launches(noisy), tmp_path, out=out)
    (line,) = (line for line in render(found).splitlines() if line.startswith("  preset: "))
    _, _, said = line.rpartition("(horovod: ")
    assert load_text(said.removesuffix(")"), "said") == {"preset": str(out)}
    assert load_tuning_preset(str(out))


FAULTS: dict[tuple[str, ...], str] = {
    **{
        ("-n", "2", "--set", f"{key}={value}"): f"--set {key}: expected keys and values, got"
        for key in ("workload", "measure", "horovod")
        for value in ("null", "5", "[1]")
    },
    ("-n", "2", "--set", "workload=lstm"): "--set workload: expected keys and values, got 'lstm'",
    ("-n", "2", "--set", "workload.name=lstm"): "the workload is stress_strain, as WORKLOAD says",
    ("-n", "2", "--set", "measure.instruments=[timeline]"): "a timeline measures no throughput",
    ("-n", "2", "--seed", str(2**32)): "'--seed'",
    ("-n", "2", "--name", "x" * 81): "name: longer than 80 characters",
    ("--engine", "ddp"): "--engine ddp: there is nothing to tune",
    ("-n", "1"): "placement 1 is one rank, and alone Horovod reduces nothing",
    ("-n", "2", "--placement", "1x2"): "-n and --placement both say",
    ("-n", "2", "--set", "horovod.groups=[1,2]"): "2 points; give one value of every key",
    ("-n", "2", "--set", "measure.blocks=3"): "--set measure.blocks: see --blocks",
    ("-n", "2", "--set", "include=[]"): "--set include: tune measures one point",
    ("-n", "2", "--budget", "soon"): "--budget: 'soon' is no time",
    ("-n", "2", "--name", "a/b"): "cannot name a folder of results",
    (
        "-n",
        "2",
        "--backend",
        "gloo",
        "--out",
        "no/where/t.yaml",
    ): "is no folder that can be written",
    ("-n", "2", "--set", "horovod.autotune=true"): "horovod.autotune is compared with",
    ("-n", "2", "--backend", "nccl"): "engine horovod has no backend nccl on a CPU",
    ("-n", "2", "--set", "horovod.cycletime=1"): "unknown key (did you mean 'cycle_time_ms'?)",
    ("-n", "2", "--set", "horovod.preset=latncy"): "no tuning preset (did you mean 'latency'?)",
    ("-n", "2", "--trials", "0"): "--trials",
}


@pytest.mark.parametrize("argv", FAULTS, ids=" ".join)
def test_a_mistake_is_one_line_before_anything_is_written(
    argv: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.detect.detect_machine", lambda slots=None: _machine())
    assert cli.main(["tune", "stress_strain", *argv]) == 2
    seen: Any = capsys.readouterr()
    (line,) = seen.err.splitlines()
    assert FAULTS[argv] in line
    assert list(tmp_path.iterdir()) == []


def _machine() -> Machine:
    return Machine(
        hosts=(Host("stub", 8, 8),),
        device="cpu",
        launchers={"horovodrun": "/bin/horovodrun"},
        modules=frozenset({"torch", "horovod"}),
    )
