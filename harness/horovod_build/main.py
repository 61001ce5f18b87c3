"""The builder: toolchain → key → cache or build → install → self-proof."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BuildError
from harness.horovod_build.adjust import needed_names
from harness.horovod_build.adjustment import Source
from harness.horovod_build.cache import WheelCache
from harness.horovod_build.compiling import compile_wheel, compiler_cache_note
from harness.horovod_build.key import BuildKey, make_key
from harness.horovod_build.options import HOROVOD_VERSION, BuildOptions
from harness.horovod_build.process import pip_reason, run_uninterrupted, signals_as_interrupt
from harness.horovod_build.proof import prove
from harness.horovod_build.requirements import ensure_requirements, find_cmake
from harness.horovod_build.source import fetch_sdist, sdist_checksum
from harness.horovod_build.toolchain import Toolchain, find_toolchain
from harness.horovod_build.wheel import installed_digest, installed_proven, mark_proven


@dataclass(frozen=True)
class BuiltHorovod:
    """A Horovod that is installed here, or a wheel of one."""

    wheel: Path | None  # None where the installed one was right already
    key: BuildKey
    source: str  # "installed" | "cache" | "built"
    proven: tuple[str, ...]  # what was proven now; empty for an installed one


def build_horovod(options: BuildOptions, report: Callable[[str], None]) -> BuiltHorovod:
    """Make this environment have the Horovod that ``options`` asks for, and prove it.

    ``report`` gets one line at a time. Raises ``HarnessError``; interrupted (also by SIGTERM) it
    leaves nothing half-done and raises ``KeyboardInterrupt``.
    """
    with signals_as_interrupt():
        ensure_requirements(options, report)
        tools = find_toolchain(options, find_cmake(report))
        key = key_of(options, tools)
        if options.install and installed_digest() == key.digest:
            return _already_there(options, tools, key, report)
        wheel, how = _find_or_build(options, tools, key, report)
        if not options.install:
            return BuiltHorovod(wheel, key, how, ())
        install_wheel(wheel, key, report)
        return BuiltHorovod(wheel, key, how, _prove(options, tools, report))


def key_of(options: BuildOptions, tools: Toolchain) -> BuildKey:
    """Return the key of a build; needs no sdist of PyPI's, as its checksum is known."""
    names = needed_names(Source(Path(), options, tools))
    return make_key(options, tools, HOROVOD_VERSION, sdist_checksum(options.sdist), names)


def _already_there(
    options: BuildOptions, tools: Toolchain, key: BuildKey, report: Callable[[str], None]
) -> BuiltHorovod:
    proven: tuple[str, ...] = ()
    if not installed_proven():  # installed, but the proof was interrupted or failed
        proven = _prove(options, tools, report)
    report(f"Horovod {HOROVOD_VERSION} is installed and proven (key {key.digest})")
    return BuiltHorovod(None, key, "installed", proven)


def _find_or_build(
    options: BuildOptions, tools: Toolchain, key: BuildKey, report: Callable[[str], None]
) -> tuple[Path, str]:
    cache = WheelCache(options.wheel_dir)
    cache.prepare()
    with cache.locked(key, report):
        found = cache.find(key)
        if found is not None:
            report(f"wheel from the cache: {found}")
            return found, "cache"
        sdist = options.sdist or fetch_sdist(options.wheel_dir)
        report(describe(tools))
        note = compiler_cache_note()
        if note:
            report(note)
        log = options.wheel_dir / f"build-{key.digest}.log"
        log.unlink(missing_ok=True)
        wheel, scratch = compile_wheel(options, tools, key, sdist, log, report)
        try:
            stored = cache.store(key, wheel)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        os.replace(log, stored.parent / "build.log")
        report(f"built {stored}")
        return stored, "built"


def describe(tools: Toolchain) -> str:
    """Return one line on what a wheel is made of."""
    parts = [f"{name} {version}" for name, version in tools.frameworks]
    parts += [f"{tools.mpi.flavour} {tools.mpi.version} ({tools.mpi.source})"] if tools.mpi else []
    parts += [f"CUDA {tools.cuda.version}"] if tools.cuda else []
    parts += [f"NCCL {tools.nccl.version}"] if tools.nccl else []
    parts += [tools.cxx_version, f"CMake {tools.cmake_version}"]
    return f"Horovod {HOROVOD_VERSION} for {', '.join(parts)}"


def install_wheel(wheel: Path, key: BuildKey, report: Callable[[str], None]) -> None:
    """Install a wheel over whatever Horovod is there; not interruptible for these seconds."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    status, output = run_uninterrupted(argv, os.environ)
    importlib.invalidate_caches()
    if status != 0:
        raise BuildError(f"pip could not install {wheel}: {pip_reason(output)}")
    if installed_digest() != key.digest:
        raise BuildError(
            f"{wheel} was installed into {sys.prefix}, but another Horovod hides it: "
            "look for one in the user's site-packages or on PYTHONPATH"
        )
    report(f"installed into {sys.prefix}")


def _prove(
    options: BuildOptions, tools: Toolchain, report: Callable[[str], None]
) -> tuple[str, ...]:
    if not options.prove:
        return ()
    proven = prove(options, tools.mpi, report)
    mark_proven()
    return proven
