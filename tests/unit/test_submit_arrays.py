"""From what is missing to job arrays and elements."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import RunConfig
from harness.config.identity import point_id
from harness.config.instruments import is_timeline
from harness.errors import ConfigError
from harness.runner.estimate import START_S, launch_s
from harness.runner.schedule import Work
from harness.submit.arrays import check_times, make_arrays, wanted
from harness.submit.manifest import ArrayManifest, Element
from harness.submit.packing import GENEROUS, MARGIN_S, launch_time_s
from harness.submit.site import Site
from tests.unit.submit_cases import asked_of, gpu_site, make_site, make_sweep, make_work

Arrays = tuple[ArrayManifest, ...]


def arrays_of(
    work: Work, site: Site, *, shared_base: bool = False, points_per_job: int | None = None
) -> Arrays:
    asked, missing = asked_of(work, shared_base=shared_base)
    return make_arrays(
        work,
        site,
        asked,
        missing,
        submission="S",
        data_dir=Path("/data"),
        points_per_job=points_per_job,
    )


def made(site: Site, **keys: Any) -> Arrays:
    return arrays_of(make_work(make_sweep(**keys), site), site)


def configs(array: ArrayManifest, places: tuple[int, ...]) -> list[RunConfig]:
    return [array.configs[place] for place in places]


class TestPlacements:
    def test_each_has_an_array(self) -> None:
        arrays = made(make_site())
        assert [array.placement for array in arrays] == [(1,), (2,), (1, 1)]
        assert [array.number for array in arrays] == [0, 1, 2]
        assert [array.nodes for array in arrays] == [1, 1, 2]
        assert all(len(array.elements) == 2 for array in arrays)
        assert [e.repeat for e in arrays[1].elements] == [0, 1]

    def test_each_element_has_the_base_of_its_points(self) -> None:
        for array in made(make_site()):
            for element in array.elements:
                (base,) = configs(array, element.bases)
                assert (base.engine, base.world_size) == ("none", 1)
                assert [c.engine for c in configs(array, element.points)] == ["horovod"]
                assert array.bases == element.bases

    def test_what_is_frozen(self) -> None:
        site = make_site()
        work = make_work(make_sweep(), site, results=Path("/some/results"))
        array = arrays_of(work, site)[1]
        assert array.results == Path("/some/results/scale")
        assert (array.sweep, array.submission, array.data_dir) == ("scale", "S", Path("/data"))
        assert array.site == site
        assert array.timeout_s == 120
        assert (array.training, array.sequential, array.shared_base) == (False, False, False)
        for config, resolved in zip(array.configs, array.resolved, strict=True):
            assert resolved == work.plan.resolved[point_id(config)]
            assert resolved.launcher in ("srun", "inline")

    def test_a_count_is_placed_on_the_sites_nodes(self) -> None:
        site = gpu_site()
        (array,) = made(site, placement=10, backend="nccl", base=None)
        assert array.placement == array.room == (8, 2)

    def test_a_base_on_a_whole_node_needs_its_devices(self) -> None:
        (array,) = made(make_site(), placement="1x1", base="node")
        assert (array.placement, array.room, array.nodes) == ((1,), (4,), 1)

    def test_a_base_on_more_nodes_needs_those(self) -> None:
        base = {"engine": "horovod", "placement": "2x1"}
        (array,) = made(make_site(), placement="1x2", base=base)
        assert (array.placement, array.room, array.nodes) == ((2,), (2, 1), 2)

    def test_a_long_array_is_split(self) -> None:
        site = make_site(max_array_size=3, time_per_point="1:00", time_per_job="2:00")
        arrays = made(site, placement="1x2", batch_size=[10, 20, 30, 40])
        assert [len(array.elements) for array in arrays] == [3, 3, 2]
        assert [array.number for array in arrays] == [0, 1, 2]
        # Only what its own elements launch.
        assert [len(array.configs) for array in arrays] == [6, 6, 4]


class TestBases:
    ENGINES: ClassVar = {
        "engine": ["none", "horovod"],
        "exclude": [{"engine": "none", "placement": "1x2"}],
    }

    def test_one_that_is_a_point_of_the_element_is_not_there_twice(self) -> None:
        one, two = made(make_site(), placement=["1x1", "1x2"], **self.ENGINES)
        for element in one.elements:
            assert [c.engine for c in configs(one, element.points)] == ["none", "horovod"]
            assert element.bases == ()
        assert [c.engine for c in configs(one, one.bases)] == ["none"]  # and it still is one
        for element in two.elements:
            assert [c.engine for c in configs(two, element.points)] == ["horovod"]
            assert [c.engine for c in configs(two, element.bases)] == ["none"]

    def test_one_that_is_a_point_of_another_element_is_measured_in_both(self) -> None:
        site = make_site(time_per_point="1:00", time_per_job="1:00")
        (array,) = made(site, placement="1x1", engine=["none", "horovod"])
        assert [(len(e.points), len(e.bases)) for e in array.elements] == [(1, 0), (1, 1)] * 2

    def test_points_of_one_base_are_beside_each_other(self) -> None:
        """Three of each batch size, whose base it is, in the order in which axes multiply."""
        site = make_site(time_per_point="1:00", time_per_job="4:00")
        cycles = {"cycle_time_ms": [0.5, 1, 2]}
        keys = {"placement": "1x2", "horovod": cycles, "batch_size": [10, 20]}
        (array,) = made(site, measure={"blocks": 1}, **keys)
        assert [(len(e.points), len(e.bases)) for e in array.elements] == [(3, 1), (3, 1)]

    def test_a_shared_one_has_an_array_of_its_own(self) -> None:
        site = make_site()
        arrays = arrays_of(make_work(make_sweep(), site), site, shared_base=True)
        assert all(element.bases == () for array in arrays for element in array.elements)
        assert all(array.shared_base for array in arrays)
        one, two, _ = arrays
        assert one.placement == (1,)  # the base's, and that of points
        for element in one.elements:
            assert [c.engine for c in configs(one, element.points)] == ["none", "horovod"]
        assert [c.engine for c in configs(one, one.bases)] == ["none"]
        assert two.bases == ()

    def test_a_sweep_without_one(self) -> None:
        for array in made(make_site(), base=None):
            assert all(element.bases == () for element in array.elements)
            assert not array.shared_base


class TestTimes:
    def test_as_many_launches_as_fit(self) -> None:
        """Ten minutes each, an hour a job: five points and their base."""
        site = make_site(time_per_point="10:00", time_per_job="1:00:00")
        sweep = {"placement": "1x2", "horovod": {"cycle_time_ms": [*range(1, 13)]}}
        (array,) = made(site, measure={"blocks": 1, "timeout_s": 3600}, **sweep)
        assert [len(e.points) for e in array.elements] == [5, 5, 2]
        assert [len(e.bases) for e in array.elements] == [1, 1, 1]
        assert array.time_limit_s == 3600 + MARGIN_S

    def test_a_job_has_at_least_one_point(self) -> None:
        site = make_site(time_per_point="10:00", time_per_job="1:00")
        (array,) = made(site, placement="1x2", measure={"blocks": 1, "timeout_s": 3600})
        assert [len(e.points) for e in array.elements] == [1]
        assert array.time_limit_s == 1200 + MARGIN_S

    def test_the_partitions_limit_makes_jobs_shorter(self) -> None:
        site = make_site(time_per_point="10:00", time_per_job="35:00", max_time="35:00")
        sweep = {"placement": "1x2", "batch_size": [10], "horovod": {"cycle_time_ms": [1, 2, 3]}}
        (array,) = made(site, measure={"blocks": 1, "timeout_s": 3600}, **sweep)
        assert [len(e.points) for e in array.elements] == [2, 1]
        assert array.time_limit_s == 35 * 60

    def test_above_the_partitions_limit(self) -> None:
        site = make_site(time_per_point="10:00", time_per_job="20:00", max_time="20:00")
        work = make_work(make_sweep(measure={"timeout_s": 3600}), site)
        for check in (lambda: check_times(work, site, wanted(work)), lambda: arrays_of(work, site)):
            with pytest.raises(ConfigError) as error:
                check()
            assert str(error.value) == (
                "site here: a job of 2 launches of 600 s with 300 s for start and end needs "
                "0:25:00, above max_time 0:20:00; take a shorter time_per_point, a shorter "
                "measure.window_s or measure.timeout_s, or another partition"
            )

    def test_points_per_job(self) -> None:
        site = make_site(time_per_point="10:00", time_per_job="20:00", max_time="1:00:00")
        work = make_work(
            make_sweep(
                placement="1x2",
                horovod={"cycle_time_ms": [1, 2, 3, 4, 5]},
                measure={"blocks": 1, "timeout_s": 3600},
            ),
            site,
        )
        (array,) = arrays_of(work, site, points_per_job=3)
        assert [len(e.points) for e in array.elements] == [3, 2]
        with pytest.raises(ConfigError, match=r"6 launches.*a smaller --points-per-job"):
            arrays_of(work, site, points_per_job=5)

    def test_of_a_launch(self) -> None:
        site = make_site()
        work = make_work(make_sweep(), site)
        point = work.plan.points[0]
        assert launch_time_s(point, work, site) == GENEROUS * launch_s(point.measure)
        # Never longer than a launch is let.
        slow = make_work(make_sweep(measure={"window_s": 100, "timeout_s": 200}), site)
        assert launch_time_s(slow.plan.points[0], slow, site) == 200 + START_S
        known = make_site(time_per_point="1:40")
        assert launch_time_s(point, work, known) == 100
        assert launch_time_s(point, work, make_site(time_per_point=60)) == 120 + START_S

    def test_of_a_training(self) -> None:
        site = make_site()
        work = make_work(make_sweep(), site, training=True)
        assert launch_time_s(work.plan.points[0], work, site) == 120 + START_S
        arrays = arrays_of(work, site)
        assert all(array.training for array in arrays)
        assert all(element.bases == () for array in arrays for element in array.elements)


class TestTimelines:
    KEYS: ClassVar = {"placement": "1x2", "measure": {"instruments": ["phases", "timeline"]}}

    def test_go_with_the_first_block(self) -> None:
        (array,) = made(make_site(), **self.KEYS)
        assert [len(e.timelines) for e in array.elements] == [1, 0]
        assert all(is_timeline(c) for e in array.elements for c in configs(array, e.timelines))

    def test_alone_they_need_no_base(self) -> None:
        site = make_site()
        work = make_work(make_sweep(**self.KEYS), site)
        asked = wanted(work)
        missing = {0: list(asked.timelines)}
        (array,) = make_arrays(work, site, asked, missing, submission="S", data_dir=Path("/d"))
        (element,) = array.elements
        assert element == Element(repeat=0, points=(), bases=(), timelines=(0,))


AXES = st.fixed_dictionaries(
    {
        "placement": st.lists(
            st.sampled_from(["1x1", "1x2", "2x1", "1x4", "2+1", "2x2"]),
            min_size=1,
            max_size=4,
            unique=True,
        ),
        "batch_size": st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True),
        "engine": st.sampled_from([["horovod"], ["none", "horovod"], ["horovod", "ddp"]]),
        "base": st.sampled_from(
            ["none@1", "horovod@1", "node", None, {"engine": "horovod", "placement": "2x1"}]
        ),
        "measure": st.fixed_dictionaries(
            {
                "blocks": st.integers(1, 3),
                "instruments": st.sampled_from([["phases"], ["phases", "timeline"]]),
            }
        ),
    }
)
SITES = st.fixed_dictionaries(
    {
        "time_per_point": st.sampled_from([None, "0:30", "1:30"]),
        "time_per_job": st.sampled_from(["1:00", "5:00", "15:00"]),
        "max_time": st.sampled_from([None, "15:50", "2:00:00"]),
        "max_array_size": st.integers(1, 7),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.data(), AXES, SITES, st.booleans(), st.sampled_from([None, 1, 3]))
def test_every_missing_launch_is_in_one_element(
    data: st.DataObject,
    axes: dict[str, Any],
    keys: dict[str, Any],
    shared_base: bool,
    points_per_job: int | None,
) -> None:
    site = make_site(**keys)
    if "timeline" in axes["measure"]["instruments"]:
        axes = axes | {"placement": [*dict.fromkeys([*axes["placement"], "1x2"])]}
        axes["engine"] = list(dict.fromkeys([*axes["engine"], "horovod"]))
    if "none" in axes["engine"]:
        axes = axes | {"placement": [*dict.fromkeys([*axes["placement"], "1x1"])]}
    work = make_work(make_sweep(**axes), site)
    asked, whole = asked_of(work, shared_base=shared_base)
    missing = {
        repeat: [name for name in names if data.draw(st.booleans())]
        for repeat, names in whole.items()
    }
    arrays = make_arrays(
        work,
        site,
        asked,
        missing,
        submission="S",
        data_dir=Path("/d"),
        points_per_job=points_per_job,
    )
    found: Counter[tuple[int, str]] = Counter()
    base_of = dict(zip(map(point_id, work.plan.points), work.plan.bases, strict=True))
    for array in arrays:
        names = [point_id(config) for config in array.configs]
        assert 1 <= len(array.elements) <= site.max_array_size
        used = {p for e in array.elements for p in (*e.points, *e.bases, *e.timelines)}
        assert used == set(range(len(names)))
        longest_s = 0.0
        for element in array.elements:
            launched = (*element.points, *element.timelines)
            found.update((element.repeat, names[place]) for place in launched)
            assert {array.resolved[place].placement for place in launched} == {array.placement}
            assert len(set(element.bases)) == len(element.bases)
            assert not set(element.bases) & set(element.points)
            needed = {
                point_id(base)
                for place in element.points
                if (base := base_of.get(names[place])) is not None
            }
            here = {names[place] for place in (*element.points, *element.bases)}
            if shared_base:
                assert element.bases == ()
            else:
                assert needed <= here
                assert {names[place] for place in element.bases} <= needed
            all_of = (*launched, *element.bases)
            time_s = sum(launch_time_s(array.configs[place], work, site) for place in all_of)
            longest_s = max(longest_s, time_s)
            for place in all_of:
                room = (*array.room, *(0,) * 9)
                there = array.resolved[place].placement
                assert all(ranks <= room[node] for node, ranks in enumerate(there))
        assert longest_s + MARGIN_S <= array.time_limit_s < longest_s + MARGIN_S + 60
        assert array.time_limit_s % 60 == 0  # what Slurm takes
        assert site.max_time is None or array.time_limit_s <= site.max_time
    assert found == Counter((repeat, name) for repeat, names in missing.items() for name in names)
