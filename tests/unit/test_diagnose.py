"""Each limiter in records that have it, by values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.diagnose import render_diagnosis
from harness.analysis.diagnose.lateness import Spread
from harness.analysis.diagnose.parts import Account, Ideal, Known, Look, Wire, account
from harness.analysis.diagnose.who import who
from harness.analysis.points import Launch
from harness.config import RunConfig
from tests.factories import PROVENANCE, ablation, config, timeline
from tests.unit.diagnose_records import (
    MS,
    STEPS,
    Kept,
    blocks,
    changed,
    diagnosed,
    finding,
    first,
    launch,
    rank,
)

MEAN = 1.01  # of the factors of three blocks
SLOW_FOR_OTHERS = rank(sync=2.0)
PAIR = [SLOW_FOR_OTHERS, SLOW_FOR_OTHERS]


def horovod(n: int = 2, **more: Any) -> RunConfig:
    return config("horovod", n, backend="mpi", **more)


def base(count: int = 3, **more: Any) -> list[Kept]:
    """A step of 9.6 ms."""
    made = config("none", **more)
    return blocks(made, [rank()], count, is_base=True)


def cycle(ms: float) -> dict[str, Any]:
    return {"horovod": {"cycle_time_ms": ms}}


def ms(value: float) -> Any:
    """A mean over the three blocks, in seconds."""
    return pytest.approx(MEAN * value * MS, rel=1e-6, abs=1e-12)


def test_a_late_rank_has_its_wait_and_its_own_long_phase(tmp_path: Path) -> None:
    """Rank 1 is 60 ms longer in forward: half of it is wait, half in the mean of forward."""
    ranks = [rank(sync=60.5), rank(forward=64.0, sync=0.5)]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks, isolated=0.4)])
    late = first(found)
    assert late.limiter == "stragglers"
    assert late.time_s.estimate == ms(60)
    assert late.verdict == "shown"
    assert found.lost_s is not None
    assert found.lost_s.estimate == ms(60.5)
    assert late.share_of_lost == pytest.approx(60 / 60.5)
    assert finding(found, "contention").time_s.estimate == ms(0)
    assert f"rank 1 is last in 100 % of {3 * STEPS} marked steps" in late.evidence
    assert "its forward takes 64.6 ms, the others' 4.04 ms" in late.evidence
    assert "rank 1" in late.knobs[0].action


def test_a_late_update_of_one_rank_is_a_straggler_too(tmp_path: Path) -> None:
    ranks = [rank(sync=10.0), rank(update=10.5)]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks)])
    assert first(found).limiter == "stragglers"
    assert first(found).time_s.estimate == ms(10)
    assert finding(found, "update").time_s.estimate == ms(0)
    assert any("its update takes" in text for text in first(found).evidence)


def test_jitter_is_wait_of_no_one_rank(tmp_path: Path) -> None:
    """Every second step another rank is 10 ms longer: in both means, so it is no rank's own."""
    odd = np.arange(STEPS) % 2
    ranks = [
        rank(backward=5 + 10 * odd, sync=0.5 + 10 * (1 - odd)),
        rank(backward=5 + 10 * (1 - odd), sync=0.5 + 10 * odd),
    ]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks)])
    late = finding(found, "stragglers")
    assert late.time_s.estimate == ms(5)
    assert any(text.startswith("no one rank") for text in late.evidence)
    assert not any("look at rank" in knob.action for knob in late.knobs)


def test_few_steps_name_no_rank(tmp_path: Path) -> None:
    """Last in 14 of 20 steps is less than three quarters, which of two ranks is said to be late."""
    often = (np.arange(STEPS) < 14).astype(float)
    ranks = [rank(sync=10 * often), rank(sync=10 * (1 - often))]
    found = diagnosed(tmp_path, [*base(), launch(horovod(), ranks)])
    (text,) = [t for t in finding(found, "stragglers").evidence if t.startswith("no one rank")]
    assert "rank 1 is last in 70 % of 20 steps, by chance 50 %" in text


def test_of_four_ranks_the_typical_one_is_the_reference(tmp_path: Path) -> None:
    """One slow rank of four: mean wait 3/4 of 40 ms, and 1/4 of it in the mean of data."""
    ranks = [rank(sync=40.5)] * 3 + [rank(data=40.1, sync=0.5)]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(4), ranks)])
    assert first(found).limiter == "stragglers"
    assert first(found).time_s.estimate == ms(40)
    assert any(text.startswith("rank 3 is last in 100 %") for text in first(found).evidence)


