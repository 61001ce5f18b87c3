"""What a site may say: times, names, options, and what stands for its machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.config.models import RunConfig
from harness.legal import choose
from harness.submit.site import Site, parse_time_s, time_text

LEAST = {"name": "x", "nodes": 2, "cpus_per_node": 8}


def site(**keys: Any) -> Site:
    return Site.model_validate({**LEAST, **keys})


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90", 5400),
            (90, 5400),
            (" 90 ", 5400),
            ("007", 420),
            ("1:30", 90),
            ("90:00", 5400),
            ("1:30:00", 5400),
            ("100:00:01", 360_001),
            ("0-2", 7200),
            ("1-12", 129_600),
            ("1-2:30", 95_400),
            ("1-02:30:05", 95_405),
            ("1-0", 86_400),
        ],
    )
    def test_slurms_forms(self, text: object, seconds: int) -> None:
        assert parse_time_s(text) == seconds

    @pytest.mark.parametrize(
        "text",
        ["", "1h", "-5", "1e3", 1.5, True, None, "1:60", "1:00:60", "1:90:00", "1-", "-1:00",
         "1:2:3:4", "1-2:3:4:5", "infinite", "1:", ":30", "²", "٣", "1_000", "9999999"],
    )  # fmt: skip
    def test_what_is_none(self, text: object) -> None:
        with pytest.raises(ValueError, match="is not a time: write minutes, hh:mm:ss"):
            parse_time_s(text)

    @given(st.integers(1, 10**8))
    def test_a_limit_is_whole_minutes_and_never_less(self, seconds: int) -> None:
        limit_s = parse_time_s(time_text(seconds))
        assert limit_s % 60 == 0
        assert seconds <= limit_s < seconds + 60

    def test_a_limit_is_what_sbatch_takes(self) -> None:
        assert [time_text(s) for s in (1, 60, 61, 3600, 86_399, 86_400, 90_061)] == [
            *("0:01:00", "0:01:00", "0:02:00", "1:00:00", "1-00:00:00", "1-00:00:00"),
            "1-01:02:00",
        ]

    @given(
        days=st.none() | st.integers(0, 9999),
        parts=st.lists(st.integers(0, 59), min_size=1, max_size=3),
        width=st.sampled_from([1, 2]),
    )
    def test_every_form_is_the_sum_of_its_parts(
        self, days: int | None, parts: list[int], width: int
    ) -> None:
        text = ":".join(f"{part:0{width}d}" for part in parts)
        units_s = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
        if days is not None:
            text, units_s = f"{days}-{text}", (3600, 60, 1)
        expected_s = 86_400 * (days or 0) + sum(
            part * unit_s for part, unit_s in zip(parts, units_s, strict=False)
        )
        assert parse_time_s(text) == expected_s


class TestLimits:
    def test_a_job_takes_an_hour_or_what_the_partition_lets_it(self) -> None:
        assert site().time_per_job == 3600
        assert site(max_time="2:00:00").time_per_job == 3600
        assert site(max_time="30:00").time_per_job == 1800
        assert site(max_time=30).time_per_job == 1800

    @pytest.mark.parametrize("key", ["time_per_job", "time_per_point"])
    def test_more_than_the_partitions_limit(self, key: str) -> None:
        with pytest.raises(ValidationError, match=f"{key}: 2:00:00 is more than max_time, 1:00:00"):
            site(max_time="1:00:00", **{key: "2:00:00"})

    @pytest.mark.parametrize("key", ["time_per_job", "time_per_point", "max_time"])
    def test_no_time_is_zero(self, key: str) -> None:
        with pytest.raises(ValidationError, match="above 0"):
            site(**{key: "0:00"})


class TestValues:
    @pytest.mark.parametrize(
        ("keys", "fault"),
        [
            ({"name": "a b"}, "'a b' is no name"),
            ({"name": "-a"}, "'-a' is no name"),
            ({"nodes": 0}, "greater than 0"),
            ({"partition": ""}, "is empty; leave the key out"),
            ({"partition": "a\nb"}, "should be one line"),
            ({"memory": "64GB"}, "'64GB' is no memory"),
            ({"gres": "gpu:8"}, "'gpu:8' is no name of a GPU.*without a count"),
            ({"gres": "gpu:a100:8"}, "without a count"),
            ({"gres": "gpu a100"}, "is no name of a GPU"),
            ({"launcher": "torchrun"}, "'srun', 'mpirun' or 'horovodrun'"),
            ({"setup": "module load x"}, "valid tuple"),
            ({"setup": ["a\nb"]}, "should be one line"),
            ({"environment": {"A-B": "1"}}, "'A-B' is no name of a variable"),
            ({"environment": {"A": "1\n2"}}, "should be one line"),
            ({"python": "envs/bin/python"}, "is no absolute path"),
            ({"python": "$ENVS/bin/python"}, "is a variable in it not set here"),
            ({"python_by_backend": {"mpi": "~/python"}}, "is no absolute path"),
            ({"python_by_backend": {"ncl": "/python"}}, "'nccl', 'mpi', 'mpi-host' or 'gloo'"),
            ({"data_dir": "data"}, "'data' is no absolute path"),
            ({"scratch": "tmp"}, "'tmp' is no folder of a node"),
            ({"scratch": "~/tmp"}, "is no folder of a node"),
            ({"options": ["-p x"]}, "is no option: write --name or --name=value"),
            ({"options": ["--reservation bench"]}, "is no option"),
            ({"options": ["--partition=x"]}, "--partition is decided by the key partition"),
            ({"options": ["--part=x"]}, "--part is decided by the key partition"),
            ({"options": ["--nodes=3"]}, "decided by the sweep's placement"),
            ({"options": ["--output=x"]}, "decided by hvdscale"),
            ({"options": ["--quiet"]}, "--quiet is decided by hvdscale, which reads sbatch's answ"),
            ({"options": ["--versio"]}, "which reads sbatch's answer"),
            ({"options": ["--clusters=b"]}, "which sees this cluster's queue alone"),
            ({"nodes": 10**9}, "nodes\n.*should be at most 100,000, got 1,000,000,000"),
            ({"account_name": "x"}, "Extra inputs"),
        ],
        ids=str,
    )
    def test_a_fault_is_found(self, keys: dict[str, Any], fault: str) -> None:
        with pytest.raises(ValidationError, match=fault):
            site(**keys)

    def test_what_is_right(self) -> None:
        made = site(
            memory="180g", gres="gpu:nvidia_a100-sxm4.80gb", scratch="$TMPDIR/x",
            options=["--exclude=node7", "--nodelist=n[1-2]", "--export=NONE", "--no-requeue"],
            setup=["source ~/env.sh && echo 'a b'"],
            python="python3.11", environment={"NCCL_DEBUG": ""},
        )  # fmt: skip
        assert made.memory == "180g"
        assert made.options[1] == "--nodelist=n[1-2]"

    def test_json_brings_it_back_to_the_second(self) -> None:
        made = site(
            time_per_point="1:01", time_per_job="1:00:01", max_time="999-23:59:59", setup=["a"],
            environment={"A": "1"}, python_by_backend={"nccl": "/x"}, gpus_per_node=4,
        )  # fmt: skip
        again = Site.model_validate_json(made.model_dump_json())
        assert again == made
        assert (again.time_per_point, again.time_per_job) == (61, 3601)
        assert again.max_time == 999 * 86_400 + 86_399


class TestMachine:
    def test_with_gpus_a_rank_is_a_gpu(self) -> None:
        machine = site(nodes=3, cpus_per_node=48, gpus_per_node=8).machine("/p")
        assert (machine.device, machine.slots, len(machine.hosts)) == ("cuda", 24, 3)
        assert {(host.cores, host.slots) for host in machine.hosts} == {(48, 8)}
        assert len({host.name for host in machine.hosts}) == 3
        assert machine.python == "/p"

    def test_without_a_rank_is_a_cpu(self) -> None:
        machine = site(python="/own", interface="ib0", launcher="mpirun").machine("/p")
        assert (machine.device, machine.slots) == ("cpu", 16)
        assert (machine.python, machine.interfaces, machine.launcher) == (
            "/own",
            ("ib0",),
            "mpirun",
        )

    def test_its_launcher_and_builds_decide(self) -> None:
        machine = site(
            gpus_per_node=4,
            launcher="mpirun",
            python_by_backend={"nccl": "/nccl", "mpi-host": "/mpi"},
        ).machine("/p")
        config = RunConfig.model_validate(
            {"workload": "stress_strain", "placement": "1x2", "batch_size": 75, "engine": "horovod"}
        )
        assert (choose(config, machine).launcher, choose(config, machine).backend) == (
            "mpirun",
            "nccl",
        )
        assert dict(machine.python_by_backend) == {"nccl": "/nccl", "mpi-host": "/mpi"}

    def test_a_site_without_mpi_has_none(self) -> None:
        assert site(mpi="none").machine("/p").mpi is None
        mpi = site(mpi="mpich", mpi_is_cuda_aware=True).machine("/p").mpi
        assert mpi is not None
        assert (mpi.flavour, mpi.cuda_aware) == ("mpich", True)
