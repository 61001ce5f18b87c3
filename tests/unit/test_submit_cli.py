"""``hvdscale submit`` as it is typed: what goes to which stream, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.slurm import Partition
from harness.submit import site_facts
from harness.submit.site_facts import Facts
from tests.unit.submit_cases import FakeSlurm, install

SWEEP = """\
name: scale
workload: {name: stress_strain, samples: 20000}
placement: [1x1, 2x1]
batch_size: 20
measure: {blocks: 1}
"""
SITE = "{name: here, nodes: 2, cpus_per_node: 4}\n"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "site.yaml").write_text(SITE)
    monkeypatch.chdir(tmp_path)
    nodes = Partition("main", True, 2, cpus=4, memory_mib=1000, gres="", time_limit="infinite",
                      available=True)  # fmt: skip
    facts = Facts((nodes,), ("pmix", "pmi2"), 1001)
    monkeypatch.setattr(site_facts, "ask_slurm", lambda: facts)
    return install(monkeypatch)


ARGV = ["submit", "sweep.yaml", "--site", "./site.yaml"]


def test_lines_for_people(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGV) == 0
    said = capsys.readouterr()
    assert said.out.startswith("scale: 2 launches missing (0 done, 0 queued or running)\n")
    assert "job 101\n" in said.out
    assert said.err == ""
    assert main(ARGV) == 0
    assert capsys.readouterr().out == "scale: nothing to submit (0 done, 2 queued or running)\n"


def test_where_slurm_knows_otherwise(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    """Told before anything waits in the queue, and no fault: the cluster may be about to change."""
    assert main([*ARGV, "--site-set", "cpus_per_node=64"]) == 0
    said = capsys.readouterr()
    assert "site here: cpus_per_node: 64, but a node of main has 4" in said.err
    assert "job 101" in said.out


def test_ids_for_scripts(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGV, "--parsable"]) == 0
    assert capsys.readouterr() == ("100\n101\n102\n", "")
    assert main([*ARGV, "--parsable"]) == 0
    said = capsys.readouterr()
    assert said.out == ""  # no words where a script reads ids
    assert "nothing to submit" in said.err


def test_a_dry_run(fake: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGV, "--dry-run", "--set", "batch_size=[10,20]"]) == 0
    said = capsys.readouterr()
    assert said.out.count("sbatch --parsable") == 3
    assert "4 launches missing" in said.err  # not among the lines that a shell may be given
    assert not (tmp_path / "results").exists()
    assert fake.calls == []


def test_flags_reach_sbatch(fake: FakeSlurm) -> None:
    flags = ["--throttle", "3", "--after", "afterok:9", "--no-collect", "--site-set", "account=a"]
    assert main([*ARGV, *flags, "--results", "elsewhere"]) == 0
    assert len(fake.calls) == 2
    for call in fake.calls:
        assert call.option("array") == "0-0%3"
        assert call.option("dependency") == "afterok:9"
        assert call.option("account") == "a"
        assert call.option("chdir") == str(Path("elsewhere/scale").absolute())


def test_a_refusal_is_told(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    fake.fail_at = 1
    assert main(ARGV) == 1
    assert "1 of 2 arrays are submitted (jobs 100)" in capsys.readouterr().err


def test_a_fault_of_the_user(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGV, "--set", "placement=3x1"]) == 2
    assert "3 nodes" in capsys.readouterr().err
