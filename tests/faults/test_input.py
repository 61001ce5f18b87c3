"""Configs that are bombs, or no configs: accepted, or refused in one line, within bounds."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import bounded as reading
from harness.config import expand, load_sweep, parse_sweep
from harness.config.placement import Placement
from harness.config.yaml_dialect import load_text
from harness.errors import MAX_CHARS, HarnessError
from harness.submit.site_files import parse_site
from tests.faults.bounded import Outcome, bounded, command
from tests.faults.hostile_commands import few_looks, impatient

BASIC = "name: x\nworkload: stress_strain\nbatch_size: 75\n"
THOUSAND = ", ".join(map(str, range(1, 1001)))
DEEP = 100_000


def _laughs() -> str:
    """A billion words in nine lines of aliases."""
    lines = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"]
    for this, last in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]\n")
    return "".join(lines)


BOMBS: dict[str, tuple[str | bytes, str]] = {
    "billion laughs": (_laughs(), r"aliases \(\*name\) are not allowed"),
    "python object": (BASIC + "seed: !!python/object/apply:os.system ['x']\n", "tags"),
    "a million digits": (BASIC + f"seed: {'9' * 1_000_000}\n", "4300 digits"),
    "four thousand digits": (BASIC + f"seed: {'9' * 4000}\n", "less than or equal to"),
    "an exponent": (BASIC + "measure: {window_s: 1e999999999}\n", "finite number"),
    "infinity": (BASIC + "measure: {window_s: .inf}\n", "finite number"),
    "not a number": (BASIC + "learning_rate: {base: .nan}\n", "finite number"),
    "brackets": (f"a: {'[' * DEEP}{']' * DEEP}", "recursion"),
    "braces": ("{a: " * DEEP, "recursion"),
    "keys of keys": ("? " * DEEP, "recursion"),
    "lists of lists": ("- " * DEEP, "recursion"),
    "JSON brackets": (f'{{"name": {"[" * DEEP}{"]" * DEEP}}}', "recursion"),
    "a nul byte": (BASIC + "seed: 1\0\n", "not valid YAML"),
    "no UTF-8": (BASIC.encode() + b"seed: \xff\n", "not UTF-8 text"),
    "UTF-16": (BASIC.encode("utf-16"), "not UTF-8 text"),
    "duplicate keys": (BASIC + "batch_size: 76\n", "'batch_size' is there twice"),
    "a merge key": (BASIC + "<<: {seed: 3}\n", "<<: unknown key"),
    "sexagesimal": (BASIC + "seed: 1:30\n", "seed: input should be a valid integer.*'1:30'"),
    "a timestamp": (BASIC + "seed: 2001-12-14\n", "seed: input should be a valid integer"),
    "a word of a megabyte": (BASIC + f"engine: {'k' * 1_000_000}\n", "is not one of horovod"),
    "all combinations left out": (
        BASIC + f"seed: [{THOUSAND}]\n"
        f"measure: {{warmup_steps: [{THOUSAND}], min_steps: [{THOUSAND}]}}\n"
        "exclude: [{engine: horovod}]\n",
        "more than 1000000 combinations",
    ),
    "too many points": (
        BASIC + f"seed: [{THOUSAND}]\nmeasure: {{min_steps: [{THOUSAND}]}}\n",
        "more than 100000 points",
    ),
    "placements of a million nodes": (
        BASIC + f"placement: [{', '.join(f'{1_000_000 - n}x1' for n in range(200))}]\n",
        "more than 10000000 nodes",
    ),
    "keys of a hundred thousand dots": (
        BASIC + f"include: [\n  ? workload{'.a' * DEEP}\n  : 1\n  ]\n",
        "levels deep|not valid YAML",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, words = BOMBS[name]
    path = tmp_path / "sweep.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = command("validate", str(path), "--results", str(tmp_path / "results"))
    _is_refused(found, words)


def _is_refused(found: Outcome, words: str = "") -> None:
    assert found.fault == ""
    assert found.is_refusal, (found.code, found.stderr[:500])
    assert re.search(words, found.stderr), found.stderr[:500]
    assert len(found.stderr) < MAX_CHARS + 100


@pytest.mark.parametrize(
    "text", ["\ufeff" + BASIC, BASIC.replace("\n", "\r\n")], ids=["bom", "crlf"]
)
def test_what_editors_add_is_accepted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_bytes(text.encode())
    found = command("validate", str(path), "--results", str(tmp_path / "results"))
    assert (found.code, found.fault) == (0, "")


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    found = command("validate", str(path), memory_bytes=128 << 20)
    _is_refused(found, "larger than 1 MiB; this is not a sweep")


def test_many_entries_of_exclude_for_many_combinations(tmp_path: Path) -> None:
    entries = ", ".join(f"{{seed: {n}}}" for n in range(2000, 2500))
    path = tmp_path / "sweep.yaml"
    path.write_text(f"{BASIC}seed: [{THOUSAND}]\nexclude: [{entries}]\n")
    _is_refused(bounded(few_looks, ("validate", str(path))), "exclude: too many entries")


def test_an_octal_number_is_what_it_looks_like() -> None:
    found = expand(parse_sweep(load_text(BASIC + "seed: 010\n", "t")))
    assert found.points[0].seed == 10  # and not 8


OVERRIDES = {
    f"workload{'.a' * 60_000}=1": "nested more than 20 levels deep",
    f"{'a' * 100_000}=1": "unknown key",
    f"seed={'[' * 50_000}": "not valid YAML",
    f"seed={'9' * 100_000}": "not valid YAML",
    "seed=\udc80": "not valid YAML",
}


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: ascii(text[:14]))
def test_overrides(tmp_path: Path, override: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(BASIC)
    _is_refused(command("validate", str(path), "--set", override), OVERRIDES[override])


class TestPipesAndDevices:
    """A path may lead to what never ends, or never begins."""

    def test_a_pipe_that_nobody_writes_to(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.yaml")
        found = bounded(impatient, ("validate", str(tmp_path / "pipe.yaml")))
        _is_refused(found, "pipe.yaml: cannot be read: it has not come to its end in 0.2 s")

    def test_a_preset_that_is_one(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.yaml")
        path = tmp_path / "sweep.yaml"
        path.write_text(f"{BASIC}horovod: {{preset: {tmp_path}/pipe.yaml}}\n")
        _is_refused(bounded(impatient, ("validate", str(path))), "has not come to its end")

    def test_a_site_that_is_one(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.yaml")
        path = tmp_path / "sweep.yaml"
        path.write_text(BASIC)
        argv = ("submit", str(path), "--site", str(tmp_path / "pipe.yaml"), "--dry-run")
        _is_refused(bounded(impatient, argv), "has not come to its end")

    def test_a_pipe_that_somebody_writes_to_late(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe.yaml"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=(BASIC,))
        reader = threading.Timer(0.2, writer.start)
        reader.start()
        try:
            assert load_sweep(str(pipe)).name == "x"
        finally:
            reader.join()
            writer.join()

    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/full"])
    def test_an_endless_device(self, device: str) -> None:
        _is_refused(command("validate", device), "larger than 1 MiB")

    def test_no_file_of_ours_is_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.json")
        for limit in (1, 1 << 30):
            with pytest.raises(reading.UnfitError, match="no regular file"):
                reading.read_file(tmp_path / "pipe.json", limit)


def test_a_spread_over_many_nodes_is_worked_out_at_once() -> None:
    slots = [8] * 100_000
    taken = bounded(partial(Placement(750_001).resolve, slots, "spread"))
    assert (taken.code, taken.fault) == (0, "")
    assert Placement(750_001).resolve(slots, "spread") == (8,) * 50_001 + (7,) * 49_999


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_spread_gives_the_emptiest_node_the_next_rank(
    slots: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(slots)))
    taken = [0] * len(slots)
    for _ in range(count):
        open_nodes = [node for node, there in enumerate(slots) if taken[node] < there]
        taken[min(open_nodes, key=lambda node: taken[node])] += 1
    assert Placement(count).resolve(slots, "spread") == tuple(n for n in taken if n)


# What a sweep may have, so that mutations get beyond the first look.
WHOLE: dict[str, Any] = {
    "name": "s",
    "workload": {"name": "stress_strain", "framework": "torch", "samples": 1000},
    "engine": ["horovod", "none"],
    "backend": ["mpi", "gloo"],
    "placement": ["1x1", "1x2", "8+2"],
    "placement_policy": "spread",
    "batch_size": [75, 700],
    "loader": {"workers": 2, "prefetch": 2},
    "execution": {"precision": "fp32", "accumulate": 1},
    "horovod": {"preset": "latency", "cycle_time_ms": 0.1, "groups": 2},
    "ddp": {"bucket_mb": 25.0},
    "learning_rate": {"rule": "sqrt", "base": 0.1},
    "cores_per_rank": "fixed",
    "seed": [1, 2],
    "measure": {"blocks": 2, "window_s": [1, 2], "instruments": ["phases"], "ci_target": 0.1},
    "train": {"epochs": 1, "target": 0.1},
    "base": "none@1",
    "include": [{"placement": "1x4", "seed": 7}, {"horovod.groups": 4}],
    "exclude": [{"backend": "gloo", "batch_size": 700}],
    "zip": [["seed", "backend"]],
}
SITE: dict[str, Any] = {
    "name": "s", "partition": "p", "nodes": 4, "cpus_per_node": 8, "gpus_per_node": 1,
    "gres": "gpu:a100", "memory": "10G", "launcher": "srun", "mpi_plugins": ["pmix"],
    "setup": ["module load x"], "environment": {"A": "b"}, "time_per_job": "1:00:00",
    "python": "/usr/bin/python3", "options": ["--nice=5"], "scratch": "$TMPDIR",
}  # fmt: skip

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "$(x)", "1x2", "8+2", "1e999", "0x10", "٣", "²", "1:30", "node", "a.b.c"]),
    st.lists(st.none() | st.integers(-2, 2) | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.none() | st.integers(), max_size=2),
)


def _paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in (
        data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    ):
        yield from _paths(data[key], (*at, key))


def mutated(whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Give ``whole`` with some of its values replaced, taken out, copied elsewhere or renamed."""
    paths = list(_paths(whole))

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        data = yaml.safe_load(yaml.safe_dump(whole))
        for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4)):
            _change(data, path, draw)
        result: dict[str, Any] = data
        return result

    return made()


