"""The cache, the log reader, the progress line, child processes, wheels and proofs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.detect import Mpi
from harness.errors import BuildError, ConfigError
from harness.horovod_build import __main__ as program
from harness.horovod_build import command, requirements
from harness.horovod_build.cache import WheelCache
from harness.horovod_build.compiling import Progress, check_mpi_in_log, first_error
from harness.horovod_build.key import BuildKey
from harness.horovod_build.process import pip_reason, run_for, run_logged, signals_as_interrupt
from harness.horovod_build.proof import Proof, mpi_launcher, plan_proofs, root_variables, run_proof
from harness.horovod_build.requirements import python_requirements, unmet
from harness.horovod_build.source import unpack_sdist
from harness.horovod_build.wheel import add_to_wheel
from tests.unit.horovod_sdist import WHEEL_MPI, options, toolchain

KEY = BuildKey({"horovod": "0.28.1"})


def ignore(line: str) -> None:
    """Report to nobody."""


# --- cache ---------------------------------------------------------------------------------------


def test_a_stored_wheel_is_found_with_its_readable_key(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    cache = WheelCache(tmp_path / "cache")
    cache.prepare()
    assert cache.find(KEY) is None
    stored = cache.store(KEY, wheel)
    assert cache.find(KEY) == stored
    assert json.loads((stored.parent / "key.json").read_text())["horovod"] == "0.28.1"
    assert not [path for path in cache.folder.iterdir() if path.name.startswith(".incoming")]


def test_a_damaged_wheel_is_not_used_and_is_replaced(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod.whl"
    wheel.write_bytes(b"wheel")
    cache = WheelCache(tmp_path / "cache")
    cache.prepare()
    stored = cache.store(KEY, wheel)
    stored.write_bytes(b"whe")
    assert cache.find(KEY) is None
    assert cache.store(KEY, wheel).read_bytes() == b"wheel"


def test_a_second_build_of_a_key_waits_for_the_first(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path)
    order: list[str] = []

    def second() -> None:
        with cache.locked(KEY, order.append):
            order.append("second")

    with cache.locked(KEY, ignore):
        thread = threading.Thread(target=second)
        thread.start()
        while not order:
            time.sleep(0.01)
        order.append("first")
    thread.join(120)
    assert order == ["another process is building this wheel: waiting for it", "first", "second"]


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"cannot be written .*HVDSCALE_WHEEL_DIR"):
        WheelCache(tmp_path / "file" / "wheels").prepare()


# --- log and progress ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("  a.cc:3:5: error: no x\n  b.cc:1:1: fatal error: y\n", "a.cc:3:5: error: no x"),
        (
            "note\nb.h:1:10: fatal error: y.h: No such file\n",
            "b.h:1:10: fatal error: y.h: No such file",
        ),
        (
            "CMake Error at CMakeLists.txt:5 (message):\n\n  MPI is not there\n",
            "CMake Error at CMakeLists.txt:5 (message): MPI is not there",
        ),
        ("cc1plus: out\n/tmp/x.s: No space left on device\n", "/tmp/x.s: No space left on device"),
        ("x.o: undefined reference to `MPI_Init'\n", "x.o: undefined reference to `MPI_Init'"),
        ("only\nwords\n\n", "no compiler error in the log; its last line is: words"),
        ("", "no compiler error in the log; its last line is: none"),
    ],
)
def test_the_first_error_of_a_log(log: str, line: str) -> None:
    assert first_error(log) == line


def test_warnings_that_mention_errors_are_not_errors() -> None:
    log = "x.cc:1:2: warning: error handling\n-- Performing Test error\ny.cc:9:1: error: real\n"
    assert first_error(log) == "y.cc:9:1: error: real"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_every_ten_percent_or_one_that_changes() -> None:
    lines: list[str] = []
    plain = Progress(lines.append, io.StringIO())
    terminal = Terminal()
    moving = Progress(ignore, terminal)
    for percent in (0, 3, 9, 12, 12, 19, 33, 100):
        for progress in (plain, moving):
            progress.line(f"  [{percent:3d}%] Building CXX object x.o\n")
            progress.line("c++ -O3 [ 99% of this is no progress line\n")
    moving.end()
    assert [line.split()[-2] for line in lines] == ["0", "10", "30", "100"]
    assert terminal.getvalue().count("\r") == 7
    assert terminal.getvalue().endswith("\rbuilding Horovod: 100 %\n")


def test_another_mpi_or_cuda_in_the_log_is_an_error() -> None:
    check_mpi_in_log("-- Found MPI_CXX: /env/lib/libmpi.so (found version 3.1)", toolchain())
    with pytest.raises(BuildError, match=r"took the MPI in /usr/lib, not the one in /env/lib"):
        check_mpi_in_log("-- Found MPI_CXX: /usr/lib/libmpi.so (found)", toolchain())
    with pytest.raises(BuildError, match="CUDA was used although --gpu none"):
        check_mpi_in_log("Found MPI_CXX: /env/lib/libmpi.so\nc++ -DHAVE_CUDA=1", toolchain())


def test_debians_links_between_two_folders_are_one_mpi(tmp_path: Path) -> None:
    """CMake names the alternative in openmpi/lib, which links to the file in the folder above."""
    own = tmp_path / "openmpi" / "lib"
    own.mkdir(parents=True)
    for name in ("libmpi", "libmpi_cxx"):
        (tmp_path / f"{name}.so.40").touch()
        (tmp_path / f"{name}.so").symlink_to(f"{name}.so.40")
        (own / f"{name}.so").symlink_to(tmp_path / f"{name}.so.40")
    found = f"-- Found MPI_CXX: {own}/libmpi_cxx.so (found version 3.1)"
    check_mpi_in_log(found, replace(toolchain(), mpi_libraries=tmp_path))
    check_mpi_in_log(found, replace(toolchain(), mpi_libraries=own))
    with pytest.raises(BuildError, match="took the MPI"):
        check_mpi_in_log(found, replace(toolchain(), mpi_libraries=tmp_path / "other"))


# --- processes -----------------------------------------------------------------------------------

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
print("up", flush=True)
time.sleep(99)
"""


