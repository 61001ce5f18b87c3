"""The builder on the real sdist, the real compiler and the Horovod that set-up installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from harness.detect import detect_mpi, read_build_marker
from harness.errors import BuildError
from harness.horovod_build.adjust import apply_adjustments
from harness.horovod_build.adjustment import Source
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.proof import plan_proofs, run_proof
from harness.horovod_build.source import fetch_sdist, unpack_sdist
from harness.paths import default_wheel_dir
from tests.requirements import require
from tests.unit.horovod_sdist import toolchain

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horovod's sdist: from the wheel cache where set-up left it, else from the index."""
    store = default_wheel_dir()
    if not store.is_dir() or not os.access(store, os.W_OK):
        store = tmp_path_factory.mktemp("sdist")
    found, why = None, ""
    try:
        found = fetch_sdist(store)
    except BuildError as error:
        why = str(error)
    require("horovod", found is not None, why)
    assert found is not None
    return found


def builder(scratch: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the builder with a wheel cache and a temporary folder of its own, below ``scratch``."""
    (scratch / "tmp").mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(scratch / "tmp"), "CCACHE_DISABLE": "1"}
    argv = [sys.executable, "-m", "harness.horovod_build", "--wheel-dir", str(scratch / "wheels")]
    argv += ["--no-install", "--frameworks", "torch", *arguments]
    return subprocess.Popen(
        argv, cwd=REPOSITORY, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def mutated(sdist: Path, folder: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of the real sdist with one text replaced."""
    tree = unpack_sdist(sdist, folder / "unpacked")
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new))
    place = folder / sdist.name
    with tarfile.open(place, "w") as archive:
        archive.add(tree, arcname=tree.name)
    shutil.rmtree(tree)
    return place


def test_all_adjustments_fit_the_real_sdist(sdist: Path, tmp_path: Path) -> None:
    tools = toolchain(python_version="3.12.3", cxx_version="g++-13 13.3.0", cmake_version="4.4.3")
    source = Source(unpack_sdist(sdist, tmp_path), BuildOptions(wheel_dir=tmp_path), tools)
    assert apply_adjustments(source) == [
        "cxx-standard",
        "tensorflow-xla",
        "no-cuda",
        "run-path",
        "no-debug-info",
        "python-headers",
        "missing-headers",
        "cmake-policy",
        "binding-options",
        "gloo-ranks",
    ]


def test_a_mutated_sdist_is_a_named_error(sdist: Path, tmp_path: Path) -> None:
    changed = mutated(sdist, tmp_path, "CMakeLists.txt", "check_language(CUDA)", "check(CUDA)")
    process = builder(tmp_path, "--sdist", str(changed))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "error: adjustment 'no-cuda' no longer matches CMakeLists.txt" in errors
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "wheels").glob("*/*.whl")) == []


@pytest.mark.slow
def test_a_build_that_fails_names_the_first_error_and_the_log(sdist: Path, tmp_path: Path) -> None:
    file = "third_party/gloo/gloo/algorithm.cc"
    changed = mutated(sdist, tmp_path, file, "namespace gloo {", "#error broken on purpose\n")
    process = builder(tmp_path, "--sdist", str(changed))
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert "error: #error broken on purpose" in last
    assert "algorithm.cc" in last
    (log,) = (tmp_path / "wheels").glob("build-*.log")
    assert str(log) in last
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "wheels").glob("*/*.whl")) == []


@pytest.mark.slow
def test_an_interrupted_build_leaves_nothing(sdist: Path, tmp_path: Path) -> None:
    process = builder(tmp_path, "--sdist", str(sdist))
    assert process.stderr is not None
    for line in process.stderr:
        if "log:" in line:
            break
    time.sleep(3)  # CMake and the frameworks it asks are running by now
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert list((tmp_path / "tmp").iterdir()) == []
    left = [path.name for path in (tmp_path / "wheels").iterdir()]
    assert all(name.startswith(".lock-") for name in left)


# --- the Horovod that is installed ---------------------------------------------------------------


@pytest.fixture
def marker() -> dict[str, object]:
    """What the installed Horovod says of its build."""
    found = read_build_marker()
    require("horovod", bool(found), "Horovod here was not built by hvdscale build-horovod")
    return found


def loaded(program: str) -> list[str]:
    """Return the shared objects that a program of this Python has loaded at its end."""
    program += "\nprint('MAPS', sorted({line.split()[-1] for line in open('/proc/self/maps') "
    program += "if '.so' in line}))"
    done = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, check=True, timeout=200
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("MAPS"))
    return [part.strip(" '[]") for part in line.removeprefix("MAPS ").split(",")]


def test_the_installed_horovod_loads_its_mpi_and_no_cuda(marker: dict[str, object]) -> None:
    objects = loaded("import horovod.torch as hvd\nassert hvd.mpi_built() and hvd.gloo_built()")
    mpi = [path for path in objects if Path(path).name.startswith("libmpi.so")]
    assert len(mpi) == 1
    if isinstance(marker["mpi"], dict) and marker["mpi"]["source"] == "wheel":
        # By its run path relative to itself: in whatever environment the wheel is installed.
        assert mpi[0].startswith(os.path.realpath(sys.prefix))
    if marker["gpu"] == "none":
        assert not [path for path in objects if "libcuda" in path or "libnccl" in path]


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_two_ranks_reduce_over_every_controller(framework: str, marker: dict[str, object]) -> None:
    frameworks = marker["frameworks"]
    assert isinstance(frameworks, dict)
    require("horovod", framework in frameworks, f"Horovod here was built without {framework}")
    options = BuildOptions(frameworks=(framework,), wheel_dir=Path("/nonexistent"))
    proofs = plan_proofs(options, detect_mpi(), gpus=0, cores=1, euid=os.geteuid())
    assert {proof.controller for proof in proofs} >= {"gloo"}
    for proof in proofs:
        run_proof(proof)


def test_a_proof_over_the_wrong_controller_fails(marker: dict[str, object]) -> None:
    options = BuildOptions(frameworks=("torch",), wheel_dir=Path("/nonexistent"))
    (gloo,) = plan_proofs(options, None, gpus=0, cores=1, euid=os.geteuid())
    argv = tuple("mpi" if word == "gloo" else word for word in gloo.argv)
    wrong = type(gloo)(gloo.framework, "mpi", gloo.device, argv, gloo.env)
    with pytest.raises(BuildError, match="WRONG: the controller is not mpi"):
        run_proof(wrong)
