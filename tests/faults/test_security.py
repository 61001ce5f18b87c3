"""Nothing that a user, a cluster or a record names is run by a shell, or seen by who should not."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from harness import torch_cache
from harness.config import RunConfig, Sweep, expand, parse_sweep, sweep_to_yaml
from harness.config.load import load_sweep
from harness.config.yaml_dialect import load_text
from harness.errors import HarnessError
from harness.horovod_build.cache import WheelCache
from harness.horovod_build.key import BuildKey
from harness.launch import LAUNCHERS, build
from harness.legal import resolve
from harness.provenance.environ import environment
from harness.scratch import copy_data
from harness.spec import Resolved
from harness.submit.site import Site
from harness.submit.submission import Submission
from harness.submit.submit import submit
from tests.requirements import require_modules
from tests.unit import stub_sweep, submit_cases, test_launch

PAYLOADS = (
    "$(touch PWNED)", "`touch PWNED`", "x; touch PWNED;", "x\ntouch PWNED\n", "x' ; touch PWNED; '",
    'x" ; touch PWNED; "', "x && touch PWNED", "x | touch PWNED", "${x:=$(touch PWNED)}", "\\",
    "--wrap=touch PWNED", "!touch PWNED", "x\r\ntouch PWNED", "END\ntouch PWNED",
)  # fmt: skip

SWEEP: dict[str, Any] = {
    "name": "s", "workload": {"name": "stress_strain", "samples": 2000}, "engine": "horovod",
    "placement": "1x2", "batch_size": 75, "measure": {"blocks": 1},
}  # fmt: skip
SITE: dict[str, Any] = {"name": "here", "nodes": 4, "cpus_per_node": 4}


def text_places(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield each field of a model, and of the models in it, that text may be given for."""
    for name, field in model.model_fields.items():
        models = [one for one in _parts(field.annotation) if _is_model(one)]
        for inner in models:
            yield from ((name, *rest) for rest in text_places(inner))
        yield (name,)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _is_model(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, BaseModel)