def test_without_raw_steps_the_wait_stays_and_its_rank_is_asked_for(tmp_path: Path) -> None:
    ranks = [rank(sync=60.5), rank(forward=64.0, sync=0.5)]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks, raw=False)])
    assert finding(found, "stragglers").time_s.estimate == ms(30)
    assert finding(found, "contention").time_s.estimate == ms(30)
    assert "which rank is late" in [one.question for one in found.missing]


def test_beyond_the_isolated_all_reduce_it_is_negotiation(tmp_path: Path) -> None:
    """Transfer 20 ms, isolated 3 ms, cycle 1 ms: 17 negotiation, 1 on the wire, 2 either."""
    ranks = [rank(sync=20.0)] * 2
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks, isolated=3.0)])
    assert first(found).limiter == "negotiation"
    assert first(found).time_s.estimate == ms(17)
    least = 3.0 - 2 / MEAN  # a cycle is no slower in a slow block
    assert finding(found, "transfer").time_s.estimate == ms(least)
    assert finding(found, "sync").time_s.estimate == ms(3 - least)
    assert first(found).knobs[0].key == "horovod.cycle_time_ms"


def test_as_long_as_isolated_it_is_the_wire(tmp_path: Path) -> None:
    ranks = [rank(sync=50.0)] * 2
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks, isolated=50.0)])
    assert first(found).limiter == "transfer"
    assert first(found).time_s.estimate == ms(50 - 2 / MEAN)
    assert "614 kB at 12.2 MB/s bus bandwidth (isolated)" in first(found).evidence
    assert not [one for one in found.missing if "wire" in one.question]


def test_an_isolated_all_reduce_of_one_cycle_tells_nothing(tmp_path: Path) -> None:
    """A cycle of 50 ms makes any small all-reduce take 50 ms."""
    ranks = [rank(sync=45.0)] * 2
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(**cycle(60.0)), ranks, isolated=50.0)])
    assert first(found).limiter == "sync"
    assert first(found).time_s.estimate == ms(45)
    (asked,) = [one for one in found.missing if "wire" in one.question]
    assert "timeline" in asked.add


def test_a_shorter_cycle_beside_it_tells(tmp_path: Path) -> None:
    slow = blocks(horovod(**cycle(60.0)), [rank(sync=45.0)] * 2, isolated=50.0)
    fast = blocks(horovod(), [rank(sync=3.0)] * 2, isolated=2.0)
    found = diagnosed(tmp_path, [*base(), *slow, *fast])
    assert "cycle 60 ms" in found.label
    assert first(found).limiter == "negotiation"
    assert first(found).time_s.estimate == ms(43)
    assert any(text.startswith("with a cycle of 1 ms: transfer") for text in first(found).evidence)


def test_a_longer_cycle_beside_it_does_not_loosen_what_is_known(tmp_path: Path) -> None:
    """Isolated 90 ms with a cycle of 50 ms would bound the wire to 40 ms, were it no scatter."""
    fast = blocks(horovod(), [rank(sync=20.0)] * 2, isolated=4.0)
    slow = blocks(horovod(**cycle(50.0)), [rank(sync=4.0)] * 2, isolated=190.0)
    found = diagnosed(tmp_path, [*base(), *fast, *slow])
    assert "cycle 1 ms" in found.label
    assert finding(found, "transfer").time_s.estimate == ms(4 - 2 / MEAN)


def test_a_timeline_tells(tmp_path: Path) -> None:
    """It has 650 µs of all-reduce and copies."""
    made = horovod(**cycle(60.0))
    seen = Kept(timeline(made), None)
    kept = [*base(), *blocks(made, [rank(sync=45.0)] * 2, isolated=50.0), seen]
    found = diagnosed(tmp_path, kept)
    assert first(found).limiter == "negotiation"
    assert first(found).time_s.estimate == pytest.approx(MEAN * 45 * MS - 650e-6)
    assert finding(found, "transfer").time_s.estimate == pytest.approx(650e-6)
    assert not finding(found, "transfer").time_s.has_interval  # one launch's, in every block
    assert finding(found, "sync").time_s.estimate == 0
    assert "timeline: negotiation 1.50 ms, queue 40.0 µs, 1.5 all-reduces a step" in [
        *first(found).evidence
    ]


def test_ddp_negotiates_nothing(tmp_path: Path) -> None:
    made = config("ddp", 2, backend="gloo")
    found = diagnosed(tmp_path, [*base(), *blocks(made, [rank(sync=20.0)] * 2, isolated=2.0)])
    assert first(found).limiter == "transfer"
    assert first(found).time_s.estimate == ms(20)


