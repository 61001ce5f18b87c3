"""One real sweep under every launcher, with secrets around it: what it leaves, and who saw what."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.record import RunRecord
from harness.store import Store
from tests import proc
from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]
HUSH = "hush4711hush"
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": HUSH, "HF_TOKEN": HUSH, "MYSQL_PWD": HUSH, "NCCL_SECRET": HUSH,
    "OMPI_MCA_secret": HUSH, "SLURM_JWT": HUSH, "HVDSCALE_API_TOKEN": HUSH,
    "HOROVOD_DB_PASS": HUSH, "DATABASE_URL": f"postgres://me:{HUSH}@db/x",
    "http_proxy": f"http://me:{HUSH}@127.0.0.1:1", "https_proxy": f"http://me:{HUSH}@127.0.0.1:1",
}  # fmt: skip
ODD_NAMES = {"X$(touch PWNED)": "1", "Y;touch PWNED;": "1", "Z`touch PWNED`": "1"}
HOSTILE_FOLDER = "res $(touch PWNED) `touch PWNED`;touch PWNED;'x"
MARK = "HVDSCALE_TEST_MARK"
LISTENS = "0A"  # TCP_LISTEN of include/net/tcp_states.h

SWEEP = """\
name: secrets
workload: {name: stress_strain, samples: 2000}
engine: horovod
backend: gloo
launcher: horovodrun
placement: 1x2
cores_per_rank: 1
batch_size: 75
base: null
include:
  - {backend: mpi, launcher: horovodrun}
  - {engine: ddp, backend: gloo, launcher: torchrun}
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 3, blocks: 1, timeout_s: 300, instruments: []}
"""


@dataclass
class Watch:
    """What is seen of the marked processes, and of all command lines, while a sweep runs."""

    mark: str
    told: set[str] = field(default_factory=set)  # programs whose command line had a secret
    ports: set[str] = field(default_factory=set)  # that marked processes listened on
    programs: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.is_set():
            self.look()
            self.ended.wait(0.05)

    def look(self) -> None:
        listening = _listening()
        for pid in proc.pids():
            line = proc.command_line(pid)
            if HUSH in line:
                self.told.add(line[:2000])
            if f"{MARK}={self.mark}" in proc.environ(pid):
                self.programs.add(line.split(" ")[0].rpartition("/")[2])
                self.ports |= {listening[one] for one in _sockets(pid) if one in listening}


def _listening() -> dict[str, str]:
    """Return the sockets that listen on TCP: inode → local address."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                found[words[9]] = words[1]
    return found


def _sockets(pid: int) -> Iterator[str]:
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                yield match[1]
    except OSError:  # it has just ended, or closed it
        return


@dataclass(frozen=True)
class Left:
    """What the sweep left."""

    folder: Path
    results: Path
    watch: Watch
    output: str
    records: list[RunRecord]
    after: Watch


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Left:
    require_modules("torch", "horovod")
    require_mpi()
    folder = tmp_path_factory.mktemp("secrets")
    results = folder / HOSTILE_FOLDER
    for name in ("work", "tmp"):
        (folder / name).mkdir()
    (folder / "sweep.yaml").write_text(SWEEP)
    mark = f"{folder.name}-{os.getpid()}-{time.time_ns()}"
    env = {**os.environ, **SECRETS, **ODD_NAMES, MARK: mark, "TMPDIR": str(folder / "tmp"),
           "HVDSCALE_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT)}  # fmt: skip
    argv = [sys.executable, "-m", "harness", "run", str(folder / "sweep.yaml")]
    argv += ["--results", str(results), "--slots", "2"]
    watch = Watch(mark)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        done = subprocess.run(
            ["sh", "-c", 'umask 027; exec "$@"', "sh", *argv],
            cwd=folder / "work", env=env, capture_output=True, text=True, timeout=850, check=False,
        )  # fmt: skip
    finally:
        watch.ended.set()
        thread.join()
    after = Watch(mark)
    after.look()
    records = list(Store.open(results / "secrets").records())
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return Left(folder, results, watch, output, records, after)


def test_every_launcher_ran_with_all_of_it_around(left: Left) -> None:
    assert len([record for record in left.records if record.status == "ok"]) == 3
    assert {r.resolved.launcher for r in left.records} == {"horovodrun", "torchrun"}


def test_no_secret_is_in_any_file(left: Left) -> None:
    files = [path for path in left.results.rglob("*") if path.is_file()]
    assert len(files) > 12
    assert [str(path) for path in files if HUSH.encode() in path.read_bytes()] == []
    assert HUSH not in left.output


def test_no_secret_was_on_any_command_line(left: Left) -> None:
    assert len(left.watch.programs) > 2
    assert left.watch.told == set()


def test_no_name_of_a_path_or_a_variable_was_run(left: Left) -> None:
    assert list(left.folder.rglob("PWNED")) == []
    assert list((left.folder / "work").iterdir()) == []


def test_files_have_the_users_umask(left: Left) -> None:
    wrong = {
        str(path.relative_to(left.results)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [left.results, *left.results.rglob("*")]
        if path.stat().st_mode & 0o027
    }
    assert wrong == {}


def test_no_socket_listens_after_it(left: Left) -> None:
    assert left.watch.ports != set()  # so they are seen
    assert left.after.ports == set()
    assert left.after.programs == set()


def test_nothing_is_left_in_tmp(left: Left) -> None:
    found = [path.name for path in (left.folder / "tmp").rglob("*")]
    # torch makes this folder when it is imported, and puts something in only to compile.
    assert [name for name in found if not name.startswith("torchinductor_")] == []
    assert len(found) < 2
