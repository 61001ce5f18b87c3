"""Drafts of sites from what a real Slurm said (golden/sites), and where a site differs from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import slurm
from harness.cli.site import command_site_init, command_site_ls, command_site_show
from harness.errors import ConfigError, MissingDependencyError
from harness.slurm import Partition, parse_partitions
from harness.submit.site import Site
from harness.submit.site_facts import Facts, Gpus, ask_slurm, differences, parse_gres
from harness.submit.site_files import find_site, parse_site
from harness.submit.site_init import draft_site

pytestmark = pytest.mark.usefixtures("_own_folder")
GOLDEN = Path(__file__).parents[1] / "golden" / "sites"
SINFO = (GOLDEN / "sinfo.txt").read_text(encoding="utf-8").replace("|", "\x1f")
SAID = {
    "sinfo": SINFO,
    "scontrol": (GOLDEN / "scontrol.txt").read_text(encoding="utf-8"),
    "srun": (GOLDEN / "mpi.txt").read_text(encoding="utf-8"),
}


@pytest.fixture
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sites of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Return what ``ask_slurm`` makes of the recorded answers."""

    def answer(argv: Sequence[str], *, both: bool = False) -> str:
        if argv[0] == "sinfo":
            assert "--exact" in argv  # without it, nodes of 16 and of 32 CPUs are "16+"
        return SAID[argv[0]]

    monkeypatch.setattr(slurm, "_run", answer)
    return ask_slurm()


def kind(**keys: Any) -> Partition:
    usual: dict[str, Any] = {
        "name": "gpu", "is_default": True, "nodes": 4, "cpus": 32, "memory_mib": 1000,
        "gres": "gpu:4", "time_limit": "1-00:00:00", "available": True,
    }  # fmt: skip
    return Partition(**{**usual, **keys})


def facts_of(*kinds: Partition, **keys: Any) -> Facts:
    return Facts(**{"partitions": kinds, "mpi_plugins": ("pmix",), "max_array_size": 1001, **keys})


class TestFacts:
    def test_kinds_of_nodes_are_apart(self, facts: Facts) -> None:
        assert [(k.name, k.nodes, k.cpus, k.unusable_nodes) for k in facts.partitions] == [
            ("alpha", 1, 64, 1),
            ("alpha", 3, 48, 0),
            ("gpu2", 1, 24, 1),
            ("gpu2", 1, 24, 0),
            ("cpu-only", 1, 16, 0),
            ("cpu-only", 1, 32, 0),
            ("mixed", 1, 16, 0),
            ("empty", 0, 0, 0),
        ]
        assert {k.name for k in facts.partitions if k.is_default} == {"alpha"}
        assert {k.name for k in facts.partitions if not k.available} == {"gpu2", "mixed"}
        assert {k.name: k.max_nodes for k in facts.partitions}["gpu2"] == 1
        assert {k.name: k.max_nodes for k in facts.partitions}["alpha"] is None
        assert (facts.max_array_size, facts.cluster, facts.version) == (500, "odd", "22.05.8")
        assert facts.mpi_plugins == ("pmix", "cray_shasta", "pmi2", "pmix_v4")

    def test_sinfo_writes_thousands_short(self) -> None:
        line = "big|0/1K/2/1026|2K|65536|(null)|infinite|up|1-2K".replace("|", "\x1f")
        (found,) = parse_partitions(f"{line}\nno line of ours\n")
        assert (found.nodes, found.cpus, found.unusable_nodes) == (1026, 2048, 2)
        assert (found.memory_mib, found.max_nodes, found.gres) == (65_536, 2048, "")

    @pytest.mark.parametrize(
        ("text", "gpus"),
        [
            ("", ()),
            ("gpu:4", (Gpus("", 4),)),
            ("gpu:a100:8(S:0-1)", (Gpus("a100", 8),)),
            ("gpu:a100:8(S:0,2),nvme:1", (Gpus("a100", 8),)),
            ("gpu:a100:4(S:0),gpu:a100:4(S:1)", (Gpus("a100", 8),)),
            ("gpu:k80:2,gpu:p100:2", (Gpus("k80", 2), Gpus("p100", 2))),
            ("gpu:a100:no_consume:8", (Gpus("a100", 8),)),
            ("gpu:no_consume:8", (Gpus("", 8),)),
            ("gpu:1g.5gb:7(IDX:0-6)", (Gpus("1g.5gb", 7),)),
            ("gpu", (Gpus("", 1),)),
            ("shard:32,mps:400,nvme:2", ()),
        ],
    )
    def test_gpus_of_gres(self, text: str, gpus: tuple[Gpus, ...]) -> None:
        assert parse_gres(text) == gpus