def test_without_marks_ablation_gives_the_sum(tmp_path: Path) -> None:
    made = horovod(workload={"name": "stress_strain", "framework": "tensorflow"})
    bare = dict.fromkeys(
        ("sum_s", "forward_s", "backward_s", "exposed_sync_s", "transfer_s", "wait_s", "update_s")
    )
    difference = ablation(12 * MS, 0.0).model_copy(
        update={"exposed_sync_s": None, "interference_s": None}
    )
    kept = []
    for one in blocks(made, [rank(sync=12.0)] * 2, raw=False):
        assert one.record.phases is not None
        phases = one.record.phases.model_copy(update=bare)
        kept.append(changed(one, phases=phases, ablation=difference))
    found = diagnosed(
        tmp_path, [*base(workload={"name": "stress_strain", "framework": "tensorflow"}), *kept]
    )
    assert first(found).limiter == "sync"
    assert first(found).time_s.estimate == pytest.approx(12 * MS)
    (asked,) = [one for one in found.missing if "cannot mark" in one.question]
    assert asked.question.startswith("forward, backward, exposed sync, update:")


def test_data_that_only_the_point_waits_for_is_lost(tmp_path: Path) -> None:
    made = {"data": "disk"}
    ranks = [rank(data=30.1)] * 2
    found = diagnosed(tmp_path, [*base(**made), *blocks(horovod(**made), ranks)])
    assert first(found).limiter == "data"
    assert first(found).time_s.estimate == ms(30)
    assert [knob.key for knob in first(found).knobs] == [
        "loader.workers",
        "loader.prefetch",
        "data",
    ]
    assert any("measure.instruments: [phases, data]" in one.add for one in found.missing)


def test_what_the_base_waits_for_too_is_shared(tmp_path: Path) -> None:
    """30 ms of 42 in both: no loss of scaling, and yet what limits."""
    slow_base = blocks(config("none"), [rank(data=30.0)], is_base=True)
    found = diagnosed(tmp_path, [*slow_base, *blocks(horovod(), [rank(data=30.0, sync=2.0)] * 2)])
    assert (first(found).limiter, first(found).kind) == ("data", "shared")
    assert first(found).share_of_lost is None
    assert first(found).share_of_step == pytest.approx(30 / 41.5)
    assert finding(found, "data").time_s.estimate == ms(0)
    assert finding(found, "sync").share_of_lost == pytest.approx(1)


def test_a_small_part_that_the_base_has_is_not_named(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), PAIR)])
    assert {one.kind for one in found.findings} == {"lost"}


def test_without_a_base_all_data_and_update_is_lost(tmp_path: Path) -> None:
    ranks = [rank(data=30.0, update=20.0)] * 2
    found = diagnosed(tmp_path, blocks(horovod(), ranks))
    assert [one.limiter for one in found.findings[:2]] == ["data", "update"]
    assert found.base is None
    assert found.lost_s is not None
    assert found.lost_s.estimate == ms(50)
    assert found.ideal_s == ms(9)
    assert "with its base" in found.missing[0].add


def test_an_update_that_does_not_shrink_is_lost_to_strong_scaling(tmp_path: Path) -> None:
    """Global batch 600 on 4: ideal a quarter of 100 + 100 + 40 ms; the update stays 40 ms."""
    whole = rank(data=0.0, forward=100.0, backward=100.0, update=40.0)
    part = rank(data=0.0, forward=25.0, backward=25.0, update=40.0)
    alone = config("none", 1, 600, scaling="strong")
    made = config("horovod", 4, 600, scaling="strong", backend="mpi")
    kept = [*blocks(alone, [whole], is_base=True), *blocks(made, [part] * 4)]
    found = diagnosed(tmp_path, kept)
    assert found.ideal_s == ms(60)
    assert first(found).limiter == "update"
    assert first(found).time_s.estimate == ms(30)
    assert first(found).share_of_lost == pytest.approx(1)


def test_compute_that_no_batch_changes_is_overhead(tmp_path: Path) -> None:
    """50 ms of fixed cost and 0.1 ms a sample, of batches 75 and 150, without a base."""
    kept = [
        *blocks(horovod(batch=75), [rank(forward=25.0, backward=32.5, sync=1.0)] * 2),
        *blocks(horovod(batch=150), [rank(forward=25.0, backward=40.0, sync=1.0)] * 2),
    ]
    found = diagnosed(tmp_path, kept)
    assert found.batch == "batch 75"
    assert first(found).limiter == "launch-bound"
    assert first(found).time_s.estimate == ms(50)
    assert found.ideal_s == ms(7.5)
    assert "1.1 times the time for 2.0 times the samples" in first(found).evidence[0]
    assert first(found).knobs[0].key == "batch_size"