def planted(data: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return data with a value in a place, groups made where there are none."""
    key, *rest = place
    inner = data.get(key)
    made = planted(inner if isinstance(inner, dict) else {}, tuple(rest), value) if rest else value
    return {**data, key: made}


def shapes(payload: str) -> tuple[Any, ...]:
    """Return a payload in the shapes that a field may have."""
    return payload, f"/{payload}", [payload], {"A": payload}, {payload: "x"}, f"--x={payload}"


def accepted_sweeps(payload: str) -> list[Sweep]:
    """Return every sweep in which a field took the payload."""
    fields = [*text_places(RunConfig), *text_places(Sweep), ("workload", "anything")]
    found = []
    for place in fields:
        for value in shapes(payload):
            try:
                text = yaml.safe_dump(planted(SWEEP, place, value), allow_unicode=True)
                sweep = parse_sweep(load_text(text, "t"))
                expand(sweep)
            except HarnessError:
                continue
            found.append(sweep)
    return found


def hostile_site(payload: str) -> Site:
    """Return a site that has the payload in every field that takes it; ``setup`` is shell."""
    data = dict(SITE)
    for place in text_places(Site):
        for value in shapes(payload):
            if place in (("setup",), ("launcher",)):
                continue
            if place == ("mpi_plugins",):
                value = ["pmix", payload]
            try:
                Site.model_validate(planted(data, place, value))
            except ValueError:
                continue
            data = planted(data, place, value)
            break
    return Site.model_validate(data)


def test_fields_are_found_by_themselves() -> None:
    assert {("workload", "name"), ("horovod", "controller"), ("seed",)} <= {*text_places(RunConfig)}
    assert {("environment",), ("partition",), ("options",)} <= {*text_places(Site)}
    names = {name for site in map(hostile_site, PAYLOADS) for name in site.model_fields_set}
    assert {"title", "partition", "account", "environment", "python", "scratch"} <= names


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_a_site_and_a_sweep_reach_no_shell(tmp_path: Path, payload: str) -> None:
    """The text that ``submit --dry-run`` prints is run, and the scripts as Slurm would run them."""
    results = tmp_path / re.sub(r"[\n\r\\/\0]", "_", payload)
    (tmp_path / "here").mkdir()
    sweep = submit_cases.make_sweep(placement="1x1", measure={"blocks": 1})
    made = submit(sweep, hostile_site(payload), results, dry_run=True)
    (array,) = made.arrays
    batches = [made.array_batch(array), made.collect_batch(["ARRAY0"])]
    for number, batch in enumerate(batches):
        script = tmp_path / f"{number}.sh"
        script.write_text(batch.text)
        subprocess.run(["bash", "-n", str(script)], check=True, cwd=tmp_path / "here")
        _run(["bash", str(script)], tmp_path / "here", SLURM_ARRAY_TASK_ID=payload)
    _same_words(made, tmp_path)
    assert list(tmp_path.rglob("PWNED")) == []


def _run(argv: list[str], folder: Path, **env: str) -> None:
    path = os.pathsep.join([str(folder.parent / "bin"), os.environ["PATH"]])
    plain = {"PATH": path, "HOME": str(folder), **env}
    subprocess.run(argv, cwd=folder, env=plain, capture_output=True, timeout=120, check=False)


def _same_words(made: Submission, folder: Path) -> None:
    """Run the dry run's text beyond its refusal: sbatch must be given word for word the options."""
    stub = folder / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\nprintf "%s\\0" sbatch "$@" >> {shlex.quote(str(folder))}/called\n')
    stub.chmod(0o755)
    text = made.shell()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, cwd=folder / "here")
    assert "exit 2\n" in text
    _run(["bash", "-c", text.replace("; exit 2\n", "\n", 1)], folder / "here")
    called = (folder / "called").read_bytes().decode().split("\0")[:-1]
    assert called[: len(made.array_batch(made.arrays[0]).argv)] == [
        *made.array_batch(made.arrays[0]).argv
    ]


HOSTILE_PATH = "/r/$(touch PWNED) `touch PWNED`; touch PWNED\n'\"/run.json"


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_what_a_dry_run_prints_is_run_as_it_is_meant(tmp_path: Path, payload: str) -> None:
    sweeps = accepted_sweeps(payload)
    assert sweeps or "\n" in payload  # which no text of a config may have
    for sweep in sweeps:
        path = tmp_path / "sweep.yaml"
        path.write_text(sweep_to_yaml(sweep), encoding="utf-8")
        assert expand(load_sweep(str(path))).points == expand(sweep).points
        for point in expand(sweep).points:
            try:
                command = build(point, test_launch.machine(), HOSTILE_PATH)
            except HarnessError:
                continue
            assert shlex.split(str(command))[-len(command.argv) :] == [*command.argv]
    assert list(tmp_path.rglob("PWNED")) == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launchers_line_is_words_and_no_shell(tmp_path: Path, launcher: str) -> None:
    """Every word of a launch is one argument; a shell that is given the line changes none."""
    engine = {"inline": "none", "torchrun": "ddp"}.get(launcher, "horovod")
    point = RunConfig.model_validate(
        {"workload": "stress_strain", "engine": engine, "batch_size": 75, "launcher": launcher,
         "placement": "1x1" if engine == "none" else "1x2"}
    )  # fmt: skip
    machine = replace(test_launch.machine(slurm=True), python="/opt/$(touch PWNED)'/python")
    command = build(point, machine, HOSTILE_PATH, _resolved(point, machine))
    assert any(word.startswith(machine.python) for word in command.argv)
    stub = tmp_path / "show"
    stub.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    stub.chmod(0o755)
    line = shlex.join([str(stub), *command.argv])
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*command.argv]
    assert list(tmp_path.rglob("PWNED")) == []


def _resolved(point: RunConfig, machine: Any) -> Resolved:
    return resolve(point, machine)


