"""Example sets: what the tool makes of a results folder, and that those in git are fit to read."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.analysis.results import load_results
from harness.collectives.record import CollectivesRecord, LibraryFacts, Row
from harness.collectives.record import read_record as read_collectives
from harness.errors import HarnessError, StoreError
from harness.record import BackendProof, RunRecord
from harness.runner.listing import list_sweep
from harness.store import Store
from harness.store.raw import raw_fault
from harness.store.reading import read_record
from tests import factories

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "results" / "examples"


def _tool() -> ModuleType:
    path = ROOT / "tools" / "example_set.py"
    spec = importlib.util.spec_from_file_location("example_set", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()


# What the tool does to one text.

MACHINE = TOOL.Shortener("/srv/anna/scaling", "ranks", {"anna"})


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/srv/anna/scaling/.venv/bin/python", ".venv/bin/python"),
        ("--prefix=/srv/anna/scaling", "--prefix=."),
        ("/scratch/x/ranks/logs/ab12/1/run.json", "ranks/logs/ab12/1/run.json"),
        ("/home/anna/.cache/hvdscale/data", "~/.cache/hvdscale/data"),
        ("HOME=/root:/home/bert/x", "HOME=~:~/x"),
        ("/opt/mpi/lib/libmpi.so.40", "…/libmpi.so.40"),
        ("-I/opt/cuda/include -L/opt/cuda/lib", "-I…/include -L…/lib"),
        ('File "/opt/py/site-packages/torch/nn.py", line 3', 'File "…/nn.py", line 3'),
        ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
        ("/proc/self/maps /dev/shm", "/proc/self/maps /dev/shm"),
        ("2(N−1)/N·bytes/B, 3,414 samples/s, 2/3", "2(N−1)/N·bytes/B, 3,414 samples/s, 2/3"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("results/ranks ../x ./y $ORIGIN/lib", "results/ranks ../x ./y $ORIGIN/lib"),
    ],
)
def test_a_path_of_the_machine_is_short_and_stays_so(text: str, short: str) -> None:
    assert MACHINE.text(text) == short
    assert MACHINE.text(short) == short


def test_a_user_name_that_would_be_left_is_an_error() -> None:
    with pytest.raises(StoreError, match="user name 'anna'"):
        MACHINE.text("job of anna@login1")
    assert MACHINE.text("/srv/anna/other/file, susanna") == "…/file, susanna"


# What it makes of a sweep.


def _with_paths(record: RunRecord, root: str) -> RunRecord:
    error = record.error
    if error is not None:
        tail = (f'File "{root}/harness/bench.py", line 1', "at /opt/site/lib/x.so")
        error = error.model_copy(update={"rank_tails": {"0": tail}, "launcher_tail": tail})
    provenance = record.provenance | {
        "executable": f"{root}/.venv/bin/python",
        "mpi": {"library": "Open MPI v5.0.11, package", "path": f"{root}/.venv/lib/libmpi.so.40"},
        "environment": {"OMP_NUM_THREADS": "1", "NCCL_TOPO_FILE": "/home/anna/topo.xml"},
    }
    argv = (f"{root}/.venv/bin/python", "--run", f"{root}/sets/{record.sweep}/logs/x/1/run.json")
    changed = {"argv": argv, "provenance": provenance, "error": error}
    return record.model_copy(update=changed).sealed()


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep with raw samples, a failed launch, and paths of a machine wherever there may be."""
    folder = tmp_path / "measured" / "synthetic"
    made = factories.records(counts=(1, 2), backends=("mpi",), batches=(75,), blocks=2)
    made.append(factories.failure(factories.config("horovod", 4, backend="mpi")))
    store = Store.open(folder, create=True)
    import pyarrow as pa

    for record in made:
        one = _with_paths(record, "/srv/scaling")
        if one.status == "ok":
            store.commit(one, pa.table({"step_s": [0.1, 0.2]}), pa.table({"node": ["node0"]}))
        else:
            store.add_failure(one)
    (folder / "sweep.yaml").write_text("name: synthetic\n", encoding="utf-8")
    (store.logs / "x.log").write_text("secret", encoding="utf-8")
    (folder / ".lock").touch()
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _make(source: Path, out: Path, about: str | None = None) -> dict[str, bytes]:
    TOOL.make_set(source, out, about)
    return _files(out)


def test_a_set_has_what_a_reader_needs_and_no_more(sweep: Path, tmp_path: Path) -> None:
    files = _make(sweep, tmp_path / "set", "Two ranks.")
    store = Store.open(sweep)
    runs = {f"runs/{path.name}" for path in store.runs.iterdir()}
    assert set(files) == {"README.md", "records.csv", "sweep.json", "sweep.yaml"} | runs
    assert len([name for name in runs if ".attempt-" in name]) == 1
    readme = files["README.md"].decode()
    assert readme.startswith("# set\n\nTwo ranks.\n\n## Measured\n")
    for said in ("`hvdscale run sweep.yaml`", "Test CPU 3000, 64 cores", "torch 2.13.0",
                 "MPI: Open MPI v5.0.11", "1 launch without a measurement"):  # fmt: skip
        assert said in readme
    header, *rows = files["records.csv"].decode().splitlines()
    assert header.startswith("sweep,kind,run_id,")
    assert len(rows) == len([name for name in runs if name.endswith(".json")])


