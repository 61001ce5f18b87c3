"""Horovod's timeline per step: golden files whose numbers were worked out by hand, and the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.timeline import PHASES, PhaseTime, Summary, TimelineError, read_summary
from tests.unit.timeline_file import TimelineFile, summary_of

GOLDEN = Path(__file__).parent.parent / "golden" / "timeline"
US = 1e-6


def phase(union_us: float, sum_us: float, entries: float, *names: str) -> PhaseTime:
    return PhaseTime(
        union_s=pytest.approx(union_us * US),
        sum_s=pytest.approx(sum_us * US),
        entries=entries,
        names=names,
    )


def test_two_steps_on_a_cpu() -> None:
    """Step 1 reduces a and b together, then c; step 2 all three. All figures are halves.

    negotiation: a 100–200, b 150–220, c 420–425; a 1100–1110, c 1101–1114, b 1102–1112
    queue: a 200–240, b 220–241, c 425–450; a 1110–1130, b 1112–1131, c 1114–1132
    """
    found = read_summary(GOLDEN / "gloo.json")
    assert found == Summary(
        events=len(json.loads((GOLDEN / "gloo.json").read_text())),
        complete=True,
        steps=2,
        steps_found=2,
        uneven=0,
        span_s=pytest.approx((1282 - 100) / 2 * US),
        negotiation=phase(
            (120 + 5 + 14) / 2, (100 + 70 + 5 + 10 + 10 + 13) / 2, 3, "NEGOTIATE_ALLREDUCE"
        ),
        queue=phase((41 + 25 + 22) / 2, (40 + 21 + 25 + 20 + 19 + 18) / 2, 3),
        copy_in=phase((22 + 12) / 2, (20 + 21 + 3 * 10) / 2, 2.5, "MEMCPY_IN_FUSION_BUFFER"),
        allreduce=phase((102 + 50 + 102) / 2, (100 + 101 + 50 + 3 * 100) / 2, 3, "GLOO_ALLREDUCE"),
        copy_out=phase((13 + 12) / 2, (10 + 12 + 3 * 10) / 2, 2.5, "MEMCPY_OUT_FUSION_BUFFER"),
        data=None,
        stream=None,
        setup=None,
        cycles=1.5,  # at 160, 410 and 1050; 20 is before the first request, 1290 after the end
        cycle_s=pytest.approx((1282 - 100) / 3 * US),
        tensors=3,
        allreduces=1.5,
        tensors_fused=2,
    )


def test_a_cut_off_step_on_a_gpu() -> None:
    """One all-reduce of v and w; a negotiation is open when the file ends at 2050."""
    found = read_summary(GOLDEN / "nccl_cut_off.json")
    assert (found.complete, found.steps, found.uneven) == (False, 1, 0)
    assert found.negotiation == phase(310 + 50, 300 + 210 + 50, 3, "NEGOTIATE_ALLREDUCE")
    assert found.queue == phase(1603 - 1300, (1602 - 1300) + (1603 - 1310), 2)
    assert found.data == phase(
        1511 - 1340,
        (1500 - 1340) + (1400 - 1341) + (1511 - 1401) + (1510 - 1501),
        4,
        "WAIT_FOR_DATA",
        "WAIT_FOR_OTHER_TENSOR_DATA",
    )
    assert found.stream == phase(1601 - 1520, 80 + 80, 2, "QUEUE")
    assert found.setup == phase(1336 - 1325, 10 + 10, 2, "INIT_FUSION_BUFFER")
    assert found.copy_in == phase(19, 18 + 18, 2, "MEMCPY_IN_FUSION_BUFFER")
    assert found.allreduce == phase(201, 200 + 200, 2, "NCCL_ALLREDUCE")
    assert found.copy_out == phase(11, 10 + 10, 2, "MEMCPY_OUT_FUSION_BUFFER")
    assert (found.tensors, found.allreduces, found.tensors_fused) == (2, 1, 2)
    assert found.span_s == pytest.approx((1841 - 1000) * US)
    assert (found.cycles, found.cycle_s) == (0, None)  # marked, but none in the span


def one_tensor(file: TimelineFile, tensor: int, at_us: int) -> None:
    """Negotiated for 10, queued for 5, reduced for 20, done after 40 microseconds."""
    file.begin("NEGOTIATE_ALLREDUCE", at_us, tensor)
    file.end(at_us + 10, tensor)
    file.begin("ALLREDUCE", at_us + 12, tensor)
    file.begin("MPI_ALLREDUCE", at_us + 15, tensor)
    file.end(at_us + 35, tensor)
    file.end(at_us + 40, tensor)


def test_the_parts_of_a_hierarchical_all_reduce_are_one() -> None:
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 0, 1, 2)
    file.end(10, 1, 2)
    file.begin("ALLREDUCE", 20, 1, 2)
    at_us = 30
    for name in (
        "NCCL_REDUCESCATTER",
        "MEMCPY_IN_HOST_BUFFER",
        "MPI_ALLREDUCE",
        "MEMCPY_OUT_HOST_BUFFER",
        "NCCL_ALLGATHER",
    ):
        file.begin(name, at_us, 1, 2)
        file.end(at_us + 10, 1, 2)
        at_us += 20
    file.end(at_us, 1, 2)
    found = summary_of(file.text())
    assert (found.allreduces, found.tensors, found.tensors_fused) == (1, 2, 2)
    assert found.allreduce == phase(
        3 * 11, 6 * 10, 6, "MPI_ALLREDUCE", "NCCL_ALLGATHER", "NCCL_REDUCESCATTER"
    )
    assert found.copy_in == phase(11, 20, 2, "MEMCPY_IN_HOST_BUFFER")
    assert found.copy_out == phase(11, 20, 2, "MEMCPY_OUT_HOST_BUFFER")


def test_other_collectives_have_no_part_in_it() -> None:
    file = TimelineFile()
    file.begin("NEGOTIATE_BROADCAST", 0, 7)
    file.end(100, 7)
    file.begin("BROADCAST", 110, 7)
    file.begin("MPI_BCAST", 120, 7)
    file.cycle(150)
    file.end(200, 7)
    file.end(210, 7)
    one_tensor(file, 1, 1000)
    file.begin("NEGOTIATE_ALLGATHER", 2000, 8)
    file.end(2010, 8)
    file.begin("ALLGATHER", 2011, 8)
    file.begin("ALLOCATE_OUTPUT", 2012, 8)
    file.end(2020, 8)
    file.end(2030, 8)
    found = summary_of(file.text())
    assert found.negotiation == phase(10, 10, 1, "NEGOTIATE_ALLREDUCE")
    assert found.queue == phase(5, 5, 1)
    assert found.allreduce == phase(20, 20, 1, "MPI_ALLREDUCE")
    assert (found.setup, found.copy_in, found.copy_out) == (None, None, None)
    assert found.span_s == pytest.approx(40 * US)
    assert found.cycles == 0  # the only one was before the first request


def test_an_operation_that_fails_ends_the_queue() -> None:
    """Horovod then writes ERROR where the operation's name would be."""
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 0, 1)
    file.end(10, 1)
    file.begin("ERROR", 30, 1)
    file.end(40, 1)
    one_tensor(file, 2, 1000)
    found = summary_of(file.text())
    assert found.queue == phase(20 + 5, 20 + 5, 2)
    assert found.tensors == 1


