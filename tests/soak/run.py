"""``make soak``: random sweeps with random faults for as long as one likes.

After each sweep it is run to its end, and what a user is promised is checked. The seed is printed:
``--episode`` plays one episode again. The exit code is 1 where an invariant broke.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.mounts import may_mount  # noqa: E402
from tests.soak import plan  # noqa: E402
from tests.soak.descendants import adopt_orphans  # noqa: E402
from tests.soak.episode import Stage  # noqa: E402
from tests.soak.summary import Soak  # noqa: E402

MINUTES = 45.0


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the small disk is unmounted then
    adopt_orphans()
    kinds = tuple(arguments.kinds.split(","))
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
    started = datetime.now(UTC)
    soak = Soak(seed, started.isoformat(timespec="seconds"))
    out = arguments.out / started.strftime("%Y-%m-%d-%H%M%S")
    print(f"soak: seed {seed}, results in {out}", flush=True)
    mounts = not arguments.no_mount and may_mount()
    try:
        for number in _episodes(arguments, seed):
            _play(number, kinds, mounts, soak)
            soak.wall_s = (datetime.now(UTC) - started).total_seconds()
            soak.write(out)
    except KeyboardInterrupt:
        print("soak: interrupted; the present episode does not count", file=sys.stderr)
    print(soak.text())
    return int(bool(soak.broken))


def _episodes(arguments: argparse.Namespace, seed: int) -> Iterator[int]:
    if arguments.episode is not None:
        yield arguments.episode
        return
    dice, deadline = random.Random(seed), time.monotonic() + 60 * arguments.minutes
    while True:  # at least one
        yield dice.randrange(10**9)
        if time.monotonic() >= deadline:
            return


def _play(number: int, kinds: tuple[str, ...], mounts: bool, soak: Soak) -> None:
    made = plan.make(number, kinds, may_mount=mounts)
    folder = Path(tempfile.mkdtemp(prefix="hvdscale-soak-"))
    command = f"{sys.executable} tests/soak/run.py --kinds {','.join(kinds)} --episode {number}"
    played = Stage(made, folder, folder / "data").play()
    soak.episodes[made.kind] += 1
    soak.runs += played.runs
    soak.points += played.points
    soak.launches += played.launches
    soak.faults.update(played.happened)
    soak.add(played.faults, number, command, folder if played.faults else None)
    state = "; ".join(f"{one.kind}: {one.text}" for one in played.faults) or "ok"
    what = f"{len(made.batches)} points x {made.blocks}, {played.runs} runs"
    print(
        f"episode {number} ({made.kind}, {what}, {played.launches} launches): {state}", flush=True
    )
    if not played.faults:
        shutil.rmtree(folder)  # else it is the evidence


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or MINUTES)
    )
    parser.add_argument("--seed", type=int, help="of the episodes; random where it is not given")
    parser.add_argument("--episode", type=int, help="play this one alone")
    # Stub launches are quick: most of the chances are theirs.
    parser.add_argument(
        "--kinds", default=",".join(("stub",) * 4 + plan.KINDS), help="to choose from"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "soak")
    parser.add_argument("--no-mount", action="store_true", help="no small disk, even as root")
    found = parser.parse_args()
    unknown = set(found.kinds.split(",")) - {"stub", *plan.KINDS}
    if unknown:
        parser.error(
            f"--kinds: {', '.join(sorted(unknown))}; there are stub, {', '.join(plan.KINDS)}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
