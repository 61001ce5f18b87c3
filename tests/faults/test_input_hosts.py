"""Slurm's variables and answers as garbage: lists of hosts, counts, ids, what commands print."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import slurm
from harness.analysis.report.jobs import nodes_text
from harness.detect import detect_machine, parse_counts, parse_gpus
from harness.digits import whole
from harness.errors import ConfigError, HarnessError
from harness.nodelist import MAX_HOSTS, NodeListError, expand_hosts, is_host_name
from harness.provenance.slurm import slurm_facts
from harness.ranks import find_place
from harness.submit.element import element_index
from harness.submit.site_facts import parse_gres
from tests.faults.bounded import bounded

BOMBS = [
    "node[1-999999999]",
    "node[1-99999],node[1-99999]",
    ",".join(["n[1-99999]"] * 10_000),
    "n[1-9999][1-9999]",
    "n" + "[1-2]" * 60,
    "n" + "[1]" * 40_000,
    f"n[{'0' * 100_000}1-99999]",
    f"n[1-{'9' * 5000}]",
    "n[" * 50_000,
    "n" * 1_000_000,
    "," * 2_000_000,
    "n[[1-2]]", "n[1-2", "n]1[", "n[2-1]", "n[1-]", "n[a-b]", "n[]", "n[1-2\n]", "n[١-٢]",
    "$(touch PWNED)", "`touch PWNED`", "n1;touch PWNED", "n1\ntouch PWNED", "n1 n2", "n1|n2",
    "-x", ".n1", "n1'", 'n1"', "n1\\", "nö1", "n1\0", "a,$(x)[1-2]",
]  # fmt: skip


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: ascii(text[:20]))
def test_a_bomb_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(NodeListError) as caught:
        expand_hosts(text)
    assert len(str(caught.value)) < 300
    assert slurm_facts({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": text}) == {
        "job_id": "1",
        "restart_count": 0,
        "nodelist": [text],
    }


def test_memory_and_time_are_bounded() -> None:
    found = bounded(_expand_all, memory_bytes=512 << 20, deadline_s=60)
    assert (found.code, found.fault) == (0, "")


def _expand_all() -> int:
    accepted = 0
    for text in BOMBS:
        try:
            expand_hosts(text)
            accepted += 1
        except NodeListError:
            continue
    return accepted


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07],login-a.b", ["n1", "n2", "n3", "n07", "login-a.b"]),
        ("r[1-2]n[01-02]x", ["r1n01x", "r1n02x", "r2n01x", "r2n02x"]),
        ("a,b,a", ["a", "b"]),
    ],
)
def test_a_list_is_what_it_stands_for(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


_LIKE = st.text(alphabet="ab[]0123456789-,._ \n$(;`'\"\\é٣", max_size=40)


@settings(max_examples=400)
@given(_LIKE)
def test_names_are_all_that_comes_out(text: str) -> None:
    try:
        names = expand_hosts(text)
    except NodeListError:
        return
    assert len(names) <= MAX_HOSTS
    assert all(re.fullmatch(r"[\w.-]+", name, re.ASCII) and is_host_name(name) for name in names)


VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_NUM_NODES",
    "SLURM_CPUS_ON_NODE", "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_PARTITION", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURMD_NODENAME",
)  # fmt: skip
_GARBAGE = (
    st.sampled_from(["", "0", "1", "-1", "²", "٣", "9" * 5000, "4(x2)", "1(x99999999)", "n[1-2]"])
    | st.text(string.printable, max_size=12)
    | st.text(max_size=6)
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(VARIABLES), _GARBAGE))
def test_garbage_in_slurms_variables(environ: dict[str, str]) -> None:
    slurm_facts(environ)
    place = find_place(environ)
    assert place is None or place.rank >= 0
    try:
        assert element_index(environ) >= 0
    except HarnessError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
@pytest.mark.parametrize(
    "value", ["$(touch PWNED)", "n1;id", "٣", "9" * 5000 + "[", "a b", "[" * 999]
)
def test_a_machine_of_garbage_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for one, told in {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n1", name: value}.items():
        monkeypatch.setenv(one, told)
    with pytest.raises(ConfigError, match=rf"^{name}=.*unset the SLURM_ variables") as caught:
        detect_machine()
    assert len(str(caught.value)) < 500


def test_counts_that_are_none() -> None:
    assert parse_counts("48(x2),24") == (48, 48, 24)
    for text in ("1(x999999999)", f"1(x{'9' * 5000})", "9" * 5000, "٣", "1(x99999),1(x99999)", "a"):
        assert parse_counts(text) == ()


def test_numbers() -> None:
    assert [whole(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    assert [whole(text) for text in ("", "-1", "²", "٣", "1 ", "1\n", "9" * 19, "1e3")] == [
        None
    ] * 8


@settings(max_examples=300)
@given(st.text(alphabet="0123456789²٣-,:%[]x()+KMG=_ \x1f\nJobIdArrayTaskExitCode", max_size=60))
@example("0\x1f \x1f\x1f")  # a state of a space
def test_what_commands_print_is_read_or_left_out(text: str) -> None:
    slurm.parse_queue(text)
    slurm.parse_jobs(text)
    slurm.parse_accounts(text)
    slurm.parse_partitions(text)
    parse_gres(text)
    parse_gpus(text, None)


def test_indices_beyond_what_slurm_can_have() -> None:
    assert slurm.parse_indices("0-2,5") == (0, 1, 2, 5)
    assert slurm.parse_indices("3,0-999999999") == (3,)
    assert slurm.parse_indices(f"0-{'9' * 5000}") == ()
    digits = "9" * 5000
    assert slurm.parse_jobs(f"JobId={digits} ArrayTaskId={digits} ExitCode={digits}:{digits}") == ()
    (one,) = slurm.parse_jobs(f"JobId=7 ExitCode={digits}:{digits} Restarts={digits}")
    assert (one.exit_code, one.signal, one.restarts) == (None, None, 0)


@settings(max_examples=100)
@given(st.lists(st.text(max_size=6) | st.sampled_from(["n" + "9" * 5000, "1a" * 3000]), max_size=9))
def test_a_page_tells_hosts_of_any_name(hosts: list[str]) -> None:
    assert isinstance(nodes_text(hosts), str)