def test_what_is_open_at_the_end_is_counted_until_then() -> None:
    """Agreed on and never reduced, as where a rank died: it was in the queue for the rest."""
    file = TimelineFile()
    one_tensor(file, 1, 0)
    file.begin("NEGOTIATE_ALLREDUCE", 100, 2)
    file.end(110, 2)
    file.begin("NEGOTIATE_ALLREDUCE", 120, 3)
    file.cycle(200)
    found = summary_of(file.text())
    assert found.queue == phase(5 + 90, 5 + 90, 2)
    assert found.negotiation == phase(10 + 10 + 80, 10 + 10 + 80, 3, "NEGOTIATE_ALLREDUCE")
    assert found.tensors == 1


def test_an_account_that_begins_inside_an_operation() -> None:
    file = TimelineFile()
    file.begin("NEGOTIATE_BARRIER", 0, 9)
    file.end(1, 9)
    file.end(2, 1)  # of what began before the account did
    file.end(3, 1)
    file.begin("ALLREDUCE", 10, 2)  # negotiated before the account began
    file.begin("GLOO_ALLREDUCE", 14, 2)
    file.end(20, 2)
    file.end(22, 2)
    one_tensor(file, 1, 100)
    found = summary_of(file.text())
    assert found.queue == phase(4 + 5, 4 + 5, 2)
    assert found.tensors == 2


