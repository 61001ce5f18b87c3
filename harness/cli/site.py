"""Subcommands about sites: drafting, listing and showing them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import ConfigError


def command_site_init(partition: str | None, name: str | None, out: Path | None) -> int:
    """Draft a site from what Slurm says, to ``out`` or stdout; a file there is never overwritten.

    Without a name it is called like its file, else like the partition.
    """
    from harness.store.files import write_new
    from harness.submit.site_facts import ask_slurm
    from harness.submit.site_init import draft_site

    if out is None:
        print(draft_site(ask_slurm(), partition, name), end="")
        return 0
    there = ConfigError(f"{out}: is there already; remove it, or give another --out")
    try:
        if out.is_symlink() or out.exists():
            raise there
        text = draft_site(ask_slurm(), partition, name or out.stem)
        out.parent.mkdir(parents=True, exist_ok=True)
        if not write_new(out, text.encode(), out.with_name(f".{out.name}.lock")):
            raise there
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}; give another --out") from (
            error
        )
    print(f"{out} written; fill in what it lacks, then: hvdscale site show {out}", file=sys.stderr)
    return 0


def command_site_ls(as_json: bool) -> int:
    """List the sites there are, those with a fault too, for which 1 is returned."""
    from harness.submit.site_files import list_sites, load_site

    rows: list[dict[str, str]] = []
    for site in list_sites():
        row = {"name": site.name, "from": site.place, "path": str(site.path)}
        try:
            rows.append({**row, "title": load_site(site.path).title})
        except ConfigError as error:
            rows.append({**row, "error": str(error)})
    if as_json:
        print(json.dumps(rows, indent=1))
    widths = [max([len(row[key]) for row in rows], default=0) for key in ("name", "from")]
    for row in rows if not as_json else ():
        cells = [row[key].ljust(width) for key, width in zip(("name", "from"), widths, strict=True)]
        said = row.get("title", f"cannot be used: {row.get('error')}")
        print("  ".join([*cells, said]).rstrip())
    return int(any("error" in row for row in rows))


def command_site_show(
    name_or_path: str, overrides: Sequence[str], as_json: bool, check: bool
) -> int:
    """Print a site with all its defaults; with ``check`` 1 is returned where Slurm says otherwise.

    What Slurm says is printed on stderr.
    """
    from harness.submit.site_files import find_site, site_to_yaml

    site = find_site(name_or_path, overrides)
    found: tuple[str, ...] = ()
    if check:
        from harness.submit.site_facts import ask_slurm, differences

        found = differences(site, ask_slurm())
    if as_json:
        print(json.dumps(site.model_dump(mode="json"), indent=1))
    else:
        print(site_to_yaml(site), end="")
    for difference in found:
        print(f"{site.name}: {difference}", file=sys.stderr)
    return int(bool(found))
