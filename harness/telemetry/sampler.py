"""A rank's handle on its node's sampler: a child process that never outlives it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, LaunchError, MissingDependencyError

if TYPE_CHECKING:
    from harness.telemetry.series import NodeSeries

INTERVAL_S = 0.1
START_S = 60.0  # NVML may have to wake up the driver
ANSWER_S = 120.0  # a sample that hangs in the driver, and a node that swaps
_END_S = 2.0
_ERRORS = {kind.__name__: kind for kind in (LaunchError, MissingDependencyError)}


class Sampler:
    """Samples from ``with`` until ``stop``, but for pauses; the process is gone after either end.

    ``pids`` are the node's ranks, ``uuids`` their GPUs as NVML names them, none on a CPU. Raises
    MissingDependencyError and LaunchError where what is to be sampled cannot be, or the sampler
    does not answer.
    """

    def __init__(
        self, pids: Sequence[int], uuids: Sequence[str] = (), interval_s: float = INTERVAL_S
    ) -> None:
        if not interval_s > 0.0:
            raise ValueError(f"a sampler's interval must be above 0 s, got {interval_s}")
        self._pids, self._uuids, self._interval_s = tuple(pids), tuple(uuids), interval_s
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = bytearray()

    @property
    def pid(self) -> int | None:
        """Return the process that samples, None where there is none (any more)."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Sampler:
        # No new session and no preexec_fn: the launch's processes stay together, and the child is
        # made by vfork, which spares a rank with pinned memory a copy of its page tables.
        self._process = subprocess.Popen(
            self._argv(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
        )
        try:
            self._expect("ready", START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def pause(self) -> None:
        """Stop sampling; on return it has stopped, and what there is, is kept."""
        self._tell("pause")
        self._expect("pause", ANSWER_S)

    def resume(self) -> None:
        """Go on sampling, with a sample at once; nothing changes where it was not paused."""
        self._tell("resume")
        self._expect("resume", ANSWER_S)

    def stop(self) -> NodeSeries:
        """End the sampler and return what it has."""
        self._tell("stop")
        header = json.loads(self._line(ANSWER_S))
        data = self._exactly(8 * header["samples"] * header["width"], ANSWER_S)
        self._end()
        return _series(header, data, len(self._pids), self._interval_s)

    def _argv(self) -> list[str]:
        return [
            sys.executable,
            "-P",
            "-m",
            "harness.telemetry",
            f"--parent={os.getpid()}",
            f"--interval-s={self._interval_s!r}",
            f"--pids={','.join(map(str, self._pids))}",
            f"--uuids={','.join(self._uuids)}",
        ]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this sampler is not running")
        return self._process

    def _tell(self, command: str) -> None:
        stdin = self._running().stdin
        assert stdin is not None  # a pipe, see __enter__
        try:
            stdin.write(command.encode() + b"\n")
        except BrokenPipeError as error:
            raise self._ended() from error

    def _expect(self, word: str, timeout_s: float) -> None:
        line = self._line(timeout_s)
        if line != word:
            raise LaunchError(f"the telemetry sampler answered {line!r}, not {word!r}")

    def _line(self, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            self._hear(deadline_s)
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard = bytearray(rest)
        text = line.decode()
        kind, _, message = text.removeprefix("error ").partition(" ")
        if text.startswith("error ") and kind in _ERRORS:
            raise _ERRORS[kind](message)
        return text

    def _exactly(self, count: int, timeout_s: float) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        while len(self._heard) < count:
            self._hear(deadline_s)
        return bytes(self._heard[:count])

    def _hear(self, deadline_s: float) -> None:
        stdout = self._running().stdout
        assert stdout is not None
        ready = select.poll()  # a rank may have more descriptors than select() takes
        ready.register(stdout, select.POLLIN)
        if not ready.poll(max(0.0, deadline_s - time.monotonic()) * 1000.0):
            self._end()
            raise LaunchError("the telemetry sampler does not answer; it was ended")
        data = os.read(stdout.fileno(), 1 << 16)
        if not data:
            raise self._ended()
        self._heard += data

    def _ended(self) -> HarnessError:
        process = self._running()
        self._end()
        return LaunchError(
            f"the telemetry sampler ended by itself with {process.returncode}; what it said is in "
            "this rank's log"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it is gone already
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Return this process's environment, with the folder of ``harness`` for where it is needed.

    A rank may have found it in its working folder, where a child with -P does not look. Site
    packages are not named: they would come before the standard library.
    """
    import harness

    folder = Path(str(harness.__file__)).parents[1]
    env = dict(os.environ)
    if folder.name not in ("site-packages", "dist-packages"):
        path = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
        env["PYTHONPATH"] = os.pathsep.join([*path, str(folder)])
    return env


def _series(header: dict[str, Any], data: bytes, ranks: int, interval_s: float) -> NodeSeries:
    import numpy as np

    from harness.telemetry.series import DeviceSeries, NodeSeries

    table = np.frombuffer(data, dtype=np.float64).reshape(header["width"], header["samples"])
    times_s, segment, cpu_busy_s, cpu_total_s = table[:4]
    of_ranks = table[4 : 4 + 2 * ranks]
    rest = iter(table[4 + 2 * ranks :])
    devices = []
    for device in header["devices"]:
        names = device.pop("columns")
        devices.append(DeviceSeries(**device, columns={name: next(rest) for name in names}))
    return NodeSeries(
        host=socket.gethostname(),
        interval_s=interval_s,
        times_s=times_s,
        segment=segment,
        cpu_busy_s=cpu_busy_s,
        cpu_total_s=cpu_total_s,
        rank_cpu_s=of_ranks[0::2],
        rank_rss_bytes=of_ranks[1::2],
        devices=tuple(devices),
        missed=header["missed"],
        sampler_cores=tuple(header["cores"]),
        sampler_cpu_s=header["own_cpu_s"],
    )
