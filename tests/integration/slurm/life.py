"""A sweep of somebody whose jobs meet with an accident, and the moment for it: a launch held."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from harness.record import RunRecord
from harness.store import Store
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.hosts import HEAD, processes

PYTHON = sys.executable
DEADLINE_S = 400.0
SWEEP = """\
name: {name}
workload: {{name: stress_strain, samples: 2000}}
cores_per_rank: 1
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 200}}
{more}"""
SITE = """\
name: test
nodes: 2
cpus_per_node: 2
partition: main
launcher: srun
mpi_plugins: [none, pmi2, pmix]
environment: {{OMP_NUM_THREADS: "1"}}
data_dir: {data_dir}
"""


@dataclass(frozen=True)
class Rank:
    """A process of a launch, wherever it runs."""

    pid: int
    run_id: str
    node: str
    job: str  # as Slurm shows it: "12_0"

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


def wait_until(
    ready: Callable[[], bool], what: Callable[[], str], timeout_s: float = DEADLINE_S
) -> None:
    """Wait until ``ready``; AssertionError with ``what`` at the end."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class Tenant:
    """One sweep of one user of the cluster, in a folder of its own."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        data_dir: Path,
        *,
        name: str,
        sweep: str,
        site: str = "",
        login: str = HEAD,
    ) -> None:
        """``login`` is the host from which the user works; its results folder is what we see."""
        self.cluster = cluster
        self.results = folder / f"results-{name}"
        self.root = Path("/")
        if login != HEAD:
            self.root = Path(f"/proc/{cluster.hosts.enter(login)[1].rpartition('=')[2]}/root")
        self.folder = self.root / self.results.relative_to("/") / name
        self._name = name
        self._cwd = folder
        self._login = login
        (folder / f"{name}.yaml").write_text(SWEEP.format(name=name, more=sweep))
        (folder / f"{name}-site.yaml").write_text(SITE.format(data_dir=data_dir) + site)

    def submit(self, *options: str) -> list[str]:
        """Submit what is missing; return the ids of the job arrays."""
        done = self.harness(
            *("submit", f"{self._name}.yaml", "--site", f"{self._name}-site.yaml"),
            *("--results", str(self.results), "--parsable", "--no-collect", *options),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def status(self) -> dict[str, Any]:
        """Return what ``hvdscale status`` says of the sweep."""
        done = self.harness("status", self._name, "--results", str(self.results), "--json")
        assert done.returncode in (0, 1), done.stderr
        (row,) = json.loads(done.stdout)
        assert isinstance(row, dict)
        return row

    def states(self) -> dict[str, int]:
        """Return how many launches there are in which state, as ``hvdscale status`` counts."""
        return {state: count for state, count in self.status()["launches"].items() if count}

    def whys(self) -> list[str]:
        """Return why what is not done is not, as ``hvdscale status`` says."""
        points = self.status()["points"]
        return [one["why"] for point in points for one in point["launches"] if one["why"]]

    def harness(self, *argv: str) -> CompletedProcess[str]:
        """Run a command of ours where the user works."""
        return self.run(PYTHON, "-P", "-m", "harness", *argv)

    def run(self, *argv: str) -> CompletedProcess[str]:
        """Run any command where the user works."""
        return subprocess.run(
            [*self.cluster.hosts.enter(self._login), f"--wdns={self._cwd}", "--", *argv],
            env={**os.environ, **self.cluster.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def records(self, *statuses: str) -> list[RunRecord]:
        """Return all records, or those of some statuses; each is whole."""
        if not self.folder.exists():
            return []
        found = list(Store.open(self.folder).records())
        return [record for record in found if not statuses or record.status in statuses]

    def counts(self) -> dict[str, int]:
        """Return how many records there are of which status."""
        return dict(Counter(record.status for record in self.records()))

    def ranks(self) -> Iterator[Rank]:
        """Yield the processes of launches that run now."""
        begins = re.compile(
            rf"{re.escape(PYTHON)} .* bench --run "
            rf"{re.escape(str(self.results / self._name))}/logs/(\w+)/"
        )
        for pid, command in processes():
            match = begins.match(command)
            if match is None:
                continue
            with suppress(OSError):  # it has ended
                text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                env = dict(line.partition("=")[::2] for line in text.split("\0"))
                job = f"{env.get('SLURM_ARRAY_JOB_ID')}_{env.get('SLURM_ARRAY_TASK_ID')}"
                yield Rank(pid, match[1], env.get("SLURMD_NODENAME", ""), job)

    def hold(self, wanted: Callable[[Rank], bool] = lambda rank: True) -> Rank:
        """Wait for a rank and stop it (SIGSTOP), so that its launch lasts; return it."""
        held: list[Rank] = []

        def holds() -> bool:
            found = list(filter(wanted, self.ranks()))
            # Asked afterwards: what was measured meanwhile is on its way out.
            done = {record.run_id for record in self.records("ok")}
            for rank in found:
                if rank.run_id in done:
                    continue
                with suppress(ProcessLookupError):
                    rank.send(signal.SIGSTOP)
                    held.append(rank)
                    return True
            return False

        wait_until(holds, self.said)
        return held[0]

    def wait_for_end(self, job: str) -> str:
        """Wait until an element is over, with all its processes; return its last state."""
        state = self.cluster.wait_for(job, *ENDED, timeout_s=DEADLINE_S)
        assert [rank for rank in self.ranks() if rank.job == job] == []
        return state

    def run_rest(self) -> None:
        """Submit what is missing and wait for its end; then nothing is missing."""
        arrays = self.submit()
        wait_until(lambda: all(map(self.is_over, arrays)), self.said)
        assert set(self.states()) == {"done"}, self.said()
        assert self.submit() == []
        assert self.litter() == []

    def is_over(self, array: str) -> bool:
        """Say whether all elements of an array are."""
        said = self.cluster.client("squeue", "-h", "-r", "-t", "all", "-o", "%T", "-j", array)
        return set(said.stdout.split()) <= set(ENDED)

    def litter(self) -> list[str]:
        """Return what is left in the folder that is neither whole nor wanted."""
        broken = (self.folder / "quarantine").iterdir()
        return [str(path) for path in (*self.folder.rglob("*.tmp"), *broken)]

    def said(self) -> str:
        """Return what is needed to understand a test that failed."""
        logs = sorted((self.folder / "slurm" / "logs").glob("*"))
        parts = [self.cluster.client("squeue", "--all").stdout, str(self.counts())]
        parts += [f"{r.status}: {r.error.cause}" for r in self.records() if r.error is not None]
        return "\n".join([*parts, *(f"== {log.name}\n{log.read_text()}" for log in logs)])


#: States of a job that is over.
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"),
)  # fmt: skip