def test_the_nearest_other_batch_counts(tmp_path: Path) -> None:
    """Flat up to 150, in proportion beyond: at 75 it is the flat part that tells."""
    kept = [
        blocks(horovod(batch=b), [rank(forward=0.0, backward=max(15.0, b / 10))] * 2)
        for b in (75, 150, 1200)
    ]
    found = diagnosed(tmp_path, [one for each in kept for one in each])
    assert found.batch == "batch 75"
    assert first(found).time_s.estimate == ms(15)


def test_overhead_is_done_whole_by_every_rank_of_strong_scaling(tmp_path: Path) -> None:
    """40 ms fixed and 0.1 ms a sample on 4 ranks: three quarters of 40 ms are lost."""
    kept = []
    for batch in (400, 800):
        alone = config("none", 1, batch, scaling="strong")
        made = config("horovod", 4, batch, scaling="strong", backend="mpi")
        base_rank = rank(0.0, 40.0, batch / 10, 0.0, 0.0)
        own = rank(0.0, 40.0, batch / 40, 1.0, 0.0)
        kept += [*blocks(alone, [base_rank], is_base=True), *blocks(made, [own] * 4)]
    found = diagnosed(tmp_path, kept)
    assert found.batch == "global batch 400"
    assert first(found).limiter == "launch-bound"
    assert first(found).time_s.estimate == ms(30)
    assert first(found).knobs[0].key == "global_batch_size"
    assert finding(found, "contention").time_s.estimate == ms(0)


def test_without_a_second_batch_overhead_of_strong_scaling_is_not_called_contention(
    tmp_path: Path,
) -> None:
    """The same ranks with one batch: overhead done whole and a slower pace look alike."""
    alone = config("none", 1, 400, scaling="strong")
    made = config("horovod", 4, 400, scaling="strong", backend="mpi")
    kept = blocks(alone, [rank(0.0, 40.0, 40.0, 0.0, 0.0)], is_base=True)
    kept += blocks(made, [rank(0.0, 40.0, 10.0, 1.0, 0.0)] * 4)
    found = diagnosed(tmp_path, kept)
    assert first(found).limiter == "compute"
    assert first(found).time_s.estimate == ms(30)
    assert not any(one.limiter == "contention" for one in found.findings)
    assert any("a second global_batch_size" in one.add for one in found.missing)
    assert "limited by compute that did not shrink with the batch" in render_diagnosis([found])


def test_overhead_of_weak_scaling_is_the_bases_too(tmp_path: Path) -> None:
    kept = []
    for batch in (75, 150):
        own = rank(forward=30.0, backward=batch / 100)
        kept += blocks(config("none", 1, batch), [own], is_base=True)
        kept += blocks(horovod(batch=batch), [own | {"exposed_sync_s": 3.0}] * 2)
    found = diagnosed(tmp_path, kept)
    assert (first(found).limiter, first(found).kind) == ("launch-bound", "shared")
    assert first(found).time_s.estimate == ms(30)
    assert finding(found, "sync").share_of_lost == pytest.approx(1)


def test_a_second_batch_is_asked_for(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, blocks(horovod(), PAIR))
    (asked,) = [one for one in found.missing if "launch-bound" in one.question]
    assert "batch_size" in asked.add


def test_an_ablation_tells_interference_from_the_rest(tmp_path: Path) -> None:
    """10 ms of compute beyond the base's, of which the all-reduce's absence saves 8."""
    ranks = [rank(backward=15.0, sync=2.0)] * 2
    kept = blocks(horovod(), ranks, ablation=ablation(10 * MS, 2 * MS))
    found = diagnosed(tmp_path, [*base(), *kept])
    assert first(found).limiter == "interference"
    assert first(found).time_s.estimate == pytest.approx(8 * MS)
    assert finding(found, "contention").time_s.estimate == pytest.approx((MEAN * 10 - 8) * MS)
    assert "measure.instruments" not in {one.key for one in finding(found, "contention").knobs}