class TestHorovodrun:
    """It joins its rank's command, hosts and names of variables to lines of a shell."""

    PROGRAM = """
import os, sys
from types import SimpleNamespace
from harness.launch import hvdrun
hvdrun.keep_secrets(); hvdrun.keep_commands()
from horovod.runner.common.util import settings as made
env = dict(os.environ) | {{"X$(touch PWNED)": "1", "Y;touch PWNED": "1", "Z`touch PWNED`": "1",
                           "HOROVOD_GOOD": "$(touch PWNED)"}}
words = {words!r}
if {mpi!r}:
    hvdrun.mpi_run._get_mpi_implementation_flags = lambda *a, **k: ([], [], "OpenMPI")
    told = made.Settings(num_proc=2, hosts="n1:2", verbose=0)
    hvdrun.mpi_run.os.execve = lambda path, argv, env: print(argv[2])
    hvdrun.mpi_run.mpi_run(told, None, env, words)
else:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    line = hvdrun.gloo_run.get_run_command(words, "127.0.0.1", ["lo"], 1)
    (slot,) = get_host_assignments(parse_hosts("n1:1"), 1)
    print(hvdrun.gloo_run._slot_info_to_command_fn(line, env)(slot))
"""

    @pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])
    def test_its_lines_run_nothing_but_the_rank(self, tmp_path: Path, mpi: bool) -> None:
        require_modules("horovod")
        words = [str(tmp_path / "bin" / "show"), *PAYLOADS]
        program = self.PROGRAM.format(words=words, mpi=mpi)
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=120, check=True
        )
        line = done.stdout.decode()
        (tmp_path / "bin").mkdir()
        (tmp_path / "here").mkdir()
        show = f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/shown\n'
        # Open MPI's mpirun, seen from outside: what follows its options is the rank.
        skip = 'while [ "${1##*/}" != show ]; do shift; done; shift\n'
        for name, script in (("show", show), ("mpirun", show.replace("printf", f"{skip}printf"))):
            (tmp_path / "bin" / name).write_text(script)
            (tmp_path / "bin" / name).chmod(0o755)
        _run(["sh", "-c", line], tmp_path / "here")
        assert (tmp_path / "shown").read_bytes().decode().split("\0")[:-1] == [*PAYLOADS]
        assert list(tmp_path.rglob("PWNED")) == []


def test_names_of_secrets_and_logins_in_addresses_stay_out() -> None:
    planted_env = {
        "NCCL_SECRET": "hush", "UCX_MYSQL_PWD": "hush", "HOROVOD_DB_PASS": "hush",
        "OMPI_MCA_btl_token": "hush", "OMPI_MCA_secret": "hush", "SLURM_JWT": "hush",
        "AWS_SECRET_ACCESS_KEY": "hush", "HF_TOKEN": "hush", "MYSQL_PWD": "hush",
        "http_proxy": "http://me:hush@proxy:1", "UCX_LOG_FILE": "sftp://me:hush@host/log",
        "NCCL_NET": "Socket",
    }  # fmt: skip
    assert environment(planted_env) == {
        "NCCL_NET": "Socket",
        "UCX_LOG_FILE": "sftp://***@host/log",
    }


