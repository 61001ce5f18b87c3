"""One build: sdist to wheel in a scratch folder, with progress, a log, and the first error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from harness.detect import BUILD_MARKER, usable_cores
from harness.errors import BuildError
from harness.horovod_build.adjust import apply_adjustments
from harness.horovod_build.adjustment import Source
from harness.horovod_build.environment import build_environment, make_nccl_mirror
from harness.horovod_build.key import BuildKey
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.process import run_logged
from harness.horovod_build.source import unpack_sdist
from harness.horovod_build.toolchain import Toolchain
from harness.horovod_build.wheel import add_to_wheel

MEMORY_PER_JOB_MIB = 1500  # one translation unit with TensorFlow's and torch's headers
FIRST_ERRORS = (
    r":\s*(fatal )?error:",
    r"^CMake Error",
    r"undefined reference to",
    r"No space left on device",
    r"internal compiler error",
    r"fatal error: Killed|virtual memory exhausted|Cannot allocate memory",
    r"^(ld|collect2|nvcc|make).*\berror\b",
)


class Progress:
    """Percentages as one line that changes on a terminal, else as a line every ten percent."""

    def __init__(self, report: Callable[[str], None], stream: TextIO) -> None:
        self._report = report
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown = -1

    def line(self, line: str) -> None:
        """Take one line of the build's output."""
        match = re.match(r"\s*\[\s*(\d{1,3})%\]", line)
        if match is None:
            return
        percent = int(match.group(1))
        if self._terminal and percent > self._shown:
            self._stream.write(f"\rbuilding Horovod: {percent:3d} %")
            self._stream.flush()
            self._shown = percent
        elif not self._terminal and percent // 10 > self._shown // 10:
            self._report(f"building Horovod: {percent // 10 * 10} %")
            self._shown = percent

    def end(self) -> None:
        """Close the changing line."""
        if self._terminal and self._shown >= 0:
            self._stream.write("\n")


def default_jobs() -> int:
    """Return how many compilers fit the cores and the memory."""
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    return max(1, min(usable_cores(), memory_mib // MEMORY_PER_JOB_MIB))


def first_error(text: str) -> str:
    """Return the first line of a build log that says what went wrong, with CMake's next line."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not any(re.search(pattern, line.strip()) for pattern in FIRST_ERRORS):
            continue
        message = line.strip()
        if message.startswith("CMake Error"):
            message += " " + next(
                (more.strip() for more in lines[number + 1 :] if more.strip()), ""
            )
        return message
    tail = [line.strip() for line in lines if line.strip()]
    return f"no compiler error in the log; its last line is: {tail[-1] if tail else 'none'}"


def _same_mpi(one: Path, other: Path) -> bool:
    """Say whether two folders hold one libmpi: on Debian one links to the other's."""
    if one.resolve() == other.resolve():
        return True
    libraries = [(folder / "libmpi.so").resolve() for folder in (one, other)]
    return libraries[0] == libraries[1]


def check_mpi_in_log(text: str, tools: Toolchain) -> None:
    """Raise unless CMake found the MPI that was meant, and no CUDA where none was."""
    found = re.search(r"Found MPI_CXX: ([^\s;]+)", text)
    if tools.mpi is not None:
        folder = Path(found.group(1)).parent if found else None
        expected = tools.mpi_libraries
        if folder is None or (expected is not None and not _same_mpi(folder, expected)):
            raise BuildError(
                f"Horovod's CMake took the MPI in {folder}, not the one in {expected}: "
                "unload the other MPI, or put the right mpicxx first on the PATH"
            )
    if tools.cuda is None and re.search(r"-DHAVE_CUDA=1|Found CUDAToolkit", text):
        raise BuildError("CUDA was used although --gpu none was asked for")


def compile_wheel(
    options: BuildOptions,
    tools: Toolchain,
    key: BuildKey,
    sdist: Path,
    log: Path,
    report: Callable[[str], None],
) -> tuple[Path, Path]:
    """Build one wheel; return (wheel, the scratch folder that holds it, which the caller removes).

    On any error the scratch folder is removed here; the log stays unless it was an interrupt.
    """
    scratch = Path(tempfile.mkdtemp(prefix="hvdscale-build-"))
    try:
        return _compile_in(scratch, options, tools, key, sdist, log, report), scratch
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            log.unlink(missing_ok=True)
        raise


def _compile_in(
    scratch: Path,
    options: BuildOptions,
    tools: Toolchain,
    key: BuildKey,
    sdist: Path,
    log: Path,
    report: Callable[[str], None],
) -> Path:
    jobs = options.jobs or default_jobs()
    folder = unpack_sdist(sdist, scratch / "source")
    if tools.nccl is not None:
        make_nccl_mirror(tools.nccl.home, scratch)
    env = build_environment(options, tools, scratch, jobs, os.environ, Path(sys.prefix))
    # pip's and the compilers' temporary files too must go with the scratch folder.
    (scratch / "tmp").mkdir()
    env["TMPDIR"] = str(scratch / "tmp")
    source = Source(folder, options, tools, env)
    applied = apply_adjustments(source)
    report(f"adjustments: {', '.join(applied)}")
    report(f"building Horovod with {jobs} compiler process{'es' * (jobs > 1)}; log: {log}")
    argv = [sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps"]
    argv += ["--no-index", "--disable-pip-version-check", "-w", str(scratch / "wheel"), str(folder)]
    progress = Progress(report, sys.stderr)
    try:
        status = run_logged(argv, log, source.env, scratch, progress.line)
    finally:
        progress.end()
    text = log.read_text(encoding="utf-8", errors="replace")
    if status != 0:
        raise BuildError(f"Horovod did not build: {first_error(text)} (whole log: {log})")
    check_mpi_in_log(text, tools)
    wheels = list((scratch / "wheel").glob("horovod-*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"pip made {len(wheels)} wheels of Horovod instead of one (log: {log})")
    marker = {f"horovod/{BUILD_MARKER}": key.marker(proven=False)}
    return add_to_wheel(wheels[0], marker, scratch / "marked")


def compiler_cache_note() -> str:
    """Return a note when ccache will be used, as it makes build times incomparable."""
    disabled = os.environ.get("CCACHE_DISABLE")
    found = shutil.which("ccache")
    if not found or disabled:
        return ""
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return (version.stdout.splitlines() or ["ccache"])[
        0
    ] + " is used (CCACHE_DISABLE=1 prevents it)"
