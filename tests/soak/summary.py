"""What a soak came to, for people and for scripts."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import __version__
from tests.soak.check import Fault


@dataclass
class Soak:
    """The sums of all episodes so far."""

    seed: int
    started_at: str
    wall_s: float = 0.0
    episodes: Counter[str] = field(default_factory=Counter)  # by kind of launch
    runs: int = 0  # of the runner, those that were disturbed and those to the end
    points: int = 0  # launches asked for that are measured, each once
    launches: int = 0  # begun, those that failed included
    faults: Counter[str] = field(default_factory=Counter)  # injected, by kind
    broken: list[dict[str, Any]] = field(default_factory=list)

    def add(self, faults: list[Fault], episode: int, command: str, folder: Path | None) -> None:
        """Take what an episode broke; ``command`` repeats it."""
        for fault in faults:
            self.broken.append(
                {
                    "kind": fault.kind,
                    "what": fault.text,
                    "episode": episode,
                    "repeat": command,
                    "folder": str(folder) if folder else "",
                }
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        kinds = Counter(one["kind"] for one in self.broken)
        return {
            "seed": self.seed,
            "started_at": self.started_at,
            "minutes": round(self.wall_s / 60, 1),
            "hvdscale": __version__,
            "python": platform.python_version(),
            "episodes": dict(sorted(self.episodes.items())),
            "runs": self.runs,
            "points": self.points,
            "launches": self.launches,
            "faults": dict(sorted(self.faults.items())),
            "lost": kinds["lost"],
            "duplicated": kinds["duplicated"],
            "leaked_processes": kinds["leaked"],
            "broken": self.broken,
        }

    def text(self) -> str:
        """Return one screen in Markdown."""
        data = self.as_dict()
        episodes = ", ".join(f"{count} {kind}" for kind, count in data["episodes"].items())
        lines = [
            f"# Soak of {data['minutes']} minutes, seed {self.seed}",
            "",
            f"Begun {self.started_at}, hvdscale {__version__}, Python {data['python']}.",
            "",
            "| | |",
            "|---|---|",
            f"| episodes | {sum(self.episodes.values())} ({episodes}) |",
            f"| runs of the runner | {self.runs} |",
            f"| launches begun | {self.launches} |",
            f"| points measured, each once | {self.points} |",
            f"| records lost | {data['lost']} |",
            f"| duplicated | {data['duplicated']} |",
            f"| leaked processes | {data['leaked_processes']} |",
            f"| invariants broken | {len(self.broken)} |",
            "",
            f"Faults: {', '.join(f'{name} {n}' for name, n in data['faults'].items()) or 'none'}.",
        ]
        for one in self.broken[:20]:
            lines += ["", f"- {one['kind']}: {one['what']}", f"  Repeat: `{one['repeat']}`"]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Keep both in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        (folder / "README.md").write_text(self.text())
