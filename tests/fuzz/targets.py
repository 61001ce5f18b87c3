"""What is fuzzed: functions of bytes that accept them, or raise a HarnessError of one line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import slurm
from harness.config import expand, parse_sweep
from harness.config.yaml_dialect import load_text
from harness.detect import parse_counts
from harness.errors import HarnessError
from harness.nodelist import NodeListError, expand_hosts
from harness.store.reading import read_record
from harness.submit.site_files import parse_site
from harness.timeline import read_summary

_KEPT = tempfile.TemporaryDirectory(prefix="hvdscale-fuzz-")  # until this process ends
_FOLDER = Path(_KEPT.name)


def sweep(data: bytes) -> None:
    """A sweep's YAML, its points included."""
    plain = load_text(data.decode("utf-8", errors="replace"), "fuzz")
    if isinstance(plain, dict):
        expand(parse_sweep(plain), 2)


def site(data: bytes) -> None:
    """A site's YAML."""
    parse_site(data.decode("utf-8", errors="replace"), "fuzz")


def record(data: bytes) -> None:
    """A record's file."""
    path = _FOLDER / "record.json"
    path.write_bytes(data)
    read_record(path, "0123456789abcdef")


def timeline(data: bytes) -> None:
    """A file of Horovod's timeline."""
    path = _FOLDER / "timeline.json"
    path.write_bytes(data)
    read_summary(path)


def hosts(data: bytes) -> None:
    """Lists of hosts, counts, and what Slurm's commands print."""
    text = data.decode("utf-8", errors="replace")
    parse_counts(text)
    slurm.parse_queue(text)
    slurm.parse_jobs(text)
    slurm.parse_accounts(text)
    slurm.parse_partitions(text)
    try:
        expand_hosts(text)
    except NodeListError as error:
        raise HarnessError(str(error)) from None


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "sweep": sweep, "site": site, "record": record, "timeline": timeline, "hosts": hosts,
}  # fmt: skip


def check(name: str, data: bytes) -> None:
    """Give a target some bytes; anything but acceptance or one line of an error is raised."""
    try:
        TARGETS[name](data)
    except HarnessError as error:
        if "\n" in str(error) or not str(error):
            raise AssertionError(f"{name}: not one line: {error!s:.200}") from error