def test_an_interrupt_ends_all_children(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))  # of other tests' fixtures
    started: list[psutil.Process] = []

    def interrupt(line: str) -> None:
        started.extend(set(psutil.Process().children(recursive=True)) - before)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        run_logged([sys.executable, "-c", FAMILY], tmp_path / "log", os.environ, on_line=interrupt)
    assert len(started) >= 2
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_command_that_hangs_is_ended_after_its_time() -> None:
    status, output = run_for([sys.executable, "-c", FAMILY], os.environ, timeout_s=15.0)
    assert status is None
    assert "up" in output


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "ERROR: No matching distribution found for x\n",
            "ERROR: No matching distribution found for x",
        ),
        (
            "WARNING: w\nerror: externally-managed-environment\n\nx This\n",
            "error: externally-managed-environment",
        ),
        ("Killed\n", "Killed"),
        ("", "no reason given"),
    ],
)
def test_why_pip_failed(output: str, reason: str) -> None:
    assert pip_reason(output) == reason


# --- wheels and sdists ---------------------------------------------------------------------------


def test_a_file_added_to_a_wheel_is_installed_and_uninstalled_with_it(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/__init__.py", "")
        archive.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny/__init__.py,,\n")
    marked = add_to_wheel(wheel, {"tiny/marker.json": "{}"}, tmp_path / "out")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(target), str(marked)], check=True, capture_output=True)
    assert (target / "tiny" / "marker.json").read_text() == "{}"
    record = (target / "tiny-1.0.dist-info" / "RECORD").read_text()
    # sha256 of b"{}" in urlsafe base64 without padding
    assert "tiny/marker.json,sha256=RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o,2" in record


def test_a_file_that_is_no_sdist_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "horovod-0.28.1.tar.gz"
    place.write_bytes(b"<html>not found</html>")
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpack_sdist(place, tmp_path / "out")


# --- requirements and proofs ---------------------------------------------------------------------


def test_requirements_are_compared_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"setuptools": "81.0.0", "wheel": "0.48.0", "cffi": "1.15.1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert unmet(["setuptools<81", "wheel", "cffi>=1.4"]) == ["setuptools<81"]
    versions["setuptools"] = "80.10.2"
    assert unmet(["setuptools<81"]) == []


def test_cffi_is_for_torch_only(tmp_path: Path) -> None:
    assert "cffi>=1.4" in python_requirements(options(tmp_path))
    assert "cffi>=1.4" not in python_requirements(options(tmp_path, frameworks=("tensorflow",)))


