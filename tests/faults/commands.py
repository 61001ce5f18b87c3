"""The commands themselves, in forks, on folders that are damaged or lie in odd places."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import cli, detect
from harness.analysis.collecting import load_arrow
from harness.config import sweep_to_yaml
from harness.store import Store
from tests import factories
from tests.faults import disturbed, kills, mounts
from tests.faults.checkpoints import Checkpoints
from tests.faults.forks import forked
from tests.faults.spoil import cut, flip

_READERS = ("ls", "collect", "plot", "report")
TRACEBACK = 70  # of forks.fork: an exception that nobody expected


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


def command(there: kills.Place, *words: str | Path) -> Said:
    """Give a command to ``hvdscale``, whose launches are the stub's."""
    out, err = there.root / "stdout", there.root / "stderr"
    err.unlink(missing_ok=True)

    def work() -> int:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.environ["HVDSCALE_DATA_DIR"] = str(there.root.parent)
        disturbed.put_in_stub(there.ledger)
        disturbed.put_in(detect, "detect_machine", lambda slots=None: disturbed.machine())
        return cli.main([str(word) for word in words])

    code = forked(work, err)
    said = Said(code, out.read_text(errors="replace"), err.read_text(errors="replace"))
    assert code != TRACEBACK, f"{words}: {said.err}"
    assert "Traceback" not in said.err, f"{words}: {said.err}"
    return said


def run(there: kills.Place) -> Said:
    source = there.root / "stub.yaml"
    source.write_text(sweep_to_yaml(disturbed.sweep()))
    return command(there, "run", source, "--results", there.results)


def damaged_records(folder: str, seed: int) -> dict[str, Any]:
    """Damage records and raw steps in each way; return what each command says of it."""
    root, chance = Path(folder), random.Random(seed)
    there = kills.place(root / "Ergebnisse für Köln — 測定 ☂ $(touch x)")
    assert run(there).code == 1
    expected = disturbed.results_of(there.folder)
    runs = there.folder / "runs"
    ids = sorted(Store.open(there.folder).done_ids())
    assert len(ids) == 4
    raw = {name: next(runs.glob(f"{name}.*.parquet")) for name in ids}
    flip(runs / f"{ids[0]}.json", chance)
    cut(runs / f"{ids[1]}.json", chance)
    flip(raw[ids[2]], chance)
    (runs / f"{ids[3]}.json").unlink()
    (runs / f"{ids[3]}.json").symlink_to("nowhere")
    (failed, *_) = runs.glob("*.attempt-1.json")
    flip(failed, chance)
    known = len(disturbed.measured(there.ledger))
    said = {
        "ls": command(there, "ls", there.folder),
        "collect": command(there, "collect", there.folder),
    }
    said["run"] = run(there)
    assert sorted(set(disturbed.measured(there.ledger)[known:]) & set(ids)) == ids
    for name in ids:
        assert re.search(rf"quarantine/{name}\.json: .*counts as missing", said["run"].err), said[
            "run"
        ]
        assert (there.folder / "quarantine" / f"{name}.reason.txt").is_file()
    failed.unlink()  # as its row in the table says
    assert disturbed.results_of(there.folder) == expected
    said["ls again"] = command(there, "ls", there.folder)
    return {
        "ids": ids,
        "failed": failed.name,
        **{name: (one.code, one.out, one.err) for name, one in said.items()},
    }


def damaged_tables(folder: str, seed: int, count: int) -> dict[str, int]:
    """Flip a bit of what ``collect`` wrote, again and again; return how often it is the same."""
    root, chance = Path(folder), random.Random(seed)
    sweep = factories.write_results(root / "s", factories.records(counts=(1, 2), blocks=1))
    good, path = load_arrow(sweep), sweep / "table.parquet"
    data, found = path.read_bytes(), Counter[str]()
    for _ in range(count):
        path.write_bytes(data)
        flip(path, chance)
        found["same" if load_arrow(sweep).equals(good) else "another"] += 1
    return dict(found)