def test_ranks_that_share_cores_need_an_option(tmp_path: Path) -> None:
    few = factories.PROVENANCE | {"cores": 2}
    made = [factories.record(factories.config(n=n), provenance=few) for n in (1, 2, 4)]
    for count, said in (
        (2, "`hvdscale run sweep.yaml`"),
        (3, "`hvdscale run sweep.yaml --slots 4`"),
    ):
        folder = factories.write_results(tmp_path / str(count) / "synthetic", made[:count])
        assert said in _make(folder, tmp_path / f"set-{count}")["README.md"].decode()


def test_records_are_the_same_but_for_paths(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    files = _make(sweep, out)
    before, after = Store.open(sweep), Store.open(out)
    for was in before.records():
        (now,) = [one for one in after.records() if one.run_id == was.run_id]
        assert now.argv == (".venv/bin/python", "--run", "sets/synthetic/logs/x/1/run.json")
        assert now.provenance["mpi"]["path"] == ".venv/lib/libmpi.so.40"
        assert now.provenance["environment"]["NCCL_TOPO_FILE"] == "~/topo.xml"
        if now.error:
            assert now.error.rank_tails["0"] == now.error.launcher_tail
            assert now.error.launcher_tail[0] == 'File "harness/bench.py", line 1'
        kept = {"argv", "provenance", "error", "sha256"}
        assert was.model_dump(exclude=kept) == now.model_dump(exclude=kept)
        assert raw_fault(after.runs, now) is None
    assert b"/srv" not in b"".join(files.values())
    assert b"/home" not in b"".join(files.values())


def test_the_same_folder_gives_the_same_files(sweep: Path, tmp_path: Path) -> None:
    first = _make(sweep, tmp_path / "set", "Said once.")
    (tmp_path / "set" / "runs" / "0000000000000000.json").write_text("gone from the sweep")
    assert _make(sweep, tmp_path / "set") == first
    assert _make(tmp_path / "set", tmp_path / "again" / "set", "Said once.") == first


def test_raw_samples_that_make_it_large_stay_out_and_it_says_so(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Store.open(sweep).runs
    steps = sum(path.stat().st_size for path in runs.glob("*.steps.parquet"))
    monkeypatch.setattr(TOOL, "LIMIT_BYTES", steps)
    files = _make(sweep, tmp_path / "set")
    assert any(name.endswith(".steps.parquet") for name in files)
    assert not any(name.endswith(".series.parquet") for name in files)
    assert "Raw series are left out: too large." in files["README.md"].decode()


def test_what_cannot_be_published_is_an_error(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="something else than an example set"):
        TOOL.make_set(sweep, sweep.parent)
    with pytest.raises(StoreError, match="there is no sweep"):
        TOOL.make_set(tmp_path / "nowhere", tmp_path / "set")
    (sweep / "sweep.yaml").write_text("workload: {file: /home/anna/text}\n", encoding="utf-8")
    with pytest.raises(StoreError, match="has an absolute path"):
        TOOL.make_set(sweep, tmp_path / "set")


def test_a_set_is_not_made_in_the_folder_that_it_is_made_of(sweep: Path, tmp_path: Path) -> None:
    before = _make(sweep, tmp_path / "set")
    with pytest.raises(StoreError, match="is the folder that the set is made of"):
        TOOL.make_set(tmp_path / "set", tmp_path / "set")
    assert _files(tmp_path / "set") == before
    assert any(name.endswith(".parquet") for name in before)


def test_a_place_that_cannot_be_written_is_one_line(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("sys.argv", ["example_set", str(sweep), str(tmp_path / "file" / "set")])
    assert TOOL.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"example_set: error: {tmp_path}/file/set: Not a directory"


def test_a_config_with_a_path_is_an_error_as_its_hash_is_the_id(tmp_path: Path) -> None:
    workload = {"name": "lstm", "options": {"file": "/home/anna/text"}}
    record = factories.record(factories.config(workload=workload))
    folder = factories.write_results(tmp_path / "synthetic", [record])
    with pytest.raises(StoreError, match="config has an absolute path"):
        TOOL.make_set(folder, tmp_path / "set")


def test_a_broken_record_is_an_error(sweep: Path, tmp_path: Path) -> None:
    victim = next(Store.open(sweep).runs.glob("*.attempt-1.json"))
    victim.write_bytes(victim.read_bytes().replace(b"failed", b"Failed"))
    with pytest.raises(HarnessError, match="wrong checksum"):
        TOOL.make_set(sweep, tmp_path / "set")


def test_an_allreduce_keeps_its_rows_and_times(tmp_path: Path) -> None:
    row = Row(library="mpi4py", collective="all_reduce", bytes=4096, iterations=30,
              latency_p50_s=5e-5, latency_p99_s=9e-5, latency_min_s=4e-5, latency_max_s=1e-4,
              algbw_bytes_per_s=4096 / 5e-5, busbw_bytes_per_s=4096 / 5e-5)  # fmt: skip
    proof = BackendProof(requested=None, proven="mpi", controller=None,
                         evidence={"libmpi": "/opt/mpi/libmpi.so"})  # fmt: skip
    record = CollectivesRecord(
        run_id="20260102T030405Z-abcdef", started_at="2026-01-02T03:04:05Z",
        ended_at="2026-01-02T03:05:05Z", launcher="mpirun", hosts=("node0",), placement=(2,),
        argv=("/srv/scaling/.venv/bin/hvdscale", "allreduce", "--results", "/srv/scaling/sets"),
        world_size=2, device="cpu", cores_per_rank=1, tuning=None, rows=(row,),
        libraries=(LibraryFacts(name="mpi4py", proof=proof, versions={}),),
        collectives=("all_reduce",), sizes=(4096,), max_iterations=30,
        provenance=factories.PROVENANCE | {"executable": "/srv/scaling/.venv/bin/python"},
    ).sealed()  # fmt: skip
    folder = tmp_path / record.run_id
    folder.mkdir()
    (folder / "record.json").write_text(record.model_dump_json())
    (folder / "times.parquet").write_bytes(b"raw times")
    files = _make(folder, tmp_path / "allreduce")
    assert set(files) == {"README.md", "record.json", "table.txt", "times.parquet"}
    now = read_collectives(tmp_path / "allreduce" / "record.json")
    assert now.argv == (".venv/bin/hvdscale", "allreduce", "--results", "sets")
    assert now.libraries[0].proof.evidence == {"libmpi": "…/libmpi.so"}
    assert now.rows == record.rows
    assert files["times.parquet"] == b"raw times"
    assert "`hvdscale allreduce --results sets`, 2 ranks by `mpirun`" in files["README.md"].decode()
    assert _make(tmp_path / "allreduce", tmp_path / "again" / "allreduce") == files


# The sets in git.

SETS = sorted(path.parent for path in EXAMPLES.rglob("README.md") if path.parent != EXAMPLES)
SWEEPS = [path for path in SETS if (path / "sweep.json").exists()]
#: What begins with a slash and is none of these is a path of one machine.
ABSOLUTE = re.compile(r"""(?:^|[\s"'=:,;(\[]|-[IL])(/(?!usr/|lib|proc/|sys/|dev/)\w[^\s"']*)""")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from (key, *_texts(one))
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def _named(folder: Path) -> str:
    return str(folder.relative_to(EXAMPLES))


def test_there_are_sets() -> None:
    assert {"cpu-backends", "cpu-batch-size", "cpu-ranks", "cpu-training"} <= {
        path.name for path in SWEEPS
    }


@pytest.mark.parametrize("folder", SETS, ids=_named)
def test_no_published_record_has_a_path_of_the_machine(folder: Path) -> None:
    found = sorted(folder.rglob("*.json"))
    assert found
    for path in found:
        for text in _texts(json.loads(path.read_bytes())):
            assert ABSOLUTE.search(text) is None, f"{path}: {text}"
    for path in [*folder.glob("*.md"), *folder.glob("*.txt"), *folder.glob("records.csv")]:
        assert not re.search(r"/(home|root|Users|opt|tmp|work|srv)/", path.read_text("utf-8"))


@pytest.mark.parametrize("folder", SWEEPS, ids=_named)
def test_a_set_is_whole_and_small(folder: Path) -> None:
    runs = folder / "runs"
    for path in runs.glob("*.json"):
        record = read_record(path, path.name.partition(".")[0])
        assert record.sweep == folder.name
        assert raw_fault(runs, record) is None
    assert sum(path.stat().st_size for path in runs.iterdir()) < 3_000_000


@pytest.mark.parametrize("folder", SETS, ids=_named)
def test_a_set_says_what_it_is(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    about = text.partition("\n")[2].partition("## Measured")[0].strip()
    assert len(about.split()) > 10
    for said in ("| with | `hvdscale", "| when |", "| processor |", "| software |", "shortened"):
        assert said in text


@pytest.mark.parametrize("folder", SWEEPS, ids=_named)
def test_a_set_reads_like_any_sweep(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / folder.name)
    results = load_results(copy)
    assert results.curves or results.trainings
    assert list_sweep(copy).points
    assert results.table.num_rows == len(list((copy / "runs").glob("*.json")))
    if results.curves:
        first = results.curves[0].points[0].launches[0]
        assert results.steps(first.run_id).num_rows > 0
