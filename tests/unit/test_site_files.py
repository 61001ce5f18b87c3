"""Sites as files: where they are found, how their text is read, and the ones that are ready."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from harness.config.yaml_dialect import load_text
from harness.errors import ConfigError
from harness.submit.site import Site
from harness.submit.site_files import (
    find_site,
    list_sites,
    parse_site,
    site_folders,
    site_to_yaml,
)

ROOT = Path(__file__).parents[2]
SITES = ROOT / "slurm" / "sites"
README = (ROOT / "slurm" / "README.md").read_text(encoding="utf-8")
READY = sorted(path.stem for path in SITES.glob("*.yaml"))
BASIC = "nodes: 2\ncpus_per_node: 8\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sites of whoever runs the tests, and none of the checkout but through the package."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write(path: Path, text: str = BASIC) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


class TestFinding:
    def test_the_first_folder_that_has_it_wins(self, tmp_path: Path) -> None:
        packaged = find_site("generic")
        assert packaged.gpus_per_node == 4
        user = write(
            tmp_path / "config" / "hvdscale" / "sites" / "generic.yaml", BASIC + "qos: user\n"
        )
        assert find_site("generic").qos == "user"
        here = write(Path("slurm/sites/generic.yaml"), BASIC + "qos: here\n")
        assert find_site("generic").qos == "here"
        (entry,) = [site for site in list_sites() if site.name == "generic"]
        assert (entry.place, entry.path) == ("here", here)
        here.unlink()
        (entry,) = [site for site in list_sites() if site.name == "generic"]
        assert (entry.place, entry.path) == ("user", user)

    def test_the_package_has_the_ready_ones(self) -> None:
        assert [site.name for site in list_sites()] == READY
        assert {site.place for site in list_sites()} == {"package"}
        assert {"alpha", "gpu2", "hpdlf", "generic", "cpu"} <= set(READY)

    def test_a_path_is_a_path(self, tmp_path: Path) -> None:
        write(tmp_path / "cwd" / "mine.yaml")
        write(tmp_path / "cwd" / "plain")
        assert find_site("mine.yaml").name == "mine"
        assert find_site(str(tmp_path / "cwd" / "mine.yaml")).name == "mine"
        assert find_site("./plain").name == "plain"
        assert find_site("plain").name == "plain"

    def test_what_is_no_site_of_a_folder(self) -> None:
        for name in ("notes.md", ".hidden.yaml", "old.yaml~"):
            write(Path("slurm/sites") / name)
        assert [site.name for site in list_sites()] == READY

    def test_a_site_may_have_another_name_than_its_file(self) -> None:
        write(Path("slurm/sites/one.yaml"), BASIC + "name: other\n")
        assert find_site("one").name == "other"

    @pytest.mark.parametrize("name", ["genric", "genric.yaml", "./genric.yaml"])
    def test_what_is_not_there(self, name: str) -> None:
        with pytest.raises(ConfigError) as error:
            find_site(name)
        assert "did you mean 'generic'?" in str(error.value)
        assert "sites: alpha, cpu, generic, gpu2, hpdlf; hvdscale site init" in str(error.value)

    @pytest.mark.parametrize("name", ["", "slurm", "."])
    def test_a_folder_is_no_site(self, name: str) -> None:
        Path("slurm").mkdir()
        with pytest.raises(ConfigError, match="is no file and no site"):
            find_site(name)

    def test_a_relative_configuration_folder_is_ignored(self, tmp_path: Path) -> None:
        folders = dict(site_folders({"XDG_CONFIG_HOME": "relative"}))
        assert folders["user"] == Path("~/.config/hvdscale/sites").expanduser()
        assert dict(site_folders({"XDG_CONFIG_HOME": "/x"}))["user"] == Path("/x/hvdscale/sites")


class TestReading:
    @pytest.mark.parametrize(
        ("line", "key", "value"),
        [
            ("time_per_job: 1:30:00", "time_per_job", 5400),
            ("time_per_job: 90", "time_per_job", 5400),
            ("time_per_job: 0-2", "time_per_job", 7200),
            ("time_per_job: '0-2'", "time_per_job", 7200),
            ("time_per_job: 010", "time_per_job", 600),
            ("memory: 0", "memory", "0"),
            ("memory: 180G", "memory", "180G"),
            ("account: 007", "account", "007"),
            ("account: 1e3", "account", "1e3"),
            ("qos: true", "qos", "true"),
            ("exclusive: false", "exclusive", False),
            ("gpus_per_node: 4", "gpus_per_node", 4),
            ("environment: {A: 1, B: 1e-3, C: true, D: 1.10, E: ''}", "environment",
             {"A": "1", "B": "1e-3", "C": "true", "D": "1.10", "E": ""}),
            ("options: [--nice=100]", "options", ("--nice=100",)),
            ("account:", "account", None),
            ("setup:", "setup", ()),
            ("title: null", "title", ""),
            ("launcher:", "launcher", None),
        ],
    )  # fmt: skip
    def test_values_are_as_written(self, line: str, key: str, value: object) -> None:
        assert getattr(parse_site(f"name: x\n{BASIC}{line}\n", "t"), key) == value

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("", "t: expected keys and values at the top"),
            ("- a\n", "expected keys and values at the top"),
            ("a: [\n", "not valid YAML"),
            (BASIC + "nodes: 3\n", "key 'nodes' is there twice"),
            ("nodes: 3\n", "t: cpus_per_node: is missing"),
            (BASIC + "cpu_per_node: 3\n", "cpu_per_node: unknown key.*'cpus_per_node'"),
            (BASIC + "time_per_job: 1e3\n", "time_per_job: '1e3' is not a time"),
            (BASIC + "time_per_job: 1.5\n", "time_per_job: '1.5' is not a time"),
            (BASIC + "time_per_job: yes\n", "time_per_job: 'yes' is not a time"),
            (BASIC + "launcher: srnu\n", "launcher: 'srnu' is not one of.*did you mean 'srun'"),
            (BASIC + "max_time: 30:00\ntime_per_job: 1:00:00\n", "time_per_job: .* than max_time"),
            (BASIC + "python_by_backend: {ncl: /x}\n", r"backend\.ncl.*did you mean 'nccl'"),
        ],
    )  # fmt: skip
    def test_a_fault_is_one_line(self, text: str, fault: str) -> None:
        with pytest.raises(ConfigError, match=fault) as error:
            parse_site(text, "t", {"name": "x"})
        assert "\n" not in str(error.value)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"\xff")
        with pytest.raises(ConfigError, match=r"x\.yaml: not UTF-8 text"):
            find_site(str(tmp_path / "x.yaml"))
        (tmp_path / "x.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
        with pytest.raises(ConfigError, match="larger than 1 MiB"):
            find_site(str(tmp_path / "x.yaml"))

    def test_paths_are_what_they_are_where_one_submits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.setenv("WORK", "/work")
        text = (
            f"name: x\n{BASIC}python: ~/env/bin/python\ndata_dir: $WORK/data\nscratch: $TMPDIR\n"
            "python_by_backend: {nccl: '${WORK}/nccl/python', mpi: ~/mpi/python}\n"
        )
        site = parse_site(text, "t")
        assert (site.python, site.data_dir) == ("/home/me/env/bin/python", "/work/data")
        assert site.python_by_backend == {"nccl": "/work/nccl/python", "mpi": "/home/me/mpi/python"}
        assert site.scratch == "$TMPDIR"  # a node's
        monkeypatch.delenv("WORK")
        with pytest.raises(ConfigError, match=r"nccl: '\$\{WORK\}/nccl/python' is no abs"):
            parse_site(text, "t")


class TestOverriding:
    def test_keys_of_a_site(self) -> None:
        changed = parse_site(
            f"name: x\n{BASIC}environment: {{A: 1}}\nqos: long\n", "t", None,
            ["partition=x", "time_per_job=2:00:00", "environment.B=1e3", "qos=", "setup=[a b, c]",
             "python_by_backend.mpi=/mpi"],
        )  # fmt: skip
        assert (changed.partition, changed.time_per_job, changed.qos) == ("x", 7200, None)
        assert (changed.environment, changed.setup) == ({"A": "1", "B": "1e3"}, ("a b", "c"))
        assert changed.python_by_backend == {"mpi": "/mpi"}

    def test_a_default_gives_way(self) -> None:
        """Nobody asked for an hour, so half an hour is no contradiction."""
        site = parse_site(f"name: x\n{BASIC}", "t", None, ["max_time=30"])
        assert site.time_per_job == 1800

    def test_nothing_is_the_same(self) -> None:
        assert find_site("alpha", []) == find_site("alpha")

    @pytest.mark.parametrize(
        ("override", "fault"),
        [
            ("partition", "write KEY=VALUE"),
            ("=x", "write KEY=VALUE"),
            ("environment.=x", "write KEY=VALUE"),
            ("partion=x", "partion: unknown key.*'partition'"),
            ("partition.x=y", "partition has no keys below it"),
            ("nodes=none", "nodes: input should be a valid integer"),
            ("nodes=", "nodes: is missing"),
            ("time_per_job=1e3", "'1e3' is not a time"),
            ("setup=[", "not valid YAML"),
        ],
    )
    def test_a_fault(self, override: str, fault: str) -> None:
        with pytest.raises(ConfigError, match=fault):
            find_site("cpu", [override])

    def test_what_a_file_lacks_can_be_given(self, tmp_path: Path) -> None:
        path = write(tmp_path / "x.yaml", "nodes: 2\n")
        assert find_site(str(path), ["cpus_per_node=24"]).cpus_per_node == 24


class TestWriting:
    def test_what_is_written_reads_back(self) -> None:
        site = parse_site(
            f"name: x\n{BASIC}title: 'a: b # c'\naccount: 007\nsetup: ['x: y', '#']\n"
            "launcher: null\n"
            "environment: {A: '1', B: 'yes', C: ''}\nmax_time: 1-12\ntime_per_point: 1:01\n",
            "t",
        )
        assert parse_site(site_to_yaml(site), "again") == site

    @pytest.mark.parametrize("name", READY)
    def test_of_every_ready_one(self, name: str) -> None:
        site = find_site(name)
        assert parse_site(site_to_yaml(site), "again") == site
        assert Site.model_validate(json.loads(site.model_dump_json())) == site


class TestReady:
    @pytest.mark.parametrize("name", READY)
    def test_it_can_be_used(self, name: str) -> None:
        site = find_site(name)
        assert site.name == name
        assert site.title
        assert site.machine("/p").slots == site.nodes * site.devices_per_node
        assert (site.exclusive, site.memory) == (True, "0")

    @pytest.mark.parametrize("name", READY)
    def test_lines_to_fill_in_are_right(self, name: str) -> None:
        """With every commented key taken in, it is a site still."""
        text = (SITES / f"{name}.yaml").read_text(encoding="utf-8")
        filled = re.sub(r"^#(?=\w|  \w|  -)", "", text, flags=re.MULTILINE)
        site = parse_site(filled, name)
        assert site.account == "my-project"
        assert site.max_time == 86_400
        assert find_site(name).account is None

    def test_of_the_study(self) -> None:
        shapes = {
            name: (find_site(name).gpus_per_node, find_site(name).mpi)
            for name in ("alpha", "gpu2", "hpdlf")
        }
        assert shapes == {"alpha": (8, "openmpi"), "gpu2": (4, "none"), "hpdlf": (3, "openmpi")}
        assert find_site("alpha").cpus_per_node == 48
        assert find_site("gpu2").launcher == "horovodrun"


def _default(name: str) -> str:
    field = Site.model_fields[name]
    if name == "name":
        return "the file's name"
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return "none"
    if name.startswith("time"):
        return f"`{json.loads(_plain().model_dump_json())[name]}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _plain() -> Site:
    return Site(name="x", nodes=1, cpus_per_node=1)


def _choices(annotation: Any) -> set[str]:
    found = {value for value in get_args(annotation) if isinstance(value, str)}
    return found.union(*(_choices(inner) for inner in get_args(annotation)))


class TestReadme:
    ROWS = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)

    def test_every_key_is_there_once_in_the_types_order(self) -> None:
        assert [row[0] for row in self.ROWS] == list(Site.model_fields)

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
    def test_defaults_and_values_are_the_types(self, row: tuple[str, str, str, str]) -> None:
        name, values, default, _ = row
        assert default == _default(name)
        for choice in _choices(Site.model_fields[name].annotation):
            assert f"`{choice}`" in values

    def test_every_ready_site_is_listed(self) -> None:
        assert (
            sorted(re.findall(r"^\| \[\w+\.yaml\]\(sites/(\w+)\.yaml\)", README, re.MULTILINE))
            == READY
        )


def test_as_written_is_text_and_null() -> None:
    text = "a: 1\nb: 1e3\nc: true\nd: ~\ne: null\nf:\ng: [0x1, .5]\n"
    assert load_text(text, "t", as_written=True) == {
        "a": "1",
        "b": "1e3",
        "c": "true",
        "d": None,
        "e": None,
        "f": None,
        "g": ["0x1", ".5"],
    }
    assert load_text(text, "t")["b"] == 1000.0
    # Where PyYAML would read a number of base 60.
    assert yaml.safe_load("1:30:00") == 5400