def odd_names(folder: str) -> dict[str, list[int]]:
    """Run, list and collect a sweep in folders of every name; return the exit codes by name.

    The last name is no text in UTF-8: Linux allows it all the same.
    """
    root = Path(folder)
    everything = "two words, Müll—日本語 ☂ $(touch x);`y`\n&"
    found = {}
    for name in ("-rf", "a:b", "x" * 200, everything):
        there = kills.place(root / name)
        words = _READERS if name == everything else _READERS[:2]
        said = [run(there), *(command(there, word, there.folder) for word in words)]
        found[name[:9]] = [one.code for one in said]
        json.loads(command(there, "ls", "--json", there.results).out)
    # Copied there, results are no less whole; but what is written of them must be text.
    copied = there.root / os.fsdecode(b"latin-\xe9")
    shutil.copytree(there.folder, copied / "stub")
    source = there.root / "stub.yaml"
    said = [command(there, "run", source, "--results", copied)]
    said += [command(there, word, copied / "stub") for word in _READERS]
    for one in said:
        assert "no text in UTF-8; rename it" in one.err, one
        assert len(one.err.splitlines()) == 1, one
    found["latin"] = [one.code for one in said]
    listed = command(there, "ls", copied)  # one that cannot be read hides no others
    assert "no text in UTF-8" in listed.out, listed
    return found


def odd_places(folder: str) -> dict[str, tuple[int, str]]:
    """Give results that are no folder to each command; return what the worst of them say."""
    root = Path(folder)
    there = kills.place(root / "place")
    loop = root / "loop"
    loop.symlink_to(root / "pool")
    (root / "pool").symlink_to(loop)
    found: dict[str, tuple[int, str]] = {}
    for name, results in (("loop", loop), ("below a loop", loop / "results")):
        source = there.root / "stub.yaml"
        source.write_text(sweep_to_yaml(disturbed.sweep()))
        for words in (
            ("run", source, "--results", results),
            ("run", source, "--results", results, "--dry-run"),
            ("validate", source, "--results", results),
            ("ls", results),
            ("collect", results),
            ("collect", results / "stub"),
            ("plot", results / "stub"),
            ("report", results / "stub"),
        ):
            said = command(there, *words)
            assert said.code in (0, 2), f"{words}: {said}"
            if said.code == 2:
                assert len(said.err.strip().splitlines()) == 1, f"{words}: {said.err}"
            found[f"{name}: {words[0]} {len(words)}"] = (said.code, said.err.strip())
    return found


def foreign_files(folder: str, count: int) -> dict[str, Any]:
    """Put thousands of files into a sweep's folders that are none of its own; and go on."""
    root = Path(folder)
    there = kills.place(root / "place")
    assert forked(partial(_killed, there), there.log) == -9
    for below in ("", "runs", "logs", "quarantine"):
        for number in range(count):
            (there.folder / below / f".nfs{number:024x}").write_bytes(b"open elsewhere")
        (there.folder / below / "Notiz für später.txt").write_text("mine")
        (there.folder / below / "README.json.bak").write_text("{")
    old = there.folder / "runs" / f".{'0' * 16}.json.{'a' * 16}.tmp"
    for path, age_s in ((old, 90_000), (old.with_name(old.name.replace("a", "b")), 3600)):
        path.write_bytes(b"half a rec")
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))
    before = set(there.folder.rglob("*"))
    said = run(there)
    assert said.code == 1, said
    gone = before - set(there.folder.rglob("*"))
    listed = command(there, "ls", there.results)
    collected = command(there, "collect", "stub", "--results", there.results)
    assert disturbed.results_of(there.folder) == kills.undisturbed(root / "undisturbed")
    return {
        "gone": sorted(path.name for path in gone),
        "ls": (listed.code, listed.out, listed.err),
        "collect": (collected.code, collected.err),
    }


def _killed(there: kills.Place) -> int:
    Checkpoints(there.folder, "kill", 190, 9).install()
    return there.run()


def read_only(folder: str) -> dict[str, tuple[int, str, str]]:
    """Give each command a finished sweep on a file system that is read-only."""
    root = Path(folder)
    there = kills.place(root / "place")
    assert run(there).code == 1
    (there.folder / "runs" / f"{sorted(Store.open(there.folder).done_ids())[0]}.json").write_text(
        ""
    )
    found: dict[str, tuple[int, str, str]] = {}

    def work() -> int:
        mounts.leave_those_of_others()
        mounts.run(f"mount --bind {there.results} {there.results}")
        mounts.run(f"mount -o remount,bind,ro {there.results}")
        for name in ("run", "ls", "collect"):
            said = run(there) if name == "run" else command(there, name, there.folder)
            shutil.copy(there.root / "stdout", root / f"{name}.out")
            (root / f"{name}.err").write_text(said.err)
            (root / f"{name}.code").write_text(str(said.code))
        return 0

    assert forked(work, root / "log") == 0, (root / "log").read_text()
    for name in ("run", "ls", "collect"):
        texts = [(root / f"{name}.{part}").read_text() for part in ("code", "out", "err")]
        found[name] = (int(texts[0]), texts[1], texts[2])
    return found