class TestDraft:
    @pytest.mark.parametrize("partition", ["alpha", "gpu2", "cpu-only", "mixed"])
    def test_is_the_golden_one(self, facts: Facts, partition: str) -> None:
        """To renew one: write what differs into tests/golden/sites, and read it."""
        expected = (GOLDEN / f"{partition}.yaml").read_text(encoding="utf-8")
        assert draft_site(facts, partition) == expected

    def test_slurm_agrees_with_it(self, facts: Facts) -> None:
        """But where a job could get another kind of node, which the draft says, too."""
        assert differences(parse_site(draft_site(facts, "alpha"), "draft"), facts) == ()
        site = parse_site(draft_site(facts, "cpu-only"), "draft")
        (said,) = differences(site, facts)
        assert said.startswith("constraint: none, but cpu-only has several kinds")
        assert differences(site.model_copy(update={"constraint": "x"}), facts) == ()

    def test_values(self, facts: Facts) -> None:
        site = parse_site(draft_site(facts, "alpha", "mine"), "draft")
        assert (site.name, site.partition, site.nodes) == ("mine", "alpha", 3)
        assert (site.cpus_per_node, site.gpus_per_node, site.gres) == (48, 8, "gpu:a100")
        assert (site.max_time, site.time_per_job) == (2 * 86_400, 3600)
        assert site.max_array_size == 500
        assert site.mpi_plugins == ("pmix", "cray_shasta", "pmi2", "pmix_v4")

    def test_memory_makes_no_other_kind(self, facts: Facts) -> None:
        """Two nodes of GPU2 differ in memory alone; of the two a job may have one."""
        text = draft_site(facts, "gpu2")
        assert "several kinds" not in text
        assert parse_site(text, "draft").nodes == 1
        assert "# the most that one job may have; the partition's limit; 1 of them down" in text

    def test_the_most_frequent_kind_is_taken(self) -> None:
        few, many = kind(nodes=2, gres="gpu:a100:8"), kind(nodes=5, gres="gpu:v100:4(S:0-1)")
        text = draft_site(facts_of(few, many))
        assert parse_site(text, "draft").gres == "gpu:v100"
        assert "most frequent, 5 of 7" in text
        assert text.index("#   5 x 32 CPUs, gpu:v100:4") < text.index("#   2 x 32 CPUs, gpu:a100:8")
        equal = draft_site(facts_of(replace(few, nodes=5), many))
        assert parse_site(equal, "draft").gpus_per_node == 8

    def test_without_a_limit(self) -> None:
        text = draft_site(facts_of(kind(time_limit="infinite"), max_array_size=None))
        site = parse_site(text, "draft")
        assert (site.max_time, site.time_per_job, site.max_array_size) == (None, 3600, 1001)
        assert "#max_time: 24:00:00  # the partition has no limit" in text

    @pytest.mark.parametrize(
        ("plugins", "launcher", "said"),
        [
            (("pmix", "pmi2"), "srun", "launcher: srun\nmpi: openmpi"),
            (("pmi2",), "mpirun", "# srun has no PMIx here, which Open MPI needs."),
            ((), "mpirun", "# srun has neither PMIx nor PMI-2 here"),
        ],
    )
    def test_the_launcher(self, plugins: tuple[str, ...], launcher: str, said: str) -> None:
        text = draft_site(facts_of(kind(), mpi_plugins=plugins))
        assert parse_site(text, "draft").launcher == launcher
        assert said in text

    @pytest.mark.parametrize(
        ("name", "site_name"),
        [("gpu:a 100", "gpu-a-100"), ("_x_", "x"), ("ß", "site"), ("yes", "yes"), ("007", "007")],
    )
    def test_any_name_of_a_partition(self, name: str, site_name: str) -> None:
        site = parse_site(draft_site(facts_of(kind(name=name), cluster="a: #b" * 30)), "draft")
        assert (site.name, site.partition) == (site_name, name)
        assert site.title.endswith("4 GPUs, 32 CPUs a node")

    def test_comments_stay_comments(self) -> None:
        text = draft_site(facts_of(kind(), kind(gres="gpu:1\nnodes: 99"), cluster="x\nnodes: 99"))
        assert parse_site(text, "draft").nodes == 4

    @pytest.mark.parametrize(
        ("kinds", "more", "partition", "fault"),
        [
            ([], {}, None, "sinfo names no partition"),
            ([kind(), kind(name="cpu", is_default=False)], {}, None,
             r"several partitions, name one with --partition: gpu \(the default\), cpu$"),
            ([kind()], {}, "gqu", r"--partition gqu: Slurm has none such \(did you mean 'gpu'\?\)"),
            ([kind(nodes=0)], {}, None, "partition gpu has no nodes"),
            ([kind()], {"max_array_size": 0}, None, "MaxArraySize is 0: this Slurm has no job arr"),
        ],
    )  # fmt: skip
    def test_no_draft(
        self, kinds: list[Partition], more: dict[str, Any], partition: str | None, fault: str
    ) -> None:
        with pytest.raises(ConfigError, match=fault):
            draft_site(facts_of(*kinds, **more), partition)

    def test_a_name_that_is_none(self, facts: Facts) -> None:
        with pytest.raises(ConfigError, match="'a b' is no name"):
            draft_site(facts, "alpha", "a b")


