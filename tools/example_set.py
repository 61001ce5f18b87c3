#!/usr/bin/env python3
"""Make an example set of a results folder: what a reader needs, fit to publish.

    PYTHONPATH=. python3 tools/example_set.py SWEEP_DIR OUT_DIR [--about TEXT]

SWEEP_DIR is a sweep's folder, or one run of ``hvdscale allreduce``. Records lose the paths of the
machine, are checked and sealed anew; raw samples stay the bytes that they are. Logs and locks stay
behind. The same folder gives the same files, and so does a set that was made before. With --about,
TEXT is what its README says first; without, what it said first before stays.
"""

from __future__ import annotations

import argparse
import getpass
import io
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.collecting import load_arrow
from harness.analysis.collectives import render
from harness.analysis.table import render_table
from harness.collectives.record import RECORD, CollectivesRecord
from harness.collectives.record import read_record as read_collectives
from harness.collectives.writing import TIMES
from harness.errors import HarnessError, StoreError
from harness.record import RunRecord
from harness.store import Store, write_atomic
from harness.store.raw import RAW, find_raw
from harness.store.reading import read_record

LIMIT_BYTES = 2_000_000  # of raw samples; a set is part of every clone
KEPT = ("sweep.json", "points.json", "points-train.json", "sweep.yaml", "sweep.*.yaml")
CSV = "records.csv"  # not table.csv, which `collect` writes anew with the times of the files
README = "README.md"
#: The same on every machine, or the kernel's own: these paths tell a reader something.
PUBLIC = ("usr", "lib", "lib64", "bin", "sbin", "proc", "sys", "dev")
_PART = r"[\w.+@%~,-]+"
#: An absolute path in a text; what follows a letter, dot or bracket is a ratio or a relative path,
#: but for -I and -L, which compilers' paths follow.
PATH = re.compile(rf"(?:(?<![\w./~}}…)])|(?<=-[IL]))/(?!/){_PART}(?:/{_PART})*/?")
_HOME = re.compile(r"/(?:root|(?:home|Users)/[^/]+)(?=/|$)")
_OF_FILES = ("file", "file_bytes", "file_mtime_ns")
_MEASURED = "## Measured"


class Shortener:
    """Shortens the paths of the machine that a sweep was run on; what is short stays as it is."""

    def __init__(self, root: str | None, sweep: str, users: Iterable[str] = ()) -> None:
        """Take the folder whose parts are named from it on, and the sweep's name."""
        self.root, self.sweep = root, sweep
        self.user = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in users) or "(?!)")

    def text(self, text: str, where: str = "text") -> str:
        """Return a text with short paths; StoreError where a user's name is left in it."""
        short = PATH.sub(lambda match: self._path(match[0]), text)
        if found := self.user.search(short):
            raise StoreError(f"{where}: the user name '{found[0]}' is in it: '{short}'")
        return short

    def value(self, value: Any, where: str = "record") -> Any:
        """Return plain data with every text in it shortened, keys too."""
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, Mapping):
            return {
                self.text(key, where): self.value(one, f"{where}.{key}")
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(one, where) for one in value]
        return value

    def _path(self, path: str) -> str:
        if path.split("/")[1] in PUBLIC:
            return path
        if self.root and path.startswith(f"{self.root}/"):
            return path[len(self.root) + 1 :]
        if path == self.root:
            return "."
        _, logs, rest = path.partition(f"/{self.sweep}/logs/")
        if logs:
            return logs[1:] + rest
        if home := _HOME.match(path):
            return f"~{path[home.end() :]}"
        return f"…/{path.rstrip('/').rpartition('/')[2]}"


