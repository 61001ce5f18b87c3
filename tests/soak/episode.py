"""One episode: a sweep is run, disturbed, damaged and run to its end, and judged at each step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import check
from tests.soak.check import Fault, Snapshot
from tests.soak.damage import damage
from tests.soak.descendants import descendants, told, wait_for_none
from tests.soak.disk import full_disk, small_disk
from tests.soak.plan import Episode, Run
from tests.soak.runners import Runners, end

LEAK_S = 60.0  # how long what a killed runner leaves may take to end
RUN_S = 900.0  # no run of an episode takes as long
TRIES = 3  # runs to the end
_ENDS = {0, 1, 2, 130}
_OLD_S = 2 * 86_400


@dataclass
class Played:
    """What came of an episode."""

    runs: int = 0
    launches: int = 0
    points: int = 0
    happened: Counter[str] = field(default_factory=Counter)  # faults, by kind
    faults: list[Fault] = field(default_factory=list)


class Stage:
    """The folder of an episode, and what happens in it."""

    def __init__(self, episode: Episode, folder: Path, data: Path) -> None:
        self.played = Played()
        self._episode = episode
        self._log = folder / "runners.log"
        self._runners = Runners(episode, folder / "results", data)
        self._dice = random.Random(episode.seed + 1)
        self._damaged: list[tuple[str, str]] = []
        self._kills = 0

    def play(self) -> Played:
        """Play the episode to its end."""
        with small_disk(self._runners.folder, self._episode.small_disk):
            wanted = self._runners.wanted()
            for run in self._episode.runs:
                self._disturbed(run, wanted)
            self._to_the_end(wanted)
            done = Snapshot.take(self._runners.sweep)
            self.played.launches = sum(done.attempts.values())
            self.played.points = len(set(wanted) & {n.split(".")[0] for n in done.records})
        self.played.happened.update(
            name for name in self._episode.faults if "runner: SIG" not in name
        )
        return self.played

    def _disturbed(self, run: Run, wanted: list[str]) -> None:
        before, fresh = Snapshot.take(self._runners.sweep), dict(self._damaged)
        with full_disk(self._runners.folder, run.full_disk, self._dice):
            first = self._runners.start(self._log, run.faults, run.clock_s)
            started = [first]
            if run.second:
                host = "stub" if run.second == "same host" else "elsewhere"
                started.append(self._runners.start(self._log, run.faults, run.clock_s, host))
            if run.ending and end(first, run.ending, run.ending_after_s):
                self.played.happened[f"runner: {run.ending}"] += 1
                self._kills += run.ending == "SIGKILL"
            for process in started:
                self._wait(process, run.ending if process is first else "")
        self._look(before, fresh, wanted)
        for how in run.damages:
            # A record is damaged once; it is found by the next run that comes so far.
            found = damage(self._runners.sweep, how, self._dice, set(self._unfound()))
            if found is not None:
                self._damaged.append(found)
                self.played.happened[f"record: {how}"] += 1

    def _to_the_end(self, wanted: list[str]) -> None:
        folder = self._runners.sweep
        for path in folder.rglob(".*.tmp"):  # as if a day had passed since they were left
            with suppress(FileNotFoundError):
                old = time.time() - _OLD_S
                os.utime(path, (old, old))
        for _ in range(TRIES):
            before, fresh = Snapshot.take(folder), dict(self._damaged)
            process = self._runners.start(self._log, {})
            self._wait(process, "")
            self._look(before, fresh, wanted)
            if process.returncode == 0:
                break
        else:
            self._fault("broken", f"{TRIES} undisturbed runs did not finish the sweep")
        self.played.faults += check.at_end(folder, wanted, self._damaged)
        self.played.faults += check.leftovers(folder, self._kills)

    def _look(self, before: Snapshot, damaged: dict[str, str], wanted: list[str]) -> None:
        left = wait_for_none(LEAK_S)
        for process in left:
            self._fault("leaked", told(process))
        _kill_all()
        after = Snapshot.take(self._runners.sweep)
        self.played.faults += check.after_run(before, after, damaged, wanted)
        self.played.runs += 1

    def _wait(self, process: subprocess.Popen[bytes], ending: str) -> None:
        try:
            code = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            self._fault("broken", f"a run did not end in {RUN_S:.0f} s")
            _kill_all()
            return
        allowed = _ENDS | ({-signal.Signals[ending]} if ending else set())
        if code not in allowed:
            self._fault("broken", f"a runner ended with {code}; its log is {self._log}")

    def _unfound(self) -> list[str]:
        kept = Counter(Snapshot.take(self._runners.sweep).quarantine.values())
        return [name for name, digest in self._damaged if not kept[digest]]

    def _fault(self, kind: str, text: str) -> None:
        self.played.faults.append(Fault(kind, text))


def _kill_all() -> None:
    deadline = time.monotonic() + LEAK_S
    while (left := descendants()) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