class TestDifferences:
    def site(self, **keys: Any) -> Site:
        usual = {"name": "x", "nodes": 4, "cpus_per_node": 32, "gpus_per_node": 4}
        return Site.model_validate({**usual, **keys})

    def test_none(self) -> None:
        assert differences(self.site(), facts_of(kind())) == ()
        assert differences(self.site(gpus_per_node=2, nodes=1), facts_of(kind())) == ()
        # Whole nodes are seen with all their CPUs; of shared ones a part may be asked for.
        assert differences(self.site(exclusive=False, cpus_per_node=8), facts_of(kind())) == ()

    @pytest.mark.parametrize(
        ("keys", "more", "said"),
        [
            ({"partition": "no"}, {}, "partition no: Slurm has none such; it has: gpu (the"),
            ({}, {"is_default": False}, "partition: none is named, and Slurm has no default"),
            ({}, {"available": False}, "partition: gpu takes no jobs now"),
            ({"cpus_per_node": 16}, {}, "cpus_per_node: 16, but a node of gpu has 32"),
            ({"gpus_per_node": 8}, {}, "gpus_per_node: 8 of gpu, but a node of gpu has 4"),
            ({"gres": "gpu:a100"}, {}, "gpus_per_node: 4 of gpu:a100, but a node of gpu has 0"),
            ({"nodes": 5}, {}, "nodes: 5, but gpu has 4 such nodes"),
            ({}, {"max_nodes": 2}, "nodes: 4, but a job of gpu may have 2"),
            ({}, {"time_limit": "30:00"}, "time_per_job: 1:00:00, but gpu has a limit of 0:30:00"),
            ({"max_time": "2-0"}, {}, "max_time: 2-00:00:00, but gpu has a limit of 1-00:00:00"),
            ({"max_array_size": 2000}, {}, "max_array_size: 2000, but Slurm's is 1001"),
            ({"mpi": "mpich"}, {}, "launcher: srun, but it lacks pmi2, which mpich needs"),
        ],
    )  # fmt: skip
    def test_each(self, keys: dict[str, Any], more: dict[str, Any], said: str) -> None:
        (found,) = differences(self.site(**keys), facts_of(kind(**more)))
        assert found.startswith(said)

    def test_other_kinds_that_a_job_cannot_get(self) -> None:
        """Nodes without such GPUs are no danger; those with other CPUs are."""
        without, other = kind(cpus=64, gres=""), kind(cpus=64, nodes=1)
        assert differences(self.site(), facts_of(kind(), without)) == ()
        (found,) = differences(self.site(), facts_of(kind(), other))
        assert (
            found == "constraint: none, but gpu has several kinds of nodes, and jobs may get others"
        )
        assert differences(self.site(constraint="big"), facts_of(kind(), other)) == ()


class TestCommands:
    def test_init_prints(self, facts: Facts, capsys: pytest.CaptureFixture[str]) -> None:
        assert command_site_init("alpha", None, None) == 0
        assert capsys.readouterr().out == (GOLDEN / "alpha.yaml").read_text(encoding="utf-8")

    def test_init_writes_what_can_be_found(
        self, facts: Facts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "new" / "mine.yaml"
        assert command_site_init("alpha", None, out) == 0
        assert find_site(str(out)).name == "mine"  # the file's name, which is how it is found
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{out} written; fill in what it lacks" in said.err
        assert [path.name for path in out.parent.iterdir()] == ["mine.yaml"]

    def test_init_overwrites_nothing(self, facts: Facts, tmp_path: Path) -> None:
        out = tmp_path / "mine.yaml"
        out.write_text("mine")
        (tmp_path / "link.yaml").symlink_to("nowhere")
        for path in (out, tmp_path / "link.yaml", tmp_path):
            with pytest.raises(ConfigError, match="is there already; remove it, or give another"):
                command_site_init("alpha", None, path)
        assert out.read_text() == "mine"
        with pytest.raises(ConfigError, match=r"mine\.yaml/x\.yaml: cannot be written"):
            command_site_init("alpha", None, out / "x.yaml")

    def test_init_without_slurm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingDependencyError, match="scontrol is not here"):
            command_site_init(None, None, tmp_path / "x.yaml")
        assert list(tmp_path.iterdir()) == []

    def test_ls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert command_site_ls(False) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "alpha    package  Alpha: 8 A100, 48 cores a node"
        (tmp_path / "slurm" / "sites").mkdir(parents=True)
        (tmp_path / "slurm" / "sites" / "bad.yaml").write_text("nodes: 1\n")
        assert command_site_ls(False) == 1
        assert (
            "bad      here     cannot be used: slurm/sites/bad.yaml: cpus_per_node: is missing"
            in capsys.readouterr().out.splitlines()
        )

    def test_show(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command_site_show("alpha", ["nodes=9"], False, False) == 0
        shown = parse_site(capsys.readouterr().out, "shown")
        assert shown == find_site("alpha", ["nodes=9"])

    def test_show_where_slurm_differs(
        self, facts: Facts, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command_site_show("alpha", ["max_array_size=500", "constraint=big"], True, True) == 1
        said = capsys.readouterr()
        assert '"gpus_per_node": 8' in said.out
        assert said.err == "alpha: nodes: 4, but alpha has 3 such nodes\n"
        agreed = ["max_array_size=500", "constraint=big", "nodes=3"]
        assert command_site_show("alpha", agreed, True, True) == 0
        assert capsys.readouterr().err == ""
