"""``make bench``: what the harness itself costs, as figures beside their budgets.

Nothing is asserted: times are of the machine and of the moment. The exit code is 0 unless
something crashes.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

HVDSCALE = (sys.executable, "-m", "harness")
HELP_STARTS, POINTS, RECORDS = 10, 10_000, 10_000
STUB_POINTS, MANY_RECORDS = 10_000, 100_000


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    found: str
    budget: str
    within: bool

    def __str__(self) -> str:
        verdict = "within budget" if self.within else "over budget"
        return f"{self.what:<34} {self.found}\n{'':<34} budget {self.budget}: {verdict}"


def bench_help(_: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    """Start ``hvdscale --help`` some times; the median is judged."""
    entry = Path(sys.executable).with_name("hvdscale")
    command = [str(entry)] if entry.exists() else list(HVDSCALE)
    times = [_seconds([*command, "--help"], folder) for _ in range(HELP_STARTS)]
    median = statistics.median(times)
    found = f"{min(times):.3f} s best, {median:.3f} s median of {len(times)}"
    yield Figure("hvdscale --help", found, "0.3 s", median < 0.3)


def bench_expand(_: argparse.Namespace, __: Path) -> Iterator[Figure]:
    """Expand a sweep of two axes."""
    from harness.config import parse_sweep
    from harness.config.expand import expand

    side = round(POINTS**0.5)
    sweep = parse_sweep(
        {
            "name": "large",
            "workload": "stress_strain",
            "batch_size": list(range(1, side + 1)),
            "horovod": {"cycle_time_ms": [k / 10 for k in range(1, side + 1)]},
            "placement": "1x2",
        }
    )
    started = time.perf_counter()
    points = expand(sweep).points
    wall_s = time.perf_counter() - started
    yield Figure(f"expanding {len(points):,} points", f"{wall_s:.3f} s", "1 s", wall_s < 1)


def bench_collect(_: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    """Run ``hvdscale collect``, its start included, on records that it has not seen."""
    from tests.factories import records, write_results

    made = records(counts=range(1, 25), backends=("mpi", "gloo"), batches=(75, 700), blocks=103)
    results = write_results(folder / "large", islice(made, RECORDS))
    os.sync()  # the disk should be done with making the records before collecting is timed
    count = sum(1 for _ in (results / "runs").glob("*.json"))
    command = [*HVDSCALE, "collect", str(results)]
    first_s, again_s = _seconds(command, folder), _seconds(command, folder)
    found = f"{first_s:.2f} s ({again_s:.2f} s when nothing is new)"
    yield Figure(f"collect of {count:,} records", found, "5 s", first_s < 5)


def bench_points(arguments: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    """Run a sweep of stub points: what the runner itself takes for each, and its memory."""
    from tests.bench.points import BUDGET_MS, measure

    found = measure(arguments.points, folder / "points")
    what = f"runner's own time a point of {arguments.points:,}"
    yield Figure(what, str(found), f"{BUDGET_MS:.0f} ms", found.mean_ms < BUDGET_MS)
    growth = f"{found.growth_mb:.1f} MB from the first tenth's end to the last"
    yield Figure("its memory", f"{found.rss_mb:.0f} MB, {growth}", "flat", found.growth_mb < 20)


def bench_folder(arguments: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    """List, resume, ask for the status of and collect a sweep that is done, as commands."""
    from harness.config import sweep_to_yaml
    from harness.detect import detect_machine
    from tests.bench.folders import SLOTS, large_sweep, write_done

    sweep, results = large_sweep(arguments.records, "done"), folder / "many"
    _, count = write_done(sweep, detect_machine(SLOTS), results)
    (results / "done.yaml").write_text(sweep_to_yaml(sweep))
    os.sync()
    place = ["--results", str(results)]
    commands = {
        "ls": ["ls", str(results / "done")],
        "run, all of it done": ["run", str(results / "done.yaml"), "--slots", str(SLOTS), *place],
        "status": ["status", "done", *place],
        "collect": ["collect", "done", *place],
        "collect, nothing new": ["collect", "done", *place],
    }
    for what, words in commands.items():
        wall_s = _seconds([*HVDSCALE, *words], folder)
        yield Figure(f"{what}, {count:,} records", f"{wall_s:.1f} s", "60 s", wall_s < 60)


def bench_overhead(arguments: argparse.Namespace, folder: Path) -> Iterator[Figure]:
    """Compare steps a second with a bare Horovod loop's."""
    from tests.bench.overhead import BUDGET, measure

    backends = arguments.backends.split(",")
    for backend in backends:
        found = measure(backend, arguments.quads, folder)
        what = f"bench / bare loop, {backend}, 2 ranks"
        yield Figure(what, str(found), f"{BUDGET:.2f}", found.mean >= BUDGET)


Section = Callable[[argparse.Namespace, Path], Iterator[Figure]]
SECTIONS: dict[str, Section] = {
    "help": bench_help,
    "expand": bench_expand,
    "collect": bench_collect,
    "overhead": bench_overhead,
    "points": bench_points,
    "folder": bench_folder,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the harness itself costs.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quads", type=int, default=10, help="ABBA blocks of bench and the loop")
    parser.add_argument("--points", type=int, default=STUB_POINTS, help="of the points section")
    parser.add_argument("--records", type=int, default=MANY_RECORDS, help="of the folder section")
    parser.add_argument("--backends", default="mpi,gloo", help="of the overhead section")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown or arguments.quads < 1:
        parser.error(f"sections are {', '.join(SECTIONS)}; --quads is 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no launch and no folder behind
    load = os.getloadavg()[0]
    print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before the start", flush=True)
    with tempfile.TemporaryDirectory(prefix="hvdscale-bench-") as name:
        for section in arguments.sections or SECTIONS:
            for figure in SECTIONS[section](arguments, Path(name)):
                print(figure, flush=True)


def _seconds(command: list[str], folder: Path) -> float:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    started = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
