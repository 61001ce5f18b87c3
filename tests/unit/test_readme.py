"""What the README says can be found: its links, its commands, its presets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from harness.cli.app import app
from harness.config import load_sweep, preset_names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"\]\((?!https?://|#)([^)#\s]+)", README)))
CODE = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", README, re.DOTALL))
COMMANDS = sorted(set(re.findall(r"\bhvdscale ([a-z-]+)", CODE)))


def test_there_is_something_to_check() -> None:
    assert len(LINKS) > 3
    assert len(COMMANDS) > 5


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    assert command in typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_all_commands_are_told() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert known <= set(COMMANDS)


def test_presets_named_in_the_readme_load() -> None:
    for name in preset_names():
        assert f"`{name}`" in README
        assert load_sweep(name).point["workload"]


def test_the_example_sweep_of_the_readme_is_a_sweep(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert blocks
    for index, block in enumerate(blocks):
        path = tmp_path / f"{index}.yaml"
        path.write_text(block, encoding="utf-8")
        assert load_sweep(str(path)).name