def test_one_launch_knows_the_error_of_its_ablation(tmp_path: Path) -> None:
    kept = [launch(horovod(), PAIR, ablation=ablation(10 * MS, 2 * MS))]
    one = finding(diagnosed(tmp_path, [*base(1), *kept]), "interference")
    assert one.verdict == "shown"
    assert (one.time_s.low, one.time_s.high) == (pytest.approx(7.8e-3), pytest.approx(8.2e-3))


@pytest.mark.parametrize(
    ("cores", "limiter", "said"),
    [(64, "contention", False), (2, "contention", False), (1, "oversubscription", True)],
)
def test_more_ranks_than_cores(tmp_path: Path, cores: int, limiter: str, said: bool) -> None:
    here = PROVENANCE | {"cores": cores}
    ranks = [rank(forward=14.0)] * 2
    alone = blocks(config("none"), [rank()], is_base=True, provenance=here)
    found = diagnosed(tmp_path, [*alone, *blocks(horovod(), ranks, provenance=here)])
    assert first(found).limiter == limiter
    assert first(found).time_s.estimate == ms(10)
    told = "2 ranks on the 1 cores of a node"
    assert (told in first(found).evidence) == said
    assert any(told in text for text in found.cautions) == said


def test_contention_asks_for_an_ablation(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), [rank(forward=14.0)] * 2)])
    assert any("ablation" in one.add for one in found.missing)


def test_the_instruments_own_cost(tmp_path: Path) -> None:
    """A tenth of a step of 11 ms, known to half a percent of a step."""
    kept = launch(
        horovod(), PAIR, overheads={"telemetry": 0.25}, overhead_errors={"telemetry": 0.05}
    )
    found = diagnosed(tmp_path, [kept])
    one = finding(found, "instrument")
    plain_s = 11.6 * MS / 1.25
    assert one.time_s.estimate == pytest.approx(0.25 * plain_s)
    assert one.time_s.low == pytest.approx(0.15 * plain_s)
    assert one.verdict == "shown"


def test_a_cost_that_the_base_has_too_is_no_loss(tmp_path: Path) -> None:
    sampled = {"overheads": {"telemetry": 0.25}}
    alone = launch(config("none"), [rank()], is_base=True, **sampled)
    found = diagnosed(tmp_path, [alone, launch(horovod(), [rank()] * 2, **sampled)])
    one = finding(found, "instrument")
    assert one.time_s.estimate == pytest.approx(0, abs=1e-12)
    assert one.verdict == "not shown"


def test_what_no_phase_has_is_said(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), [rank()] * 2, between=7.0)])
    assert first(found).limiter == "unmarked"
    assert first(found).time_s.estimate == ms(7)


def test_a_mixture_is_divided_and_ordered(tmp_path: Path) -> None:
    ranks = [
        rank(data=4.1, sync=11.0, update=1.5),
        rank(data=4.1, forward=10.0, sync=5.0, update=1.5),
    ]
    found = diagnosed(tmp_path, [*base(), *blocks(horovod(), ranks, isolated=0.2)])
    told = [(one.limiter, one.time_s.estimate) for one in found.limits]
    assert [name for name, _ in told[:3]] == ["stragglers", "negotiation", "data"]
    assert [time for _, time in told[:3]] == [ms(6), ms(4.8), ms(4)]
    assert finding(found, "update").time_s.estimate == ms(1)
    parts = sum(one.time_s.estimate for one in found.findings)
    assert found.lost_s is not None
    assert parts == pytest.approx(found.lost_s.estimate)


def test_an_interval_that_reaches_zero_shows_nothing(tmp_path: Path) -> None:
    """Wait of 20, 0 and 2 ms in three blocks: a mean that says nothing."""
    kept = [
        launch(horovod(), [rank(sync=2 + wait, forward=4.0), rank(sync=2.0, forward=4.0 + wait)], b)
        for b, wait in enumerate((20.0, 0.0, 2.0))
    ]
    alone = [launch(config("none"), [rank()], b, is_base=True) for b in range(3)]
    found = diagnosed(tmp_path, [*alone, *kept])
    late = finding(found, "stragglers")
    assert late.time_s.estimate > finding(found, "sync").time_s.estimate
    assert late.verdict == "not shown"
    assert late not in found.limits
    assert first(found).limiter == "sync"
    assert not found.loses
    assert first(found).share_of_lost is None


def test_a_point_faster_than_its_base_loses_nothing(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path, [*base(), *blocks(horovod(), [rank(forward=1.0, backward=1.0)] * 2)]
    )
    assert found.lost_s is not None
    assert found.lost_s.estimate == ms(-7)
    assert not found.loses
    assert finding(found, "contention").verdict == "not shown"