def test_steps_are_how_often_the_tensors_of_most_all_reduces_occur() -> None:
    """Three gradients in 5 steps, and 10 losses without a name, each a tensor of its own."""
    file, at_us = TimelineFile(), 0
    for step in range(5):
        for tensor in (1, 2, 3):
            one_tensor(file, tensor, at_us := at_us + 100)
        for loss in (0, 1):
            one_tensor(file, 10 + 2 * step + loss, at_us := at_us + 100)
    found = summary_of(file.text())
    assert (found.steps, found.uneven) == (5, 10)
    assert (found.tensors, found.allreduces) == (5, 5)
    given_steps = summary_of(file.text(), steps=10)
    assert (given_steps.steps, given_steps.steps_found) == (10, 5)
    assert given_steps.tensors == 2.5
    assert given_steps.allreduce == phase(25 * 20 / 10, 25 * 20 / 10, 2.5, "MPI_ALLREDUCE")


EDGES = (
    "negotiation",
    "queue",
    "begun",
    "copy_in",
    "copied",
    "allreduce",
    "reduced",
    "copy_out",
    "copied_out",
    "ended",
)
operations = st.lists(
    st.tuples(
        st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True),
        st.lists(st.integers(0, 9), min_size=len(EDGES), max_size=len(EDGES)),
    ),
    min_size=1,
    max_size=5,
)


@given(operations)
def test_unions_and_sums_are_those_of_the_intervals(
    made: list[tuple[list[int], list[int]]],
) -> None:
    """Against intervals that are merged by sorting."""
    file, now_us = TimelineFile(), 0
    intervals: dict[str, list[tuple[int, int]]] = {name: [] for name in PHASES}
    for tensors, gaps in made:
        at: dict[str, int] = {}
        for edge, gap in zip(EDGES, gaps, strict=True):
            now_us += 5 + gap  # each tensor is a microsecond after the one before
            at[edge] = now_us
        file.begin("NEGOTIATE_ALLREDUCE", at["negotiation"], *tensors)
        file.end(at["queue"], *tensors)
        file.begin("ALLREDUCE", at["begun"], *tensors)
        file.begin("MEMCPY_IN_FUSION_BUFFER", at["copy_in"], *tensors)
        file.end(at["copied"], *tensors)
        file.begin("GLOO_ALLREDUCE", at["allreduce"], *tensors)
        file.end(at["reduced"], *tensors)
        file.begin("MEMCPY_OUT_FUSION_BUFFER", at["copy_out"], *tensors)
        file.end(at["copied_out"], *tensors)
        file.end(at["ended"], *tensors)
        ends = ("queue", "copy_in", "copied", "reduced", "copied_out")
        for name, end in zip(PHASES, ends, strict=True):
            intervals[name] += [(at[name] + n, at[end] + n) for n in range(len(tensors))]
    found = summary_of(file.text(), steps=1)
    for name, pairs in intervals.items():
        of_phase = getattr(found, name)
        assert of_phase.union_s == pytest.approx(merged(pairs) * US)
        assert of_phase.sum_s == pytest.approx(sum(end - start for start, end in pairs) * US)
    assert found.allreduces == len(made)
    assert found.tensors == sum(len(tensors) for tensors, _ in made)


def merged(pairs: list[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for start, end in sorted(pairs):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def test_as_plain_data() -> None:
    found = read_summary(GOLDEN / "gloo.json")
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["allreduce"]["names"] == ["GLOO_ALLREDUCE"]
    assert plain["data"] is None
    assert set(plain) == set(Summary.__dataclass_fields__)


def test_no_all_reduce_at_all() -> None:
    file = TimelineFile()
    file.begin("NEGOTIATE_BROADCAST", 0, 7)
    file.end(100, 7)
    with pytest.raises(TimelineError, match=r"no all-reduce ends .* \(6 events\)"):
        summary_of(file.text())
    with pytest.raises(TimelineError, match="no all-reduce ends in this timeline of Horovod"):
        summary_of(TimelineFile().text().replace(",\n]", "]"))


def test_equal_summaries_compare_by_value() -> None:
    found = read_summary(GOLDEN / "gloo.json")
    assert found != replace(found, tensors=4)