def test_every_framework_is_proven_over_every_controller(tmp_path: Path) -> None:
    proofs = plan_proofs(options(tmp_path), WHEEL_MPI, gpus=0, cores=2, euid=1000)
    assert [str(proof) for proof in proofs] == [
        "torch over mpi on cpu",
        "torch over gloo on cpu",
        "tensorflow over mpi on cpu",
        "tensorflow over gloo on cpu",
    ]
    assert [str(p) for p in plan_proofs(options(tmp_path), None, 0, 2, 0)] == [
        "torch over gloo on cpu",
        "tensorflow over gloo on cpu",
    ]


@pytest.mark.parametrize(
    ("gpu", "gpus", "expected"),
    [
        ("nccl", 2, ["torch over mpi on cuda", "torch over gloo on cuda"]),
        ("nccl", 1, ["torch over mpi on cpu", "torch over gloo on cpu"]),
        ("staged", 1, ["torch over mpi on cuda", "torch over gloo on cuda"]),
        ("mpi-cuda", 2, ["torch over mpi on cuda"]),
    ],
)
def test_gpu_builds_are_proven_where_ranks_fit(
    gpu: str, gpus: int, expected: list[str], tmp_path: Path
) -> None:
    chosen = options(tmp_path, gpu=gpu, frameworks=("torch",))
    assert [str(proof) for proof in plan_proofs(chosen, WHEEL_MPI, gpus, 8, 0)] == expected


def test_root_and_oversubscription_are_allowed_only_where_they_must_be() -> None:
    assert root_variables(WHEEL_MPI, 1000) == {}
    assert set(root_variables(WHEEL_MPI, 0)) == {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }
    mpich = Mpi("mpich", "5.0.2", "/m/mpirun")
    assert root_variables(mpich, 0) == {}
    assert mpi_launcher(mpich, 1) == ("/m/mpirun", "-n", "2")
    assert mpi_launcher(WHEEL_MPI, 1)[-1] == "slot:OVERSUBSCRIBE"
    assert mpi_launcher(WHEEL_MPI, 2)[-1] == "slot"


HOROVODRUN = """\
[1]<stderr>:the driver is too old
Process 1 exit with status code 1.
Terminating remaining workers after failure of Process 1.
RuntimeError: Horovod detected that one or more processes exited with non-zero status
"""


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('PROVEN 0 of 2'); print('PROVEN 1 of 2'); raise SystemExit(3)", "ended with 3"),
        ("print('PROVEN 0 of 2')", "ended with 0"),
        ("print('WRONG: the controller is not mpi')", "WRONG: the controller is not mpi"),
        (
            f"print({HOROVODRUN!r}); raise SystemExit(1)",
            r"ended with 1: \[1\]<stderr>:the driver is",
        ),
        ("print('Process 1 exit with status code 1.')", "ended with 0: Process 1 exit with"),
    ],
)
def test_a_proof_needs_both_ranks_and_a_good_end(program: str, message: str) -> None:
    proof = Proof("torch", "mpi", "cpu", (sys.executable, "-c", program), {})
    with pytest.raises(BuildError, match=message):
        run_proof(proof)


# --- command -------------------------------------------------------------------------------------


def test_the_program_turns_errors_into_one_line_and_a_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function raises, for whoever has a place of its own where errors are caught."""
    with pytest.raises(ConfigError, match="--frameworks 'jax' is not one of"):
        command.command_build(frameworks="jax")

    def fail(chosen: object, report: object) -> None:
        raise BuildError("it broke")

    monkeypatch.setattr(command, "build_horovod", fail)
    monkeypatch.setattr(sys, "argv", ["build"])
    assert program.main() == 1
    assert capsys.readouterr().err == "hvdscale: error: it broke\n"

    def interrupt(chosen: object, report: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "build_horovod", interrupt)
    assert command.command_build() == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("built_for", "outside", "chosen"),
    [
        (None, True, "system"),
        (None, False, "wheel"),
        ("wheel", True, "wheel"),  # an MPI that came later starts no rebuild
        ("system", True, "system"),
        ("system", False, "wheel"),
    ],
)
def test_auto_stays_with_the_mpi_of_the_installed_horovod(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    built_for: str | None,
    outside: bool,
    chosen: str,
) -> None:
    marker = {"mpi": {"source": built_for}} if built_for else {}
    monkeypatch.setattr(requirements, "read_build_marker", lambda: marker)
    monkeypatch.setattr(
        requirements,
        "which_outside",
        lambda prefix, name: Path("/usr/bin", name) if outside else None,
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpicxx").touch()
    assert requirements.automatic_mpi(tmp_path) == chosen
