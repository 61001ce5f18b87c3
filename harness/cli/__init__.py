"""The ``hvdscale`` command: flags in, calls out, errors as one line and an exit code.

Exit codes: 0 done; 1 some runs failed, or what was looked at is not in order; 2 usage or config,
nothing written; 130 interrupted; 141 the reader of the output is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from harness.cli.streams import give_up_stdout, is_of_output, prepare_streams

INTERRUPTED = 130
BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    What a user can put right becomes one line on stderr. Anything else is a bug of hvdscale and
    keeps its traceback.
    """
    prepare_streams()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if (gone := _working_folder_fault()) is not None:
            return _complain(f"the working folder: {gone}; cd to a folder that is there", 2)
        if not is_of_output(error):
            raise
        give_up_stdout()
        return _complain(f"the output cannot be written: {error.strerror}", 1)
    return code


def _run(argv: list[str]) -> int:
    import typer

    from harness.cli.app import app
    from harness.errors import HarnessError

    # Click's UsageError: newer typers carry a click of their own, and export only its children.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
    try:
        code = app(argv, prog_name="hvdscale", standalone_mode=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer makes an exit code 1 of it
            raise error.__context__ from None
        raise
    except HarnessError as error:
        return _complain(str(error), error.exit_code)
    except typer.Abort:
        return INTERRUPTED
    except usage_error as error:
        command = error.ctx.command_path if error.ctx is not None else "hvdscale"
        return _complain(f"{error.format_message()} (try '{command} --help')", 2)
    except Exception as error:
        if not _is_workload_error(error):
            raise
        return _complain(" ".join(str(error).split()), 2)
    return code if isinstance(code, int) else 0


def _working_folder_fault() -> str | None:
    """Say what is wrong with the folder that relative paths begin in; None where nothing is."""
    try:
        os.getcwd()
    except OSError as error:
        return error.strerror
    return None


def _is_workload_error(error: Exception) -> bool:
    # Not imported: it brings numpy, and if it was raised, its module is there already.
    api = sys.modules.get("workloads.api")
    return api is not None and isinstance(error, api.WorkloadError)


def _complain(message: str, code: int) -> int:
    with suppress(OSError):  # stderr is full or gone: the exit code still says it
        print(f"hvdscale: error: {message}", file=sys.stderr)
    return code
