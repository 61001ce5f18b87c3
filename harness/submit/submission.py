"""What is handed to Slurm at once, and how it is told to people."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import slurm
from harness.submit import script
from harness.submit.arrays import placement_text
from harness.submit.manifest import ArrayManifest, manifest_path, slurm_folder
from harness.submit.site import time_text


@dataclass(frozen=True)
class Batch:
    """One call of sbatch."""

    script: Path
    text: str  # of the script
    options: tuple[str, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command."""
        return slurm.submit_argv(self.options, self.script)


@dataclass(frozen=True)
class Submission:
    """Job arrays of what is missing, and the job that collects; before or after it was submitted.

    ``job_ids`` are those of ``arrays``, in their order, as far as they are submitted.
    """

    name: str
    results: Path  # the sweep's folder
    arrays: tuple[ArrayManifest, ...]
    python: str
    throttle: int | None = None
    after: str | None = None
    collects: bool = True
    earlier: tuple[str, ...] = ()  # arrays of submissions before that are in the queue
    done: int = 0  # launches that are no bases
    queued: int = 0
    left_out: int = 0
    job_ids: tuple[str, ...] = ()
    collect_id: str | None = None

    @property
    def folder(self) -> Path:
        """Return where its manifests and scripts are."""
        return slurm_folder(self.results) / self.name

    def array_batch(self, array: ArrayManifest) -> Batch:
        """Return what submits one of ``arrays``."""
        manifest = manifest_path(self.results, self.name, array.number)
        return Batch(
            manifest.with_suffix(".sh"),
            script.script(array, manifest, self.python),
            tuple(script.options(array, throttle=self.throttle, after=self.after)),
        )

    def collect_batch(self, job_ids: Sequence[str]) -> Batch:
        """Return what submits the job that collects after ``job_ids``, and after earlier arrays.

        Those, too, are still to bring something.
        """
        array = self.arrays[0]
        return Batch(
            self.folder / "collect.sh",
            script.collect_script(array, self.python),
            tuple(script.collect_options(array, (*self.earlier, *job_ids))),
        )

    @property
    def node_hours(self) -> float:
        """Return how much the elements take if each needs all of its time."""
        return sum(a.nodes * len(a.elements) * a.time_limit_s for a in self.arrays) / 3600

    def parsable(self) -> str:
        """Return the job ids, a line each: arrays, then the collection."""
        ids = (*self.job_ids, *((self.collect_id,) if self.collect_id is not None else ()))
        return "".join(f"{job_id}\n" for job_id in ids)

    def text(self) -> str:
        """Return what was submitted, in lines for people."""
        sweep = self.results.name
        known = f"{self.done} done, {self.queued} queued or running"
        known += f", {self.left_out} combinations left out" if self.left_out else ""
        if not self.arrays:
            return f"{sweep}: nothing to submit ({known})"
        launches = sum(len(e.points) + len(e.timelines) for a in self.arrays for e in a.elements)
        lines = [f"{sweep}: {_count(launches, 'launch', 'launches')} missing ({known})"]
        rows = [_row(array) for array in self.arrays]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        ids = [f"job {job_id}" for job_id in self.job_ids] or [""] * len(rows)
        for row, job in zip(rows, ids, strict=True):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(["", *cells, job]).rstrip())
        if self.collect_id is not None:
            lines.append(f"  collect and report when all are over  job {self.collect_id}")
        lines.append(f"{self.folder}: at most {self.node_hours:.1f} node-hours")
        return "\n".join(lines)

    def shell(self) -> str:
        """Return every script and every sbatch line, exactly as they are used, as a shell script.

        What a later line needs of an earlier one's answer is a variable. The manifests, which name
        every point, are not in it; run by mistake it says so and submits nothing.
        """
        if not self.arrays:
            return ""
        folders = (str(self.folder), str(script.log_folder(self.results)))
        parts = [
            "# A dry run, to be read: the manifests, array-K.json, are not among what is shown.",
            "echo 'hvdscale: a dry run is to be read; submit without --dry-run' >&2; exit 2",
            f"mkdir -p {shlex.join(folders)}",
            "",
        ]
        for array in self.arrays:
            batch = self.array_batch(array)
            parts += [_script_text(batch), f"ARRAY{array.number}=$({shlex.join(batch.argv)})", ""]
        if self.collects:
            batch = self.collect_batch([f"ARRAY{array.number}" for array in self.arrays])
            parts += [_script_text(batch), " ".join(map(_with_variables, batch.argv)), ""]
        return "".join(f"{part}\n" for part in parts)


def _script_text(batch: Batch) -> str:
    end = "END"
    while end in batch.text.splitlines():  # a site's set-up may have such a line, too
        end += "_"
    return f"cat > {shlex.quote(str(batch.script))} <<'{end}'\n{batch.text}{end}"


def _with_variables(token: str) -> str:
    """Quote one word of the collection's line, in which ids of arrays are variables."""
    if not token.startswith("--dependency=afterany:"):
        return shlex.quote(token)
    return re.sub(r"ARRAY\d+", r"${\g<0>}", token)


def _row(array: ArrayManifest) -> tuple[str, ...]:
    most = max(len(e.points) + len(e.bases) + len(e.timelines) for e in array.elements)
    return (
        f"array {array.number}",
        placement_text(array.placement),
        _count(len(array.elements), "element"),
        f"of {_count(array.nodes, 'node')}",
        f"up to {_count(most, 'launch', 'launches')} each",
        f"time limit {time_text(array.time_limit_s)}",
    )


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