def make_set(source: Path, out: Path, about: str | None = None) -> None:
    """Write the example set of ``source`` into ``out``; HarnessError where that cannot be right."""
    if source.resolve() == out.resolve():  # what it held goes away, and its raw samples with it
        raise StoreError(f"{out}: is the folder that the set is made of; choose another one")
    if out.exists() and not (out / README).is_file() and any(out.iterdir()):
        raise StoreError(f"{out}: holds something else than an example set; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    make = _collectives if (source / RECORD).is_file() else _sweep
    lines = make(source, out)
    title = [f"# {out.name}", "", about or _about(out / README), ""]
    write_atomic(out / README, "\n".join([*title, *lines, ""]).encode())


def _sweep(source: Path, out: Path) -> list[str]:
    store = Store.open(source)
    names = sorted(path.name for path in store.runs.glob("*.json"))
    records = {name: read_record(store.runs / name, name.partition(".")[0]) for name in names}
    if not records:
        raise StoreError(f"{source}: holds no records")
    shorten = Shortener(_root(records.values()), store.name, _users())
    published = {name: _published(record, name, shorten) for name, record in records.items()}
    for path in sorted(path for pattern in KEPT for path in source.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if shorten.text(text, str(path)) != text:
            raise StoreError(f"{path}: has an absolute path, which a config for others cannot have")
        write_atomic(out / path.name, text.encode())
    (out / "runs").mkdir(exist_ok=True)
    for path in (out / "runs").iterdir():
        path.unlink()
    for name, record in published.items():
        write_atomic(out / "runs" / name, record.text())
    _copy_raw(store, records.values(), out / "runs")
    return _sweep_text(out, list(published.values()))


def _published(record: RunRecord, name: str, shorten: Shortener) -> RunRecord:
    data = record.model_dump(mode="json")
    config = data["config"]
    if shorten.value(config, f"{name}: config") != config:
        raise StoreError(
            f"{name}: its config has an absolute path, and the run's id is a hash of its config; "
            "measure again with a relative path"
        )
    return RunRecord.model_validate(shorten.value(data, name)).sealed()


def _copy_raw(store: Store, records: Iterable[RunRecord], runs: Path) -> None:
    """Copy raw samples, telemetry last, as long as the set stays small: a kind is all or none."""
    size = 0
    done = sorted((one for one in records if one.status == "ok"), key=lambda one: one.run_id)
    for kind in RAW:
        files = [path for one in done if (path := _raw(store.runs, one, kind)) and path.exists()]
        size += sum(path.stat().st_size for path in files)
        for path in files if size <= LIMIT_BYTES else ():
            write_atomic(runs / path.name, path.read_bytes())


def _raw(runs: Path, record: RunRecord, kind: str) -> Path | None:
    """Return the place of a record's raw samples; None where it has none of this kind."""
    digest = getattr(record, f"{kind}_sha256")
    return find_raw(runs, record.run_id, kind, digest) if digest else None


def _collectives(source: Path, out: Path) -> list[str]:
    record = read_collectives(source / RECORD)
    shorten = Shortener(_root([record]), source.name, _users())
    data = shorten.value(record.model_dump(mode="json"), RECORD)
    short = CollectivesRecord.model_validate_json(json.dumps(data)).sealed()
    table = shorten.text(render(short), "table.txt")
    write_atomic(out / RECORD, (short.model_dump_json(indent=1) + "\n").encode())
    write_atomic(out / TIMES, (source / TIMES).read_bytes())
    write_atomic(out / "table.txt", f"{table}\n".encode())
    command = " ".join(["hvdscale allreduce", *_after("allreduce", short.argv)])
    return [
        *_measured([short], f"`{command}`, {short.world_size} ranks by `{short.launcher}`"),
        *("```text", table, "```", ""),
        f"`{RECORD}` holds these rows, `{TIMES}` the raw times. {_shortened('the record')}",
    ]


def _sweep_text(out: Path, records: Sequence[RunRecord]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(out, Path(folder) / out.name)
        write_atomic(out / CSV, _csv(copy))
        table = render_table(copy)
    verbs = sorted({"train" if record.kind == "train" else "run" for record in records})
    command = " and ".join(f"`hvdscale {verb} sweep.yaml{_slots(records)}`" for verb in verbs)
    missing = [
        kind
        for kind in RAW
        for one in records
        if (path := _raw(out / "runs", one, kind)) and not path.exists()
    ]
    kinds = " and ".join(dict.fromkeys(missing))
    left_out = f" Raw {kinds} are left out: too large." if missing else ""
    return [
        *_measured(records, command),
        *("```text", table, "```", ""),
        f"`runs/` holds the records, failed launches too, and raw samples; `{CSV}` has a row a "
        f"record.{left_out} `hvdscale ls`, `collect` and `plot` read the folder. "
        f"{_shortened('records')}",
    ]


def _slots(records: Iterable[RunRecord]) -> str:
    """Return the option without which a host takes no more ranks than it has cores."""
    crowded = [
        max(one.resolved.placement)
        for one in records
        if one.resolved.device == "cpu"
        and max(one.resolved.placement) > one.provenance.get("cores", math.inf)
    ]
    return f" --slots {max(crowded)}" if crowded else ""


def _shortened(what: str) -> str:
    return (
        f"Logs are left out. In {what}, paths of the machine are shortened (`.venv/bin/python`, "
        "`~/…`, `…/name`), and with that the checksum is new; no figure was changed."
    )


def _measured(records: Sequence[RunRecord | CollectivesRecord], command: str) -> list[str]:
    provenance = [one.provenance for one in records if one.provenance]
    nodes = [node for one in provenance for node in one.get("nodes", {}).values()]
    loads = [node["load_at_start"]["load_1min"] for node in nodes if "load_at_start" in node]
    commits = [text for one in provenance for text in _commit(one.get("harness", {}))]
    packages = [f"{name} {v}" for one in provenance for name, v in _versions(one)]
    times = min(one.started_at for one in records), max(one.ended_at for one in records)
    gpus = list(filter(None, map(_gpu, provenance)))
    facts = [
        ("with", command),
        ("when", " to ".join(time[:16].replace("T", " ") for time in times) + " UTC"),
        ("processor", _listed(f"{p.get('cpu_model')}, {p.get('cores')} cores" for p in provenance)),
        *([("GPU", _listed(gpus))] if gpus else []),
        ("system", _listed(f"{node['os']}, kernel {node['kernel']}" for node in nodes)),
        ("virtual machine", "yes" if any(node.get("hypervisor") for node in nodes) else "no"),
        ("load when a launch began", f"{min(loads)} to {max(loads)}" if loads else "not known"),
        ("software", _listed(packages)),
        ("hvdscale's commit", _listed(commits)),
    ]
    return [_MEASURED, "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts), ""]


def _gpu(provenance: Mapping[str, Any]) -> str:
    found = provenance.get("gpu") or {}
    if not found:
        return ""
    memory = f"{found['memory_bytes'] / 2**30:.0f} GiB"
    return f"{found['model']}, {memory}, {found['power_limit_w']:.0f} W, driver {found['driver']}"


def _versions(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Python", provenance["python"]
    for name in ("torch", "tensorflow", "horovod", "mpi4py", "numpy"):
        if name in provenance.get("packages", {}):
            yield name, provenance["packages"][name]
    if library := (provenance.get("mpi") or {}).get("library"):
        yield "MPI:", library.partition(",")[0]


def _commit(harness: Mapping[str, Any]) -> Iterator[str]:
    if harness.get("commit"):
        yield harness["commit"][:12] + " with changes" * bool(harness.get("dirty"))


def _csv(folder: Path) -> bytes:
    from pyarrow import csv

    table = load_arrow(folder).drop_columns(list(_OF_FILES))
    buffer = io.BytesIO((",".join(table.column_names) + "\n").encode())
    buffer.seek(0, io.SEEK_END)
    csv.write_csv(table, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return buffer.getvalue()


def _root(records: Iterable[RunRecord | CollectivesRecord]) -> str | None:
    """Return the folder of the virtual environment that the ranks ran in, None without one."""
    for record in records:
        executable = record.provenance.get("executable", "")
        found = re.fullmatch(r"(/.+)/[^/]+/bin/[^/]+", executable)
        if found and found[1].split("/")[1] not in PUBLIC:
            return found[1]
    return None


def _about(readme: Path) -> str:
    """Return what a set's README said before what is measured."""
    if not readme.is_file():
        return ""
    before, _, _ = readme.read_text(encoding="utf-8").partition(_MEASURED)
    return before.partition("\n")[2].strip()


def _users() -> set[str]:
    return {getpass.getuser()} - {"root"}  # no name, and part of options of Open MPI


def _after(word: str, argv: Sequence[str]) -> Sequence[str]:
    return argv[argv.index(word) + 1 :] if word in argv else ()


def _listed(found: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(found)) or "not known"


def main() -> int:
    """Make the set that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, metavar="SWEEP_DIR")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--about", help="what the set's README says first")
    given = parser.parse_args()
    try:
        make_set(given.source, given.out, given.about)
    except HarnessError as error:
        print(f"example_set: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"example_set: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
