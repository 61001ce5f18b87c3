"""Sweeps whose points fail on purpose, each in one way, and what is promised of each way.

A point's batch size says which fault it has (see ``inject/sitecustomize.py``).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.processes import MARKER
from harness.record import RunError, RunRecord
from harness.store import Store
from tests import proc
from tests.faults import small_sweep
from tests.faults.small_sweep import require_launcher, run_command, sweep_text

#: Fault → batch size. With a batch of 700 a layer's output is what memory has no room for.
BATCHES = {
    "kill": 61, "segv": 62, "raise": 63, "forward": 64, "garbage": 65, "leave": 66, "memory": 700,
    "nan": 67, "shape": 68, "versions": 69, "late": 70, "absent": 71, "stop": 72, "hang": 73,
    "balloon": 74,
}  # fmt: skip
#: The batch size of a point without a fault.
GOOD = 80
#: Those that end by themselves, as soon as they come.
QUICK = tuple(fault for fault in BATCHES if fault not in ("absent", "stop", "hang", "balloon"))

_ANY = r"(?:all ranks|rank [01])"  # of what all say, a launcher may end one before it has said it
_LATE = r"not done after \d+ s \(measure\.timeout_s\); "
_LOST = (
    r"rank 1 ended without a word \(killed from outside, a crash in native code, or it left with "
    r"exit code 0\), and rank 0 lost its connection to it"
)
#: Fault → status and cause, a regular expression.
EXPECTED = {
    "kill": ("failed", "rank 1 ended with signal SIGKILL: killed from outside, often for memory"),
    "segv": ("failed", "rank 1 ended with signal SIGSEGV: a crash in native code"),
    "raise": ("failed", "rank 1: ValueError: a fault on purpose"),
    "forward": ("failed", f"{_ANY}: ValueError: a fault in forward on purpose"),
    "garbage": ("failed", "rank 1 ended with exit code 7"),
    "leave": ("failed", _LOST),
    "memory": ("failed", r"rank 1: the host's memory is full: a step with a batch of 700 .*"),
    "nan": (
        "failed",
        rf"{_ANY}: the loss of all ranks is nan from step \d+ of the window on, so a gradient was "
        "not finite before: lower the learning rate, or look at the data",
    ),
    "shape": (
        "failed",
        rf"{_ANY}: horovod\.common\.exceptions\.HorovodInternalError: Mismatched BROADCAST tensor "
        r"shapes: One rank sent a tensor of shape \[[23], 181\], but another rank sent a tensor of "
        r"shape \[[23], 181\]\.",
    ),
    "versions": (
        "failed",
        rf"{_ANY}: rank 1 has numpy 0\.1, and rank 0 has [\d.]+: give all nodes the same "
        r"environment \(hvdscale preflight compares them\)",
    ),
    "late": ("ok", ""),
    "absent": ("timeout", f"{_LATE}rank 1 never started its log"),
    "stop": ("timeout", rf"{_LATE}rank 1 \(process \d+\) was stopped \(SIGSTOP, or a debugger\)"),
    "balloon": (
        "failed",
        r"out of memory: the kernel ended \d of our processes \(rank 1\); ask for more memory, or "
        "use a smaller batch",
    ),
    "hang": (
        "timeout",
        rf"{_LATE}rank 0 was in \S+ \(\S+:\d+\), rank 1 was in strike \(sitecustomize\.py:\d+\)",
    ),
}  # fmt: skip
# Half of the time limit, which is for a launch as a whole; the default would be 300 s.
_STALLED = (
    "stalled",
    r"Horovod ended it: some ranks waited longer than {half} s for the others; missing: rank 1",
)
#: The same where it is told otherwise: by launcher and fault.
OTHERWISE = {
    ("mpirun", "leave"): ("failed", "rank 1 left before its time, without finishing MPI"),
    ("mpirun", "hang"): _STALLED,
    ("horovodrun", "hang"): _STALLED,
    # Gloo waits for as long, and gives up.
    ("horovodrun", "absent"): (
        "stalled",
        "rank 1 never started its log; the others waited {half} s for it",
    ),
    ("horovodrun", "stop"): (
        "stalled",
        r"rank 1 did not answer for {half} s: stopped, stuck in a driver or a file system, or cut "
        "off from the others",
    ),
    # On a busy machine it sees rank 0, which lost its peer, first: no signal is told then.
    ("horovodrun", "kill"): ("failed", f"(?:rank 1 ended with signal SIGKILL: .*|{_LOST})"),
    ("horovodrun", "segv"): ("failed", f"(?:rank 1 ended with signal SIGSEGV: .*|{_LOST})"),
    ("torchrun", "shape"): (
        "failed",
        r"rank 1: RuntimeError: \[1\]: params\[6\] in this process with sizes \[3, 181\] appears "
        r"not to match sizes of the same param in process 0\.",
    ),
}  # fmt: skip


def expected(launcher: str, fault: str, timeout_s: int) -> tuple[str, str]:
    """Return the status of a point with ``fault``, and a regular expression for its cause."""
    status, cause = OTHERWISE.get((launcher, fault), EXPECTED[fault])
    return status, cause.replace("{half}", str(timeout_s // 2))


@dataclass(frozen=True)
class Outcome:
    """What a sweep with faults left, by the name of the fault; ``good`` has none."""

    exit_code: int
    records: dict[str, RunRecord]
    logs: dict[str, Path]
    left: list[str]  # command lines of processes that outlived it

    def error(self, fault: str) -> RunError:
        """Return why the point with ``fault`` gave no measurement."""
        found = self.records[fault].error
        assert found is not None
        return found


def left_over(folder: Path) -> list[str]:
    """Return the processes of launches below ``folder``, by the run file they were given."""
    marked = (
        proc.command_line(pid)
        for pid in proc.pids()
        if any(one.startswith(f"{MARKER}=") for one in proc.environ(pid))
    )
    return [command for command in marked if str(folder) in command]


@dataclass(frozen=True)
class FaultSweep:
    """Points that have one fault each, under one launcher, in a folder of their own."""

    folder: Path
    data_dir: Path
    launcher: str
    faults: tuple[str, ...]
    timeout_s: int = 200
    good: bool = False  # with a point that has no fault
    more: str = ""  # lines of its config

    @property
    def store(self) -> Store:
        """Return its results."""
        return Store.open(self.folder / "faults")

    def run(self) -> Outcome:
        """Run it to its end."""
        return self.end(self.begin())

    def begin(self, *, faulty: bool = True, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start ``hvdscale run``, whose words are a pipe; where not ``faulty``, all is well.

        ``before`` is a command that executes the one that is appended to it.
        """
        require_launcher(self.launcher)
        self.folder.mkdir(exist_ok=True)
        batches = [BATCHES[fault] for fault in self.faults] + [GOOD] * self.good
        sweep = self.folder / "faults.yaml"
        sweep.write_text(
            sweep_text("faults", self.launcher, batches, timeout_s=self.timeout_s, more=self.more)
        )
        return subprocess.Popen(
            [*before, *run_command(sweep, self.folder)],
            env={**os.environ, **environment(self.folder, self.data_dir, faulty=faulty)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_strike(self, running: subprocess.Popen[str]) -> None:
        """Wait until the fault of the only point has come, or until all is over without it."""
        begun = "rank-0.log" if "absent" in self.faults else "rank-1.log"
        while running.poll() is None:
            logs = (self.folder / "faults" / "logs").glob(f"*/*/{begun}")
            if any("absent" in self.faults or "now comes" in log.read_text() for log in logs):
                return
            time.sleep(0.1)

    def end(self, running: subprocess.Popen[str]) -> Outcome:
        """Wait for it; return what it left, by the name of the fault."""
        with ended(running):
            running.communicate()
        records = {self.fault_of(record): record for record in self.store.records()}
        logs = {
            name: self.store.logs / one.run_id / str(one.attempt) for name, one in records.items()
        }
        return Outcome(running.returncode, records, logs, left_over(self.folder))

    def fault_of(self, record: RunRecord) -> str:
        """Return the fault that a record's point was given."""
        names = {batch: fault for fault, batch in BATCHES.items()} | {GOOD: "good"}
        return names[record.config.rank_batch]


@contextmanager
def ended(*running: subprocess.Popen[str]) -> Iterator[None]:
    """Leave none of ``running`` behind, whatever becomes of the test."""
    try:
        yield
    finally:
        for one in running:
            if one.poll() is None:
                one.terminate()
                one.wait()


def environment(folder: Path, data_dir: Path, *, faulty: bool = True) -> dict[str, str]:
    """Return what the environment of ``hvdscale run`` has more for a sweep with faults."""
    faults = {batch: fault for fault, batch in BATCHES.items()} if faulty else {}
    return {
        **small_sweep.environment(data_dir, faults),
        "HVDSCALE_TEST_FOLDER": str(folder),
    }
