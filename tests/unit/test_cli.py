from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.errors import BuildError, ConfigError
from harness.store import Store
from tests import factories

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "tensorflow", "pandas", "matplotlib", "pyarrow", "numpy", "pydantic", "rich")

SWEEP = """\
name: mine
workload: {name: stress_strain, samples: 4000}
engine: none
batch_size: [75, 100]
measure: {blocks: 2}
"""


def hvdscale(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **more,  # type: ignore[call-overload]
    )


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("hvdscale: error: ")
    return line.removeprefix("hvdscale: error: ")


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP)
    return str(path)


class TestHelp:
    @pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["--version"]])
    def test_imports_nothing_heavy(self, argv: list[str]) -> None:
        code = (
            "import sys; from harness.cli import main; code = main(sys.argv[1:]);"
            "print(sorted(sys.modules), file=sys.stderr); sys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert "hvdscale" in done.stdout
        loaded = {name.strip("' ").split(".")[0] for name in done.stderr.strip("[]\n").split(",")}
        assert "typer" in loaded
        # The help of a subcommand needs the types of its flags, for which typer takes pydantic.
        allowed = {"pydantic"} if argv[0] == "run" else set()
        assert loaded & set(HEAVY) <= allowed

    def test_lists_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--help"]) == 0
        listed = capsys.readouterr().out
        for name in (
            "run",
            "validate",
            "ls",
            "collect",
            "plot",
            "bench",
            "build-horovod",
            "doctor",
        ):
            assert f"  {name} " in listed

    def test_the_module_is_the_command(self) -> None:
        done = hvdscale("--version")
        assert done.returncode == 0
        assert done.stdout.startswith("hvdscale ")


class TestUsage:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["runn"], "No such command 'runn'"),
            (["run"], "Missing argument"),
            (["run", "x.yaml", "--slots", "0"], "--slots"),
            (["run", "x.yaml", "--slots", "two"], "--slots"),
            (["ls", "--nope"], "--nope"),
            (["bench"], "bench: name a workload"),
            (["bench", "--run", "nothing.json"], "there is no such file"),
            (["bench", "stress_strain", "--run", "x", "--batch-size", "3"], "WORKLOAD cannot go"),
            (
                ["bench", "stress_strain", "--batch-size", "3", "--set", "horovod.op=adasum"],
                "horovod: engine none reduces nothing",
            ),
            (
                ["bench", "stress_strain", "--batch-size", "3", "--set", "ddp.bucket_mb=1"],
                "ddp: engine none reduces nothing",
            ),
            (
                ["bench", "stress_strain", "--batch-size", "3", "--backend", "mpi"],
                "backend: engine none reduces nothing",
            ),
            (["run", "nothing.yaml"], "nothing.yaml"),
            (["run", "demoo"], "did you mean 'demo'"),
            (["ls", "/dev/null/none"], "no results folder"),
            (["plot", "nothing"], "no results of 'nothing'"),
            (["collect", "/nonexistent/x"], "'/nonexistent/x': /nonexistent/x has no sweep.json"),
            (["collect", "x" * 5000], "cannot be read: File name too long"),
            (["compare", "nothing", "a=" + "[" * 5000, "a=1"], "no results of 'nothing'"),
            (["predict", "nothing", "--allreduce", "x" * 5000], "no results of 'nothing'"),
            (["plot", "demo", "--format", "pgn"], "did you mean 'png'"),
            (["plot", "demo", "--format", ","], "name at least one"),
        ],
    )  # fmt: skip
    def test_is_one_line_and_exit_2(
        self,
        argv: list[str],
        message: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert cli.main(argv) == 2
        assert message in error_line(capsys)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("measure.blocks=0", "measure.blocks"),
            ("batch_sise=75", "did you mean 'batch_size'"),
            ("batch_size=-1", "batch_size"),
            ("batch_size=10000", "training samples"),
            ("engine=hovorod", "did you mean 'horovod'"),
            ("workload.name=resnett", "resnett"),
            ("placement=1x64", "64"),
            ("nonsense", "write key=value"),
        ],
    )
    def test_bad_config(
        self,
        override: str,
        message: str,
        sweep: str,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
    ) -> None:
        results = tmp_path / "results"
        argv = ["run", sweep, "--results", str(results), "--set", override, "--slots", "4"]
        assert cli.main(argv) == 2
        assert message in error_line(capsys)
        assert not results.exists()