def _change(data: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    for key in path[:-1]:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return  # a change before this one took it away
    if not isinstance(data, dict | list) or isinstance(data, list) != isinstance(path[-1], int):
        return
    how = draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap"]))
    if isinstance(data, list) and path[-1] >= len(data):
        return
    if how == "remove":
        data.pop(path[-1]) if isinstance(data, list) else data.pop(path[-1], None)
    elif how == "rename" and isinstance(data, dict):
        data[draw(st.text(max_size=6))] = data.pop(path[-1], None)
    elif how == "wrap" and (isinstance(data, list) or path[-1] in data):
        data[path[-1]] = [data[path[-1]], draw(ODD)]
    else:
        data[path[-1]] = draw(ODD)


def _accepted_or_refused(read: Callable[[], object]) -> None:
    refused = None
    try:
        read()
    except HarnessError as error:
        refused = error
    if refused is not None:
        assert refused.exit_code == 2
        assert "\n" not in str(refused)
        assert 0 < len(str(refused)) <= MAX_CHARS + 3


@settings(max_examples=150)
@given(mutated(WHOLE))
def test_a_mutated_sweep_is_accepted_or_refused(data: dict[str, Any]) -> None:
    _accepted_or_refused(lambda: expand(parse_sweep(data), 2))
    text = yaml.safe_dump(data, allow_unicode=True)
    _accepted_or_refused(lambda: expand(parse_sweep(load_text(text, "t")), 2))


@settings(max_examples=100)
@given(mutated(SITE))
def test_a_mutated_site_is_accepted_or_refused(data: dict[str, Any]) -> None:
    _accepted_or_refused(lambda: parse_site(yaml.safe_dump(data, allow_unicode=True), "t"))


WRITTEN = yaml.safe_dump(WHOLE)


@settings(max_examples=100)
@given(st.integers(0, len(WRITTEN)), st.integers(0, 40), st.binary(max_size=12))
def test_a_damaged_text_is_accepted_or_refused(at: int, removed: int, added: bytes) -> None:
    content = WRITTEN.encode()[:at] + added + WRITTEN.encode()[at + removed :]
    text = content.decode("utf-8", errors="replace")

    def read() -> None:
        data = load_text(text, "t")
        if isinstance(data, dict):
            expand(parse_sweep(data), 2)

    _accepted_or_refused(read)
