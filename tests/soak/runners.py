"""Runners as processes: of stub launches, or ``hvdscale run`` itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Sweep, load_sweep
from harness.detect import detect_machine
from harness.runner import schedule
from tests.faults import small_sweep
from tests.soak.plan import Episode
from tests.soak.stub_runner import sweep_of
from tests.unit.stub_sweep import MACHINE

INJECT = Path(__file__).with_name("inject")
STUB_RUNNER = Path(__file__).with_name("stub_runner.py")
STOPPED_S = 2.0


@dataclass(frozen=True)
class Runners:
    """What starts the runners of an episode."""

    episode: Episode
    folder: Path  # of results
    data: Path

    @property
    def sweep(self) -> Path:
        """Return the sweep's own folder."""
        return self.folder / "stub"

    def wanted(self) -> list[str]:
        """Return the run ids that the sweep has in the end."""
        if self.episode.kind == "stub":
            work = schedule.planned(sweep_of(self._plan({}, 60)), MACHINE, self.folder)
        else:
            work = schedule.planned(self._real(150), detect_machine(2), self.folder)
        return schedule.run_ids(work, work.max_blocks)

    def start(
        self, log: Path, faults: Mapping[int, str], clock_s: int = 0, host: str = "stub"
    ) -> subprocess.Popen[bytes]:
        """Start a runner whose launches have ``faults`` by batch size; it writes to ``log``."""
        calm = not faults and not clock_s
        stub = self.episode.kind == "stub"
        of_ranks = {} if stub else faults
        env = {
            **os.environ,
            **small_sweep.environment(self.data, of_ranks, inject=INJECT),
            "OMP_NUM_THREADS": "1",
            "HVDSCALE_SOAK_CLOCK_S": str(clock_s),
        }
        if stub:
            plan = json.dumps(self._plan(faults, 120 if calm else 6))
            command = [sys.executable, str(STUB_RUNNER), "run", str(self.folder), plan, host]
        else:
            self._real(300 if calm else 60)
            command = small_sweep.run_command(self._file, self.folder)
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def _file(self) -> Path:
        return self.folder / "stub.yaml"

    def _plan(self, faults: Mapping[int, str], timeout_s: int) -> dict[str, Any]:
        made = self.episode
        return {
            "batches": made.batches,
            "blocks": made.blocks,
            "timeout_s": timeout_s,
            "faults": faults,
        }

    def _real(self, timeout_s: int) -> Sweep:
        made = self.episode
        text = small_sweep.sweep_text(
            "stub", made.kind, made.batches, blocks=made.blocks, timeout_s=timeout_s
        )
        self._file.write_text(text)
        return load_sweep(str(self._file), ())


def end(process: subprocess.Popen[bytes], how: str, after_s: float) -> bool:
    """Send the signal that is to end a runner, unless it has ended before; say whether it had to.

    A stopped one goes on after a while.
    """
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.Signals[how])
        if how == "SIGSTOP":
            time.sleep(STOPPED_S)
            process.send_signal(signal.SIGCONT)
        return True
    return False