class TestErrors:
    def stand_in(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        def fail(*_: object, **__: object) -> int:
            raise error

        monkeypatch.setattr("harness.cli.sweeps.command_run", fail)

    @pytest.mark.parametrize(
        ("error", "code"), [(ConfigError("two\n lines"), 2), (BuildError("two lines"), 1)]
    )
    def test_the_type_says_the_exit_code(
        self,
        error: Exception,
        code: int,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.stand_in(monkeypatch, error)
        assert cli.main(["run", "x"]) == code
        assert error_line(capsys) == "two lines"

    def test_a_workloads_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from workloads.api import WorkloadError

        self.stand_in(monkeypatch, WorkloadError("no such data"))
        assert cli.main(["run", "x"]) == 2
        assert error_line(capsys) == "no such data"

    def test_ctrl_c(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stand_in(monkeypatch, KeyboardInterrupt())
        assert cli.main(["run", "x"]) == 130

    def test_a_bug_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stand_in(monkeypatch, ZeroDivisionError("bug"))
        with pytest.raises(ZeroDivisionError):
            cli.main(["run", "x"])

    @pytest.mark.parametrize("command", ["validate demo", "run demo --dry-run", "train demo"])
    def test_a_working_folder_that_was_removed(self, command: str, tmp_path: Path) -> None:
        here = tmp_path / "here"
        here.mkdir()
        done = subprocess.run(
            ["bash", "-c", f"rmdir '{here}'; '{sys.executable}' -m harness {command}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 2
        assert done.stderr == (
            "hvdscale: error: the working folder: No such file or directory; cd to a folder that "
            "is there\n"
        )

    def test_a_reader_that_left_is_no_error(self, tmp_path: Path) -> None:
        factories.write_results(tmp_path / "s", factories.records())
        command = f"'{sys.executable}' -m harness ls '{tmp_path}' --json | head -c 1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert (done.stdout, done.stderr) == ("[", "")

    def test_a_reader_that_left_is_no_failed_run(self, tmp_path: Path) -> None:
        factories.write_results(tmp_path / "s", factories.records())
        reader, writer = os.pipe()
        os.close(reader)
        argv = [sys.executable, "-m", "harness", "ls", str(tmp_path)]
        with os.fdopen(writer) as stdout:
            assert subprocess.run(argv, stdout=stdout, check=False, cwd=ROOT).returncode == 141


class TestStreams:
    """Whatever the shell made of stdout and stderr: no traceback, and the right exit code."""

    def shell(self, command: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", "-c", f"'{sys.executable}' -m harness {command}"],
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=os.environ | env,
        )

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("command", ["--help", "--version", "run demo --dry-run"])
    def test_stdout_on_a_full_disk(self, command: str, unbuffered: str, tmp_path: Path) -> None:
        results = f"--results '{tmp_path}'" if "run" in command else ""
        done = self.shell(f"{command} {results} >/dev/full", PYTHONUNBUFFERED=unbuffered)
        line = b"hvdscale: error: the output cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, line)

    @pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
    @pytest.mark.parametrize(("command", "code"), [("--version", 0), ("ls /dev/null/none", 2)])
    def test_closed(self, closed: str, command: str, code: int) -> None:
        done = self.shell(f"{command} {closed}")
        assert done.returncode == code
        assert b"Traceback" not in done.stderr

    def test_what_is_opened_next_does_not_become_stdout(self) -> None:
        code = (
            "import os, sys; from harness.cli import main; main(['--version']);"
            "sys.exit(os.open('/dev/null', 0))"
        )
        command = f"'{sys.executable}' -c \"{code}\" <&- >&- 2>&-"
        assert subprocess.run(["bash", "-c", command], check=False, cwd=ROOT).returncode > 2

    def test_stderr_on_a_full_disk_leaves_the_exit_code(self) -> None:
        assert self.shell("ls /dev/null/none 2>/dev/full").returncode == 2

    @pytest.mark.parametrize(
        "env",
        [
            {"PYTHONIOENCODING": "ascii"},
            {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        ],
    )
    def test_an_encoding_that_lacks_a_character(self, env: dict[str, str], tmp_path: Path) -> None:
        factories.write_results(tmp_path / "größe – 1", [factories.record(factories.config())])
        done = self.shell(f"ls '{tmp_path}'", **env)
        assert done.returncode == 0, done.stderr
        assert b"? 1: 1 point, 1/1 launches done" in done.stdout


class TestDryRun:
    def test_prints_commands_on_stdout_and_writes_nothing(
        self, sweep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        results = tmp_path / "results"
        assert cli.main(["run", sweep, "--dry-run", "--results", str(results)]) == 0
        captured = capsys.readouterr()
        lines = [line for line in captured.out.splitlines() if not line.startswith("#")]
        assert len(lines) == 4
        assert all(" -m harness bench --run " in line for line in lines)
        assert captured.err == ""
        assert not results.exists()

    def test_leaves_out_what_is_done(
        self, sweep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from harness.config import expand, load_sweep

        store = Store.open(tmp_path / "mine", create=True)
        store.commit(factories.record(expand(load_sweep(sweep)).points[0], 1), None)
        assert cli.main(["run", sweep, "--dry-run", "--results", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert len([line for line in out.splitlines() if not line.startswith("#")]) == 3


class TestValidate:
    def test_says_what_would_run(self, sweep: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["validate", sweep, "--set", "batch_size=75"]) == 0
        out = capsys.readouterr().out
        assert "stress_strain none 1x1 batch 75  (base)" in out
        assert "mine: 1 launch a block, blocks: 2; 2 launches missing, about" in out


class TestLs:
    def test_results_without_a_plan(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one, two = factories.config("horovod", 2, backend="mpi"), factories.config("none")
        kept = [factories.record(one, 0), factories.record(one, 1), factories.failure(two)]
        factories.write_results(tmp_path / "hand", kept)
        (tmp_path / "no-sweep").mkdir()
        assert cli.main(["ls", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "hand: 2 points, 2/2 launches done, 1 attempt without a measurement" in out
        assert "stress_strain horovod/mpi 2 batch 75  2 done" in out
        assert "no-sweep" not in out

    @pytest.mark.parametrize("named", ["stress-strain-weak", "stress_strain_weak", "my.yaml"])
    def test_one_sweep_by_its_name_its_preset_or_its_file(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        named: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("my.yaml").write_text("name: stress-strain-weak\nworkload: {name: stress_strain}\n")
        kept = [factories.record(factories.config("none"))]
        for name in ("stress-strain-weak", "other"):
            factories.write_results(tmp_path / "results" / name, kept)
        assert cli.main(["ls", named]) == 0
        assert capsys.readouterr().out.startswith("stress-strain-weak: 1 point, 1/1 launches done")

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        factories.write_results(tmp_path / "hand", [factories.record(factories.config("none"))])
        assert cli.main(["ls", str(tmp_path / "hand"), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["name"] == "hand"
        assert found["points"][0]["done"] == 1
        assert found["points"][0]["asked"] is None


class TestSpoiled:
    """Readers say what is wrong, and change nothing below runs/."""

    @pytest.fixture
    def made(self, sweep: str, tmp_path: Path) -> Store:
        """Return the results of a sweep with a plan: 4 launches, 2 of them done."""
        from harness.config import load_sweep
        from harness.detect import detect_machine
        from harness.runner.labels import labels
        from harness.runner.listing import write_points
        from harness.runner.schedule import planned

        work = planned(load_sweep(sweep), detect_machine(None), tmp_path / "results")
        store = Store.open(work.folder, create=True)
        write_points(work, store, labels(work.plan.launches), 2)
        for repeat in range(2):
            store.commit(factories.record(work.plan.launches[0], repeat, is_base=True), None)
        return store

    def newer(self, store: Store) -> Path:
        record = store.read(sorted(store.done_ids())[0])
        path = store.runs / f"{record.run_id}.json"
        path.write_bytes(record.model_copy(update={"schema_version": 99}).sealed().text())
        return path

    @pytest.mark.parametrize("command", ["run --dry-run", "validate", "ls", "collect", "plot"])
    def test_a_record_of_a_newer_schema(
        self, command: str, made: Store, sweep: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        newer = self.newer(made)
        name, *more = command.split()
        where = [sweep, "--results", str(made.path.parent)]
        where = where if name in ("run", "validate") else [str(made.path)]
        assert cli.main([name, *where, *more]) == 2
        assert f"{newer}: schema version 99, but" in error_line(capsys)

    def test_one_bad_sweep_does_not_hide_the_others(
        self, made: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        results = made.path.parent
        self.newer(made)
        factories.write_results(results / "good", [factories.record(factories.config("none"))])
        for name, text in (("foreign", "{"), ("new", '{"schema_version": 99}')):
            (results / name).mkdir()
            (results / name / "sweep.json").write_text(text)
        assert cli.main(["ls", str(results)]) == 1
        out = capsys.readouterr().out
        assert "good: 1 point, 1/1 launches done" in out
        assert "foreign: cannot be read: " in out
        assert "mine: cannot be read: " in out
        assert "new: cannot be read: " in out
        assert cli.main(["ls", str(results), "--json"]) == 1
        found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
        assert found["good"]["points"][0]["done"] == 1
        assert "schema version 99" in found["new"]["error"]

    def test_a_broken_record_is_not_done_and_stays_where_it_is(
        self, made: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cut, *_ = sorted(made.done_ids())
        (made.runs / f"{cut}.json").write_text("[" * 100_000)
        before = sorted(made.runs.iterdir())
        assert cli.main(["ls", str(made.path)]) == 0
        assert "mine: 2 points, 1/4 launches done" in capsys.readouterr().out
        for command in ("collect", "plot"):
            assert cli.main([command, str(made.path)]) == 0
        (made.path / "points.json").unlink()
        assert cli.main(["ls", str(made.path)]) == 0
        assert "mine: 1 point, 1/1 launches done" in capsys.readouterr().out
        assert sorted(made.runs.iterdir()) == before
        assert list(made.quarantine.iterdir()) == []

    @pytest.mark.parametrize(
        "content",
        [
            "[]",
            "{}",
            "7",
            "",
            "[" * 100_000,
            '{"schema_version": 1, "points": 7}',
            '{"schema_version": 1, "points": [7]}',
            '{"schema_version": 0, "points": []}',
            '{"schema_version": 1, "points": [{"point_id": "x", "label": 7, "base": true,'
            ' "runs": ["a"]}]}',
            '{"schema_version": 1, "points": [{"point_id": "x", "label": "x", "base": true,'
            ' "runs": [["a"]]}]}',
            '{"schema_version": 1, "points": [{"point_id": "x", "label": "x", "base": true,'
            ' "runs": 5}]}',
        ],
        ids=range(11),
    )
    def test_a_foreign_plan(
        self, content: str, made: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (made.path / "points.json").write_text(content)
        assert cli.main(["ls", str(made.path)]) == 0
        assert "mine: 1 point, 2/2 launches done" in capsys.readouterr().out

    def test_created_may_be_anything(self, made: Store, capsys: pytest.CaptureFixture[str]) -> None:
        (made.path / "sweep.json").write_text('{"schema_version": 1, "created": [7]}')
        assert cli.main(["ls", str(made.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["created"] == ""


class TestReading:
    @pytest.fixture
    def results(self, tmp_path: Path) -> Path:
        made = factories.records((1, 2, 4), batches=(75,), blocks=2)
        factories.write_results(tmp_path / "synthetic", made)
        return tmp_path

    @pytest.mark.parametrize("by", ["name", "path"])
    def test_collect_writes_both_tables(
        self, results: Path, by: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = "synthetic" if by == "name" else str(results / "synthetic")
        assert cli.main(["collect", path, "--results", str(results)]) == 0
        captured = capsys.readouterr()
        assert (results / "synthetic" / "table.parquet").is_file()
        assert (results / "synthetic" / "table.csv").is_file()
        assert "table.parquet" in captured.err
        assert "table.parquet" not in captured.out
        assert "none@1" in captured.out

    def test_plot_prints_the_paths_of_what_it_wrote(
        self, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "figures"
        argv = ["plot", "synthetic", "--results", str(results), "--out", str(out)]
        assert cli.main([*argv, "--format", "svg"]) == 0
        written = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert out / "speedup.svg" in written
        assert all(path.is_file() and path.parent == out for path in written)
        assert not list(out.glob("*.png"))

    @pytest.mark.parametrize("command", ["collect", "plot"])
    def test_the_base_is_chosen_by_name(
        self, results: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        argv = [command, "synthetic", "--results", str(results)]
        argv += ["--format", "svg"] if command == "plot" else []

        def said(*more: str) -> str:
            assert cli.main([*argv, *more]) == 0
            out = capsys.readouterr().out
            drawn = results / "synthetic" / "plots" / "speedup.svg"
            return drawn.read_text() if command == "plot" else out

        assert "base none@1" in said()
        assert "base horovod@1" in said("--base", "horovod@1")
        assert cli.main([*argv, "--base", "horovod"]) == 2
        assert "base 'horovod' is no engine@devices" in error_line(capsys)

    @pytest.mark.parametrize("command", ["collect", "plot"])
    def test_several_bases_name_the_flag(
        self, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        both = [
            factories.record(factories.config(engine), is_base=True)
            for engine in ("none", "horovod")
        ]
        factories.write_results(tmp_path / "both", both)
        argv = [command, "both", "--results", str(tmp_path)]
        assert cli.main(argv) == 2
        assert "choose one, e.g. --base horovod@1 " in error_line(capsys)
        assert cli.main([*argv, "--base", "horovod@1"]) == 0

    @pytest.mark.parametrize("command", ["collect", "plot"])
    def test_unlike_machines_are_mixed_only_on_purpose(
        self, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = factories.PROVENANCE | {"cpu_model": "Another CPU"}
        unlike = [
            factories.record(factories.config("none"), repeat, is_base=True, provenance=where)
            for repeat, where in enumerate((None, other))
        ]
        factories.write_results(tmp_path / "two", unlike)
        argv = [command, "two", "--results", str(tmp_path)]
        assert cli.main(argv) == 2
        assert "mix them on purpose with --mixed " in error_line(capsys)
        assert cli.main([*argv, "--mixed"]) == 0

    def test_a_preset_finds_the_sweep_it_made(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from harness.cli.listing import sweep_folder
        from harness.config import load_sweep, preset_names

        for preset in preset_names():
            folder = tmp_path / load_sweep(preset).name
            Store.open(folder, create=True)
            assert sweep_folder(preset, tmp_path) == folder


def test_a_result_of_allreduce_in_place_of_a_sweep_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "record.json").write_text("{}")
    assert cli.main(["predict", str(tmp_path)]) == 2
    assert "is a result of hvdscale allreduce, not of a sweep" in error_line(capsys)
