"""Reading sweeps: what is accepted, and the one line a user gets for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.config import apply_overrides, expand, load_sweep, parse_sweep, sweep_to_yaml
from harness.config.yaml_dialect import dump, load_text
from harness.errors import ConfigError

BASIC = "name: x\nworkload: stress_strain\nbatch_size: 75\n"


def load(tmp_path: Path, text: str, *overrides: str) -> Any:
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return expand(load_sweep(str(path), overrides))


FAULTS = {
    # the file
    "": "s.yaml: is empty; a sweep has at least",
    "- a\n": "expected keys and values at the top",
    "a: [\n": "not valid YAML.*line 2",
    "\x00": "not valid YAML",
    "!!python/object:os.system x": r"line 1: tags \(!!python/object:os\.system\) are not allowed",
    BASIC + "seed: !!binary aGk=\n": r"line 4: tags \(!!binary\) are not allowed",
    BASIC + "seed: !!set {a}\n": r"tags \(!!set\)",
    BASIC + "zip: !!python/tuple [a]\n": r"tags \(!!python/tuple\)",
    BASIC + "seed: !!int '010'\n": r"tags \(!!int\)",
    BASIC + "seed: !mine 3\n": r"tags \(!mine\)",
    BASIC + "<<: {seed: 3}\n": "<<: unknown key",
    'name: "a\\ud800"\n': r"'a\\ud800' has the character U\+D800, no text",
    'name: "a\\x00"\n': r"'a\\x00' has the character U\+0000",
    BASIC + 'include: [{workload: {note: "\\e[31m"}}]\n': r"has the character U\+001B",
    BASIC + '"\\x07": 3\n': r"'\\x07' has the character U\+0007",
    BASIC + f'backend: "{"a" * 999}\\x9f"\n': r"\.\.\.' has the character U\+009F",
    "name: x\nname: y\n": "line 2: key 'name' is there twice",
    "1: 2\n": "line 1: key 1 is not text",
    "a: &x [1]\nb: *x\n": r"line 2: aliases \(\*name\) are not allowed",
    "[" * 5000: "not valid YAML",
    "a: " + "[" * 30 + "]" * 30: "nested more than 20 levels",
    "--- a\n--- b\n": "single document",
    "batch_size: " + "9" * 5000: "not valid YAML",
    # keys
    "workload: stress_strain\n": "name is missing; it names the folder",
    "name: x\n": "workload is missing",
    BASIC + "batchsize: 3\n": "batchsize: unknown key.*'batch_size'",
    BASIC + "horovod: {cycle_time: 1}\n": r"horovod\.cycle_time: unknown key.*'cycle_time_ms'",
    BASIC + "measure: {window: 1}\n": r"measure\.window: unknown key.*'window_s'",
    BASIC + "horovod: 3\n": "horovod: expected keys and values, got 3",
    BASIC + "measure:\n": "measure: expected keys and values, got None",
    BASIC + "measure: {blocks: [1, 2]}\n": r"measure\.blocks: one value for the whole sweep",
    BASIC
    + "base: {engine: none, placements: 1x1}\n": r"base\.placements: unknown key.*'placement'",
    BASIC + "base: none@2\n": "'none@2' is not one of none@1, horovod@1, ddp@1, node",
    BASIC + "include: 3\n": "include: input should be a list, got 3",
    BASIC + "include: [{bacend: mpi}]\n": "bacend: unknown key.*'backend'",
    BASIC + "exclude: [{bacend: mpi}]\n": "exclude: bacend: unknown key.*'backend'",
    BASIC + "exclude: [{horovod.cycle: 1}]\n": r"exclude: horovod\.cycle: unknown key",
    BASIC + "exclude: [{}]\n": "exclude: an entry without keys",
    BASIC + "exclude: [{engine: horovod}]\n": "exclude leaves no points",
    BASIC + "exclude: [{engine: horvod}]\n": r"exclude: engine: 'horvod' is not one of.*'horovod'",
    BASIC + "exclude: [{engine: [none, horvod]}]\n": "exclude: engine: 'horvod' is not one of",
    BASIC + "exclude: [{placement: 2y4}]\n": "exclude: placement: '2y4' is not a placement",
    BASIC + "exclude: [{seed: yes}]\n": "exclude: seed: expected a number, got True",
    BASIC + "exclude: [{seed: []}]\n": "exclude: seed: an empty list is like no point",
    BASIC + "exclude: [{seed: {}}]\n": r"exclude: seed: .*integer, got \{\}",
    BASIC + "exclude: [{horovod: {}}]\n": "exclude: horovod: name a key of it, e.g.",
    BASIC + "exclude: [{horovod: 3}]\n": "exclude: horovod: name a key of it, e.g.",
    BASIC + "exclude: [{horovod.groups: -1}]\n": r"exclude: horovod\.groups: .*got -1",
    BASIC + "exclude: [{engine: ddp, seed: 1}]\n": r"no point is like \{engine: ddp, seed: 1\};",
    BASIC + "seed: [1, 2]\nexclude: [{seed: 2}, {seed: 3}]\n": r"no point is like \{seed: 3\}",
    BASIC + "include: [{seed: 3}]\nexclude: [{seed: 3}]\n": r"no point is like \{seed: 3\}",
    BASIC + "seed: [1, 2]\nzip: [[seed], [seed]]\n": "zip: seed is there twice",
    BASIC + "seed: [1, 2]\nzip: [seed, seed]\n": "zip: seed is there twice",
    BASIC + "seed: [1, 2]\nzip: [seed, batch_size]\n": "zip: batch_size is no list",
    BASIC + "zip: [measure.instruments]\nmeasure: {instruments: [phases]}\n": (
        r"zip: measure\.instruments is no list"
    ),
    BASIC + "zip: [nope]\n": "zip: nope is not a key of this sweep",
    BASIC + "seed: [1, 2, 3]\nbackend: [mpi, gloo]\nzip: [seed, backend]\n": (
        "seed has 3, backend has 2"
    ),
    # values
    "name: a b\nworkload: w\nbatch_size: 1\n": "'a b' cannot name a folder of results",
    "name: ../x\nworkload: w\nbatch_size: 1\n": "cannot name a folder of results",
    "name: 5\nworkload: w\nbatch_size: 1\n": "name: input should be a valid string, got 5",
    "name: x\nworkload: {samples: 3}\nbatch_size: 1\n": r"workload\.name: is missing",
    "name: x\nworkload: {name: w, framework: pytorch}\nbatch_size: 1\n": "did you mean 'torch'",
    "name: x\nworkload: {name: w, samples: {a: 1}}\nbatch_size: 1\n": r"samples: .*got \{'a': 1\}",
    "name: x\nworkload: w\n": "scaling: weak needs batch_size",
    BASIC + "scaling: strong\n": "scaling: strong needs global_batch_size",
    BASIC + "global_batch_size: 4\n": "scaling: weak takes batch_size, not global_batch_size",
    "name: x\nworkload: w\nscaling: strong\nglobal_batch_size: 7\nplacement: 1x2\n": (
        "global_batch_size 7 cannot be divided by 2 ranks"
    ),
    **{
        f"name: x\nworkload: w\nbatch_size: {value}\n": f"batch_size: {words}"
        for value, words in {
            "big": "input should be a valid integer.*got 'big'",
            "yes": "expected a number, got True",
            "0": "input should be greater than 0, got 0",
            "-4": "input should be greater than 0, got -4",
            ".nan": "input should be a finite number, got nan",
            "7.5": "input should be a valid integer.*got 7.5",
            "[75, x]": "input should be a valid integer.*got 'x'",
            "[]": "an empty list has no points",
            "x" * 999: r".{1,150}\.\.\.$",
        }.items()
    },
    BASIC + "engine: horvod\n": "engine: 'horvod' is not one of.*'horovod'",
    BASIC + "backend: nccll\n": "backend: 'nccll' is not one of.*'nccl'",
    BASIC + "launcher: mpiruns\n": "launcher: 'mpiruns' is not one of.*'mpirun'",
    BASIC + "engine: none\nlauncher: mpiruns\n": "launcher: 'mpiruns' is not one of",
    BASIC + "engine: none\nbackend: banana\n": "backend: 'banana' is not one of",
    BASIC + "engine: none\nlauncher: 3\n": "launcher: 3 is not one of",
    BASIC + "placement_policy: pak\nplacement: 1x2\n": "placement_policy: 'pak' is not.*'pack'",
    BASIC + "engine: ddp\nhorovod: {groups: -1}\n": r"horovod\.groups: .*got -1",
    **{
        BASIC + f"{key}: {{}}\n": rf"{key}: .*\{{\}}"
        for key in ("seed", "engine", "backend", "placement", "cores_per_rank", "data")
    },
    BASIC + "horovod: {cycle_time_ms: {}}\n": r"horovod\.cycle_time_ms: .*got \{\}",
    BASIC + "measure: {blocks: {}}\n": r"measure\.blocks: .*got \{\}",
    BASIC + "include: [{seed: {}}]\n": r"seed: .*got \{\}",
    "name: x\nworkload: {}\nbatch_size: 1\n": r"workload\.name: is missing",
    "name: x\nworkload: {name: w, samples: {}}\nbatch_size: 1\n": r"samples: .*got \{\}",
    BASIC + "placement: 2y4\n": "placement: '2y4' is not a placement: write 2x4, 8",
    BASIC + "placement: true\n": "placement: True is not a placement",
    BASIC + "placement: 2:4\n": "placement: '2:4' is not a placement",  # YAML 1.1: 124
    BASIC + "cores_per_rank: fixd\n": "cores_per_rank: 'fixd' is neither 'fixed' nor 'share' nor a",
    BASIC + "cores_per_rank: 0\n": "cores_per_rank: 0 is neither",
    BASIC + "seed: -1\n": "seed: input should be greater than or equal to 0, got -1",
    BASIC + "measure: {window_s: .nan}\n": r"measure\.window_s: .*finite number, got nan",
    BASIC + "measure: {window_s: [1, .inf]}\n": r"measure\.window_s: .*finite number, got inf",
    BASIC + "measure: {timeout_s: 0}\n": r"measure\.timeout_s: .*greater than 0",
    **{
        BASIC
        + f"{group}: {{{key}: {value}}}\n": rf"{group}\.{key}: should be at most 1[e+0-9]*, got 1e"
        for group, key, value in (
            ("horovod", "cycle_time_ms", "1e300"),
            ("horovod", "fusion_threshold_mb", "1e300"),
            ("horovod", "groups", 10**9),
            ("measure", "warmup_steps", 10**8),
            ("measure", "window_s", "1e7"),
            ("measure", "min_steps", 10**8),
            ("measure", "timeout_s", "1e300"),
            ("measure", "blocks", 10**9),
            ("measure", "max_blocks", 10**9),
        )
    },
    BASIC + "measure: {window_s: 600}\n": "window_s: 600 s cannot end within .*timeout_s: 600 s",
    BASIC + "measure: {window_s: [1, 3], timeout_s: 2}\n": "window_s: 3 s cannot end within",
    BASIC + "include: [{measure: {window_s: 601}}]\n": "window_s: 601 s cannot end within",
    BASIC + "measure: {ci_target: 0.1, blocks: 20}\n": "max_blocks 10 is below blocks 20",
    BASIC + "measure: {instruments: phases}\n": "instruments: input should be a list, got 'phases'",
    BASIC + "horovod: {cycle_time_ms: true}\n": "expected a number, got True",
    BASIC + "horovod: {fusion_threshold_mb: 1e400}\n": "finite number, got inf",
    BASIC + "execution: {accumulate: 0, precision: fp8}\n": r"'fp8' is not.*\(and 1 more\)",
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: repr(text.replace(BASIC, ""))[:50])
def test_a_fault_is_one_line_that_says_what_and_where(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=FAULTS[text]) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 350
    assert "s.yaml" in message or "sweep x" in message
    assert caught.value.exit_code == 2


def test_files_that_are_no_text(tmp_path: Path) -> None:
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00x")
    cases = {
        str(binary): "not UTF-8 text",
        str(tmp_path): "Is a directory",
        str(tmp_path / "no.yaml"): "No such file or directory",
        "no-such-preset": "is no file and no preset",
        "/dev/zero": "larger than 1 MiB",
    }
    for source, words in cases.items():
        with pytest.raises(ConfigError, match=words):
            load_sweep(source)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert len(load(tmp_path, "\ufeff" + BASIC).points) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-02", "2026-01-02"), ("=", "="),
        ("1e-3", 0.001), ("1E3", 1000.0), ("1.5e+2", 150.0), (".5", 0.5), ("-2", -2),
        ("1_000", 1000),
        ("010", "010"), ("2:4", "2:4"), ("0x10", "0x10"), ("8+2", "8+2"), ("2x4", "2x4"),
        ("'1e-3'", "1e-3"), ("true", True), ("null", None), ("", None), ("-", [None]), ("1.", 1.0),
    ],
)  # fmt: skip
def test_numbers_are_what_people_mean(text: str, value: object) -> None:
    got = load_text(text, "t")
    assert got == value
    assert type(got) is type(value)


TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ).filter(lambda data: "\ufeff" not in repr(data))
)
def test_what_is_dumped_is_read_back(data: Any) -> None:
    assert load_text(dump(data), "t") == data


OVERRIDES = [
    ("batch_size=700", {"batch_size": 700}),
    ("horovod.cycle_time_ms=1e-1", {"horovod": {"cycle_time_ms": 0.1}}),
    ("backend=[mpi, gloo]", {"backend": ["mpi", "gloo"]}),
    ("base=null", {"base": None}),
    ("workload.samples=5", {"workload": {"name": "stress_strain", "samples": 5}}),
    ("name=a=b", {"name": "a=b"}),
]


@pytest.mark.parametrize(("override", "change"), OVERRIDES)
def test_an_override_puts_in_what_the_file_could_have_said(
    override: str, change: dict[str, Any]
) -> None:
    data = yaml.safe_load(BASIC)
    before = yaml.safe_load(BASIC)
    assert apply_overrides(data, [override]) == {**before, **change}
    assert data == before  # not changed in place


def test_overrides_leave_nested_data_as_it_was() -> None:
    data = {"horovod": {"groups": 1}}
    assert apply_overrides(data, ["horovod.groups=2", "horovod.cycle_time_ms=3"]) == {
        "horovod": {"groups": 2, "cycle_time_ms": 3}
    }
    assert data == {"horovod": {"groups": 1}}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("x", "--set x: write key=value"),
        ("=3", "--set =3: write key=value"),
        ("a..b=1", "write key=value"),
        ("batch_size=[", r"--set batch_size=\[: not valid YAML"),
        ("name.x=1", "--set name.x=1: name has no keys below it"),
        ("horovod.cycle_tim=1", r"horovod\.cycle_tim: unknown key"),
        ("batchsize=1", "batchsize: unknown key"),
    ],
)
def test_faults_of_overrides(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, BASIC, override)


@given(
    st.dictionaries(
        st.sampled_from(
            ["batch_size", "seed", "horovod.cycle_time_ms", "horovod.groups", "measure.window_s",
             "workload.samples", "measure.blocks"]
        ),
        st.integers(1, 999),
    )
)  # fmt: skip
def test_overrides_say_the_same_as_the_file(chosen: dict[str, int]) -> None:
    written = yaml.safe_load(BASIC)
    for path, value in chosen.items():
        *parents, last = path.split(".")
        target = written
        for parent in parents:
            if not isinstance(target.get(parent), dict):
                target[parent] = {"name": "stress_strain"} if parent == "workload" else {}
            target = target[parent]
        target[last] = value
    overridden = apply_overrides(
        yaml.safe_load(BASIC), [f"{path}={value}" for path, value in chosen.items()]
    )
    assert overridden == written
    assert parse_sweep(overridden) == parse_sweep(written)


SWEEPS = [
    BASIC,
    BASIC + "backend: [mpi, gloo]\nplacement: [1x1, 8+2, 3]\nplacement_policy: [pack, spread]\n",
    BASIC + "workload: {name: w, note: '1e-3', samples: [1, 2]}\n".replace("workload", "workload"),
    BASIC + "base: null\nmeasure: {blocks: 3, ci_target: 0.02, window_s: [1, 2]}\n",
    BASIC + "base: node\nmeasure: {instruments: [[], [phases]]}\n",
    BASIC + "seed: [1, 2]\nbackend: [mpi, gloo]\nzip: [seed, backend]\n",
    BASIC + "engine: [none, horovod]\ninclude: [{placement: 1x2, seed: [3, 4]}]\n",
    BASIC + "seed: [1, 2]\nexclude: [{seed: 2, engine: horovod}]\nbase: ddp@1\n",
    "name: x\nworkload: w\nscaling: strong\nglobal_batch_size: [64, 128]\nplacement: [1x1, 1x2]\n",
]


@pytest.mark.parametrize("text", SWEEPS)
def test_the_resolved_sweep_gives_the_same_points(tmp_path: Path, text: str) -> None:
    if text.count("workload:") > 1:
        text = text.replace("workload: stress_strain\n", "")
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    sweep = load_sweep(str(path))
    path.write_text(sweep_to_yaml(sweep), encoding="utf-8")
    again = load_sweep(str(path))
    assert expand(again, 4) == expand(sweep, 4)
    assert (again.name, again.measure, again.base) == (sweep.name, sweep.measure, sweep.base)
    assert sweep_to_yaml(again) == sweep_to_yaml(sweep)


def test_the_resolved_sweep_has_every_default_written_out() -> None:
    written = load_text(sweep_to_yaml(parse_sweep(load_text(BASIC, "t"))), "t")
    assert written["horovod"]["cycle_time_ms"] == 1.0
    assert written["measure"]["timeout_s"] == 600.0
    assert written["engine"] == "horovod"
    assert written["base"] == {"engine": "none", "placement": "1x1"}