TIMES = st.floats(0, 0.1, allow_nan=False)


@st.composite
def looks(draw: st.DrawFn, reduces: bool = True) -> Look:
    names = ("data_s", "forward_s", "backward_s", "transfer_s", "wait_s", "update_s")
    found: dict[str, Any] = {name: draw(TIMES) for name in names}
    total = sum(found.values()) - (0.0 if reduces else found["transfer_s"] + found["wait_s"])
    if not reduces:
        found |= {"transfer_s": None, "wait_s": None}
    rest = dict.fromkeys(
        ("allreduce_p50_s", "ablation_difference_s", "interference_s", "skew_s", "clock_wait_s",
         "feed_warm_s", "feed_cold_s", "exposed_sync_s")
    )  # fmt: skip
    known = {"block": ("a", 0), "run_id": "r", "throughput_samples_per_s": 1.0, "speedup": None,
             "step_s": total + draw(TIMES) + 1e-6, "epoch_s": 1, "phase_sum_s": total}  # fmt: skip
    fields = Launch.__dataclass_fields__
    return Look(Launch(**{k: v for k, v in (rest | found | known).items() if k in fields}))


@settings(max_examples=60, deadline=None)
@given(
    own=looks(),
    base=looks(reduces=False),
    part=st.sampled_from([1.0, 0.5, 0.125]),
    fixed=st.none() | TIMES,
    most=st.none() | TIMES,
    share=st.floats(0, 1),
)
def test_with_a_base_the_parts_add_up_to_the_lost_time(
    own: Look, base: Look, part: float, fixed: float | None, most: float | None, share: float
) -> None:
    efficiency = part * base.launch.step_s / own.launch.step_s
    wire = None if most is None else Wire(share * most, most)
    made: Account = account(own, Ideal(part, base, True, efficiency), Known(fixed, wire))
    assert made.lost_s is not None
    assert sum(made.lost.values()) == pytest.approx(made.lost_s, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(own=looks(), fixed=st.none() | TIMES)
def test_without_a_base_too(own: Look, fixed: float | None) -> None:
    made = account(own, Ideal(1.0, None), Known(fixed))
    assert made.lost_s is not None
    assert sum(made.lost.values()) == pytest.approx(made.lost_s, abs=1e-9)


@pytest.mark.parametrize(
    ("steps", "share", "ranks", "named"),
    [
        (5, 1.0, 2, False),  # by chance once in 16 times
        (8, 1.0, 2, True),  # once in 128
        (20, 0.7, 2, False),  # below three quarters
        (20, 0.9, 2, True),
        (5, 0.6, 8, False),  # 3 of 5 of eight ranks: once in 8 times for any of them
        (50, 0.6, 8, True),
        (2000, 0.8, 2, True),
    ],
)
def test_a_rank_is_named_by_no_chance(steps: int, share: float, ranks: int, named: bool) -> None:
    rest = (1 - share) / (ranks - 1)
    seen = Spread(
        steps=steps,
        own_s=(1.0,) * (ranks - 1) + (2.0,),
        phases={"data_s": (0.1,) * (ranks - 1) + (1.1,)},
        last=(rest,) * (ranks - 1) + (share,),
    )
    found = who([seen])
    assert found is not None
    assert (found.rank, found.named) == (ranks - 1, named)
    assert (found.phase == "data_s") == named


def test_a_backend_is_advised_only_where_it_can_be_and_was_not_measured(tmp_path: Path) -> None:
    slow = [rank(sync=20.0)] * 2

    def actions(name: str, *engines: tuple[str, str]) -> list[str]:
        kept = [
            one
            for engine, backend in engines
            for one in blocks(config(engine, 2, backend=backend), slow, isolated=30.0)
        ]
        found = diagnosed(tmp_path / name, [*base(), *kept])
        return [knob.action for knob in finding(found, "sync").knobs if knob.key == "backend"] + [
            knob.action for knob in finding(found, "transfer").knobs if knob.key == "backend"
        ]

    assert actions("alone", ("horovod", "gloo")) == ["mpi: measure it beside this one"]
    (both,) = actions("both", ("horovod", "gloo"), ("horovod", "mpi"))
    assert "compare with backend=gloo backend=mpi" in both
    made = blocks(config("ddp", 2, backend="gloo"), slow, isolated=2.0)
    ddp = finding(diagnosed(tmp_path / "ddp", [*base(), *made]), "transfer")
    assert "backend" not in {knob.key for knob in ddp.knobs}
