"""Subcommands that hand over to one rank of a launch, and to the builder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import ConfigError

BY_HAND = ("batch_size", "global_batch_size", "engine", "backend", "framework")


def command_bench(
    workload: str | None,
    run_file: Path | None,
    flags: Mapping[str, int | str | None],
    overrides: Sequence[str],
    results: Path,
) -> int:
    """Run one rank: of a launch described by ``run_file``, or of one typed by hand."""
    if run_file is None:
        if workload is None:
            raise ConfigError("bench: name a workload (e.g. stress_strain), or give --run FILE")
        from harness.byhand import by_hand
        from harness.paths import default_data_dir

        return by_hand(
            workload,
            flags=flags,
            overrides=tuple(overrides),
            results=results,
            data_dir=default_data_dir(),
        )
    given = [f"--{key.replace('_', '-')}" for key in BY_HAND if flags.get(key) is not None]
    given += ["WORKLOAD"] if workload is not None else []
    given += ["--set"] if overrides else []
    if given:
        raise ConfigError(f"bench: {', '.join(given)} cannot go with --run, which says it all")
    if not run_file.is_file():
        raise ConfigError(f"bench: --run {run_file}: there is no such file")
    from harness.bench import run_spec

    code = run_spec(run_file)
    # Everything is written and the engine has left its world. What is left is the destruction of
    # libraries, in which a thread of Gloo's can still abort a good launch.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def command_build_horovod(arguments: Sequence[str]) -> int:
    """Build Horovod; the builder has an argument parser of its own, which set-up uses alone."""
    from harness.horovod_build.__main__ import run

    return run(arguments)