@pytest.mark.parametrize("mask", [0o027, 0o077, 0o002], ids=oct)
def test_files_have_the_users_umask(tmp_path: Path, mask: int) -> None:
    """A whole sweep of stub launches, with its table and page, and a wheel in its cache."""
    program = f"""
import os, sys
os.umask({mask})
from pathlib import Path
from tests.unit import stub_sweep
stub_sweep.point.build = stub_sweep.fake_build(lambda config: "ok")
folder = Path({str(tmp_path)!r}) / "r"
code = stub_sweep.run(stub_sweep.make_sweep(), folder).exit_code
from harness.cli import main
code = code or main(["collect", str(folder / "stub")])
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    wrong = {}
    for path in [tmp_path / "r", *(tmp_path / "r").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = (0o777 if path.is_dir() else 0o666) & ~mask
        if mode != wanted:
            wrong[str(path.relative_to(tmp_path))] = oct(mode)
    assert wrong == {}
    assert len(list((tmp_path / "r").rglob("*"))) > 10


def test_a_wheel_in_the_cache_has_the_users_umask(tmp_path: Path) -> None:
    (tmp_path / "h.whl").write_bytes(b"x")
    before = os.umask(0o027)
    try:
        place = WheelCache(tmp_path).store(BuildKey({"horovod": "0.28.1"}), tmp_path / "h.whl")
    finally:
        os.umask(before)
    assert oct(stat.S_IMODE(place.parent.stat().st_mode)) == oct(0o750)


class TestSharedTmp:
    """Scratch below a folder that everybody writes to, as /tmp is."""

    @pytest.fixture
    def shared(self, tmp_path: Path) -> Path:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "f").write_bytes(b"mine")
        (tmp_path / "tmp").mkdir(mode=0o777)
        (tmp_path / "tmp").chmod(0o1777)
        return tmp_path

    def test_a_folder_that_another_user_made_first(self, shared: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can make another user's folder")
        folder = shared / "tmp" / "hvdscale-7"
        folder.mkdir()
        os.chown(folder, 65534, 65534)
        with pytest.raises(HarnessError, match="not a folder of this user's"):
            copy_data([shared / "data" / "f"], shared / "data", folder)
        assert list(folder.iterdir()) == []

    def test_a_link_that_another_user_made_first(self, shared: Path) -> None:
        (shared / "elsewhere").mkdir()
        folder = shared / "tmp" / "hvdscale-7"
        folder.symlink_to(shared / "elsewhere")
        with pytest.raises(HarnessError, match="not a folder of this user's"):
            copy_data([shared / "data" / "f"], shared / "data", folder)
        assert list((shared / "elsewhere").iterdir()) == []

    @pytest.mark.parametrize("squat", ["folder", "link", "file", "open"])
    def test_torchs_compiled_code_is_never_that_of_another_user(
        self, shared: Path, monkeypatch: pytest.MonkeyPatch, squat: str
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(shared / "tmp"))
        folder = shared / "tmp" / f"hvdscale-torch-{os.geteuid()}"
        if squat == "link":
            folder.symlink_to(shared / "data")
        elif squat == "file":
            folder.write_text("")
        else:
            folder.mkdir()
            folder.chmod(0o777 if squat == "open" else 0o700)
        if squat == "folder":
            if os.geteuid() != 0:
                pytest.skip("only root can make another user's folder")
            os.chown(folder, 65534, 65534)
        env: dict[str, str] = {}
        torch_cache.claim(env)
        found = Path(env[torch_cache.VARIABLE])
        assert found != folder
        assert found.parent == folder.parent
        assert stat.S_IMODE(found.stat().st_mode) == 0o700

    def test_torchs_compiled_code_is_kept_for_the_next_launch(
        self, shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(shared / "tmp"))
        envs: list[dict[str, str]] = [{}, {}, {torch_cache.VARIABLE: "/mine"}]
        for env in envs:
            torch_cache.claim(env)
        first, second, own = (env[torch_cache.VARIABLE] for env in envs)
        assert first == second
        assert Path(first).is_dir()
        assert own == "/mine"

    def test_no_name_in_tmp_can_be_guessed(self) -> None:
        """Who looks for a temporary folder in the sources finds those that make up a name."""
        root = Path(stub_sweep.ROOT)
        sources = [*root.glob("harness/**/*.py"), *root.glob("slurm/*"), *root.glob("tools/*.sh")]
        wrong = [
            f"{path.relative_to(root)}: {line.strip()}"
            for path in sources
            # Its name is known, and whose it is is looked at: see above.
            if path.is_file() and path.name != "torch_cache.py"
            for line in path.read_text(encoding="utf-8").splitlines()
            if re.search(r"[\"'=(]/(tmp|var/tmp|dev/shm)\b|mktemp\(|gettempdir|mktemp -u", line)
        ]
        assert wrong == []
