from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.processes import Process
from harness.record import RunError
from harness.runner.diagnose import diagnose, exit_name
from harness.runner.launcher import Ending
from harness.runner.logs import Logs, RankLog, escaped, read_logs, read_tail
from harness.runner.progress import PlainReport, duration, reporter
from tests import factories

KILLED = "rank 1 ended with signal SIGKILL: killed from outside, often for memory"

# As the launchers print them.
OPEN_MPI_SIGNAL = """\
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 11025 on node vm exited on
signal 9 (Killed).
--------------------------------------------------------------------------"""
NO_COMPONENT = """\
It looks like MPI_INIT failed for some reason; your parallel process is
likely to abort.  There are many reasons that a parallel process can
fail during MPI_INIT; some of which are due to configuration or environment
problems.  This failure appears to be an internal failure; here's some
additional information (which may only be relevant to an Open MPI
developer):

  mca_base_framework_open on ompi_pml failed
  --> Returned "Not found" (-13) instead of "Success" (0)"""
PRTE_EXIT = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-25925@1,1]
   Exit code:    14"""
NO_MPI = """\
*** An error occurred in MPI_Init_thread
*** on a NULL communicator
*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,"""
OPEN_MPI_4_SIGNAL = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 11 (Segmentation fault).
--------------------------------------------------------------------------"""
OPEN_MPI_EXIT = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-11296@1,1]
   Exit code:    3
--------------------------------------------------------------------------"""
OPEN_MPI_LEFT = (
    """\
prterun has exited due to process rank 1 with PID 22957 on node vm exiting
improperly. There are three reasons this could occur:
"""
    + "1. this process did not call init before exiting\n" * 20
)
HOROVODRUN_EXIT = """\
Process 1 exit with status code 137.
Terminating remaining workers after failure of Process 1.
Process 0 exit with status code 1.
Traceback (most recent call last):
  File "horovod/runner/gloo_run.py", line 284, in launch_gloo
    raise RuntimeError('Horovod detected that one or more processes exited with non-zero '
RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus \
causing the job to be terminated. The first process to do so was:
Process name: 1
Exit code: 137
"""
TORCHRUN_SIGNAL = """\
r.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_22:18:13
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11289)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 11289
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_22:18:13
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 11290)  (SIGKILL)
  traceback : Signal 9 (SIGKILL) received by PID 11290
======================================================="""
TORCHRUN_EXIT = TORCHRUN_SIGNAL.replace("-9 (pid: 11290)  (SIGKILL)", "3 (pid: 11290) ")
STALL = """\
[2026-11-27 22:00:00.000000: W /tmp/horovod/common/stall_inspector.cc:107] One or more tensors \
were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for \
remainder of ranks for more than 12 seconds. This may indicate that different ranks are trying to
Missing ranks:
1: [allreduce.fc.weight, allreduce.fc.bias ...]
3: [allreduce.fc.weight, allreduce.fc.bias ...]"""
STALL_END = (
    STALL
    + """
[2026-11-27 22:01:00.000000: E /tmp/horovod/common/stall_inspector.cc:105] One or more tensors \
were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for \
remainder of ranks for more than 12 seconds. This may indicate that different ranks are trying to
Missing ranks:
2: [allreduce.fc.weight]
3!: [allreduce.fc.weight, allreduce.fc.bias ...]
One or more rank (marked by "!") is stalled for longer than 60 seconds. Will shutdown."""
)
TRACEBACK = """\
Traceback (most recent call last):
  File "bench.py", line 7, in run
    step.run(batch)
{error}"""


def logs(launcher: str = "", **ranks: str) -> Logs:
    """Return logs; ``r1=...`` is rank 1's, written in the order of the arguments."""
    made = [
        RankLog(int(name[1:]), tuple(text.splitlines()), float(at))
        for at, (name, text) in enumerate(ranks.items())
    ]
    return Logs(tuple(sorted(made, key=lambda log: log.rank)), tuple(launcher.splitlines()))


def cause(found: Logs, ending: Ending | None = None, n: int = 2) -> str:
    verdict = diagnose(ending or Ending(exit_code=1, wall_s=3.0), found, 120.0, n)
    assert verdict.status == "failed"
    assert "\n" not in verdict.cause
    return verdict.cause


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI_SIGNAL, KILLED),
        (OPEN_MPI_4_SIGNAL, "rank 3 ended with signal SIGSEGV: a crash in native code"),
        (OPEN_MPI_EXIT, "rank 1 ended with exit code 3"),
        (OPEN_MPI_LEFT, "rank 1 left before its time, without finishing MPI"),
        (HOROVODRUN_EXIT, KILLED),
        (HOROVODRUN_EXIT.replace("137", "7"), "rank 1 ended with exit code 7"),
        (TORCHRUN_SIGNAL, KILLED),
        (TORCHRUN_EXIT, "rank 1 ended with exit code 3"),
        ("There are not enough slots available", "the launcher has too few slots for the ranks"),
        (
            "RuntimeError: The server socket has failed to bind. Address already in use",
            "address already in use (a network port)",
        ),
        ("mpirun: odd: no such option", "the launcher ended with exit code 1: mpirun: odd: no such "
         "option"),
    ],
)  # fmt: skip
def test_the_launchers_own_words(text: str, expected: str) -> None:
    assert cause(logs(text, r0="", r1="")) == expected


def test_the_rank_that_failed_first_is_named_and_its_followers_are_not() -> None:
    follower = TRACEBACK.format(
        error="horovod.common.exceptions.HorovodInternalError: [/x] Connection closed by peer"
    )
    first = TRACEBACK.format(error="ValueError: loss is nan")
    assert cause(logs(OPEN_MPI_EXIT, r1=first, r0=follower)) == "rank 1: ValueError: loss is nan"
    assert cause(logs("", r0=follower, r1=first)) == "rank 1: ValueError: loss is nan"


def test_what_horovod_refuses_on_all_ranks_keeps_its_words() -> None:
    error = (
        "horovod.common.exceptions.HorovodInternalError: Mismatched BROADCAST tensor shapes: One "
        "rank sent a tensor of shape [3, 181], but another rank sent a tensor of shape [2, 181]."
    )
    text = TRACEBACK.format(error=error)
    for launcher in (OPEN_MPI_EXIT, HOROVODRUN_EXIT.replace("137", "1")):
        assert cause(logs(launcher, r0=text, r1=text)) == f"all ranks: {error}"
        assert cause(logs(launcher, r0="", r1=text)) == f"rank 1: {error}"


def test_of_two_exceptions_the_earlier_counts() -> None:
    one, two = (TRACEBACK.format(error=f"KeyError: '{name}'") for name in ("one", "two"))
    assert cause(logs("", r1=one, r0=two)) == "rank 1: KeyError: 'one'"
    assert cause(logs("", r0=two, r1=one)) == "rank 0: KeyError: 'two'"


def test_a_killed_rank_is_the_cause_of_its_followers_exception() -> None:
    follower = TRACEBACK.format(error="RuntimeError: Connection closed by peer [127.0.0.1]:4242")
    assert cause(logs(OPEN_MPI_SIGNAL, r0=follower, r1="")).startswith("rank 1 ended with signal")


def test_an_error_of_ours_keeps_its_sentence() -> None:
    text = "hvdscale: error: backend mpi was asked for, but gloo moved the bytes"
    assert cause(logs("", r0=text)) == (
        "rank 0: backend mpi was asked for, but gloo moved the bytes"
    )


def test_a_missing_module_says_what_helps() -> None:
    text = TRACEBACK.format(error="ModuleNotFoundError: No module named 'horovod'")
    assert cause(logs("", r0=text)) == (
        "rank 0: No module named 'horovod'; `hvdscale doctor` says what is missing"
    )


def test_memory_goes_before_everything() -> None:
    ending = Ending(exit_code=137, wall_s=3.0, out_of_memory=1)
    more = "; ask for more memory, or use a smaller batch"
    said = "out of memory: the kernel ended 1 of our processes"
    assert cause(logs(OPEN_MPI_SIGNAL), ending) == f"{said} (rank 1){more}"
    assert cause(logs(OPEN_MPI_EXIT), ending) == said + more


def test_ranks_that_never_came_are_named() -> None:
    ending = Ending(exit_code=0, wall_s=3.0)
    assert cause(logs("", r0=""), ending, n=9) == (
        "ended with exit code 0, but wrote no record; "
        "rank 1, 2, 3, 4, 5 and 3 more never started its log"
    )


def test_a_process_the_kernel_cannot_end_is_named() -> None:
    ending = Ending(exit_code=1, wall_s=3.0, survivors=(Process(77, 1, 77, "D", 5),))
    found = cause(logs("", r0="", r1=""), ending)
    assert found.endswith("; processes 77 (state D) could not be ended")


TRACKER = """\
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There \
appear to be 2 leaked semaphore objects to clean up at shutdown
  warnings.warn('resource_tracker: There appear to be %d '"""


def test_a_killed_launcher_is_not_what_was_said_last() -> None:
    follower = TRACEBACK.format(error="RuntimeError: Connection closed by peer [127.0.0.1]:4242")
    for ranks in ({"r0": "", "r1": ""}, {"r0": follower, "r1": ""}):
        assert cause(logs(TRACKER, **ranks), Ending(exit_code=-9, wall_s=3.0)) == (
            "the launcher ended with signal SIGKILL: killed from outside, often for memory"
        )
    said = "mpirun: odd: no such option\n" + TRACKER
    assert cause(logs(said, r0="", r1="")).endswith("exit code 1: mpirun: odd: no such option")


def test_a_rank_whose_end_its_launcher_tells_by_its_exit_code_alone() -> None:
    """As Open MPI 5 ends where a rank was killed while it first spoke to ``mpirun``."""
    said = "[n1:544] PMIX ERROR: PMIX_ERR_UNREACH in file connection_hdlr.c at line 121"
    told = "a rank ended with signal SIGKILL: killed from outside, often for memory; the launcher "
    ending = Ending(exit_code=137, wall_s=3.0)
    assert cause(logs("", r0="", r1=""), ending) == f"{told}does not say which"
    assert cause(logs(said, r0="", r1=""), ending) == f"{told}does not say which: {said}"


@pytest.mark.parametrize(
    ("launcher", "code", "expected"),
    [
        ("/bin/sh: 1: nosuch: not found", 127, "command not found: nosuch"),
        ("bash: line 1: orted: command not found", 127, "command not found: orted"),
        ("env: ‘python9’: No such file or directory", 127, "command not found: python9"),
        (
            "[0]<stderr>:/bin/sh: 1: nosuch: not found\nProcess name: 0\nExit code: 127",
            1,
            "rank 0: command not found: nosuch",
        ),
        ("something else", 127, "the launcher ended with exit code 127: something else"),
    ],
)
def test_a_command_that_is_not_there(launcher: str, code: int, expected: str) -> None:
    assert cause(logs(launcher, r0="", r1=""), Ending(exit_code=code, wall_s=1.0)) == expected


def test_the_rank_that_lost_its_peer_is_not_the_cause() -> None:
    lost = TRACEBACK.format(
        error="horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."
    )
    launcher = TRACEBACK.format(error="RuntimeError: Horovod detected ...; the first was:")
    found = cause(
        logs(f"{launcher}\nProcess name: 0\nExit code: 1", r0=lost, r1="working"),
        Ending(exit_code=1, wall_s=1.0),
    )
    assert found.startswith("rank 1 ended without a word")
    assert found.endswith("rank 0 lost its connection to it")
    # It has no words, but the launcher tells its exit code, as that of the second to be noticed.
    noticed = TORCHRUN_SIGNAL.replace("-15 (pid: 11289)  (SIGTERM)", "7 (pid: 11289) ")
    noticed = noticed.replace("-9 (pid: 11290)  (SIGKILL)", "1 (pid: 11290) ")
    lost = TRACEBACK.format(
        error="RuntimeError: [gloo/pair.cc:544] Connection closed by peer [::1]"
    )
    assert cause(logs(noticed, r0="working", r1=lost)) == "rank 0 ended with exit code 7"


@pytest.mark.parametrize("tag", ["[{}]<stderr>:", "[1,{}]<stderr>:", ""])
def test_ranks_that_fell_before_they_had_a_log(tag: str) -> None:
    error = "ImportError: cannot import name 'x' from 'y'"
    lines = TRACEBACK.format(error=error).splitlines()
    told = "\n".join(tag.format(rank) + line for line in lines for rank in (0, 1))
    ending = HOROVODRUN_EXIT.replace("137", "1")
    expected = f"rank 0: {error}" if tag else error
    found = cause(logs(f"{told}\n{ending}"))
    assert found.startswith(expected)


def test_a_module_that_python_was_to_run() -> None:
    text = "[1]<stderr>:/venv/bin/python: No module named harness\n" + HOROVODRUN_EXIT
    assert "No module named harness; `hvdscale doctor`" in cause(logs(text))


@pytest.mark.parametrize(
    "error",
    [
        "numpy.exceptions.AxisError: axis 3 is out of bounds for array of dimension 1",
        "queue.Empty",
        "StopIteration",
        "subprocess.TimeoutExpired: Command 'x' timed out",
    ],
)
def test_exceptions_of_any_name(error: str) -> None:
    assert cause(logs("", r0=TRACEBACK.format(error=error), r1="")) == f"rank 0: {error}"


@pytest.mark.parametrize("tag", ["", "[0]<stderr>:"])
def test_a_message_that_begins_on_the_next_line(tag: str) -> None:
    text = TRACEBACK.format(error="my.own.ValueError:\n\n  two columns are missing\n  and a third")
    text = "\n".join(tag + line for line in text.splitlines())
    ending = HOROVODRUN_EXIT.replace("137", "1").replace("name: 1", "name: 0")
    found = logs(ending + text) if tag else logs("", r0=text, r1="")
    assert cause(found) == "rank 0: my.own.ValueError: two columns are missing"
    assert cause(logs("", r0="builtins.OddError:", r1="")) == "rank 0: builtins.OddError:"


def test_a_message_on_the_next_line_may_be_a_consequence() -> None:
    first = TRACEBACK.format(error="ValueError: loss is nan")
    follower = TRACEBACK.format(error="RuntimeError:\nConnection closed by peer")
    assert cause(logs("", r0=follower, r1=first)) == "rank 1: ValueError: loss is nan"


WAITS = "srun: Job 5 step creation temporarily disabled, retrying (Requested nodes are busy)"
CANCELLED = "srun: Cancelled pending job step with signal 15"
OVER = "srun: error: Unable to create step for job 5: Job/step already completing or completed"


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (
            "srun: error: Unable to create step for job 5: Invalid generic resource specification",
            "Unable to create step for job 5: Invalid generic resource specification",
        ),
        ("\n".join([CANCELLED, OVER]), "Cancelled pending job step with signal 15"),
        ("\n".join([WAITS, CANCELLED, OVER]), "Requested nodes are busy"),
        ("srun: Cancelled pending step for job 5", "Cancelled pending step for job 5"),
        ("\n".join([WAITS, OVER]), OVER.removeprefix("srun: error: ")),
    ],
)
def test_a_step_that_slurm_never_started(launcher: str, reason: str) -> None:
    expected = f"Slurm never started the step: {reason}"
    assert cause(logs(launcher)) == expected
    late = Ending(exit_code=-15, wall_s=120.0, timed_out=True)
    verdict = diagnose(late, logs(launcher), 120.0, 2)
    assert verdict.status == "timeout"
    assert verdict.cause == f"not done after 120 s (measure.timeout_s); {expected}"


def test_a_step_that_waited_and_then_ran_was_started() -> None:
    created = f"{WAITS}\nsrun: Step created for StepId=5.1"
    assert "never started its log" in cause(logs(created))
    assert cause(logs(f"{WAITS}\nsrun: error: n1: task 0: Killed", r0="")).startswith(
        "rank 0 on n1 ended with signal SIGKILL"
    )


LOWER = "; lower batch_size, or raise execution.accumulate"
TENSORFLOW = "tensorflow.python.framework.errors_impl."
KERNEL = """\
/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: \
[0,0,0], thread: [2,0,0] Assertion `t >= 0 && t < n_classes` failed.
"""
GRAPH = """\
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

Detected at node SparseSoftmaxCrossEntropyWithLogits defined at (most recent call last):
  File "step.py", line 27, in <module>
Received a label value of 12 which is outside the valid range of [0, 10).  Label values: 1 12"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        # As torch 2.13, NumPy 2.4 and TensorFlow 2.21 print them.
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 4915200 bytes. Error code 12 (Cannot "
            "allocate memory)",
            "the host's memory is full (4915200 bytes more were asked for)" + LOWER,
        ),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 728. TiB for an array "
            "with shape (100000000000000,) and data type float64",
            "the host's memory is full (728. TiB more were asked for)" + LOWER,
        ),
        ("MemoryError", "the host's memory is full" + LOWER),
        ("MemoryError: std::bad_alloc", "the host's memory is full" + LOWER),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a "
            "total capacity of 79.11 GiB of which 1.02 GiB is free.",
            "the GPU's memory is full (20.00 GiB more were asked for)" + LOWER,
        ),
        (
            f"{TENSORFLOW}ResourceExhaustedError: {{{{function_node __wrapped__Fill_device_/job:"
            "localhost/replica:0/task:0/device:CPU:0}} OOM when allocating tensor with "
            "shape[4194304,1048576] and type float on /job:localhost/replica:0/task:0/device:CPU:0 "
            "by allocator cpu [Op:Fill] name:",
            "the host's memory is full (a tensor of shape [4194304,1048576] was asked for)" + LOWER,
        ),
        (
            f"{TENSORFLOW}ResourceExhaustedError: OOM when allocating tensor with shape[64,32] and "
            "type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
            "the GPU's memory is full (a tensor of shape [64,32] was asked for)" + LOWER,
        ),
        (
            "IndexError: Target -3 is out of bounds.",
            "label -3 is not one of the model's classes; look at the data, or set more classes",
        ),
        (
            f"{TENSORFLOW}InvalidArgumentError: {{{{function_node __inference_15}}}} Received a "
            "label value of 12 which is outside the valid range of [0, 10).  Label values: 1 12",
            "label 12 is not one of the model's classes [0, 10); look at the data, or set more "
            "classes",
        ),
        (
            GRAPH,
            "label 12 is not one of the model's classes [0, 10); look at the data, or set more "
            "classes",
        ),
        (
            "IndexError: index out of range in self",
            "an index is outside of its table (a token that an embedding does not have, say); look "
            "at the data, or set a larger vocabulary",
        ),
        (
            "workloads.api.WorkloadError: data/a.jpg: not an image that can be read",
            "data/a.jpg: not an image that can be read",
        ),
        (
            "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in "
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
            "torch.compile has no working C++ compiler; install g++, or set "
            "execution.compile: false",
        ),
    ],
)
def test_what_a_library_said_is_told_in_our_words(error: str, expected: str) -> None:
    follower = TRACEBACK.format(
        error="horovod.common.exceptions.HorovodInternalError: [/x] Connection closed by peer"
    )
    text = TRACEBACK.format(error=error)
    assert cause(logs(OPEN_MPI_EXIT, r0=follower, r1=text)) == f"rank 1: {expected}"


@pytest.mark.parametrize("kind", ["torch.AcceleratorError", "RuntimeError"])
def test_the_check_that_failed_on_a_gpu_was_printed_before_its_exception(kind: str) -> None:
    error = f"{kind}: CUDA error: device-side assert triggered"
    assert cause(logs("", r0=KERNEL + TRACEBACK.format(error=error), r1="")) == (
        "rank 0: a label is not one of the model's classes; look at the data, or set more classes"
    )
    assert "CUDA_LAUNCH_BLOCKING=1" in cause(logs("", r0=TRACEBACK.format(error=error), r1=""))


def test_words_before_an_exception_are_not_its_cause() -> None:
    """A rank that got over a lack of memory, and fell over something else."""
    text = "MemoryError\n" + TRACEBACK.format(error="ValueError: odd")
    assert cause(logs("", r0=text, r1="")) == "rank 0: ValueError: odd"


def test_native_code_without_memory_names_its_rank() -> None:
    said = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  x"
    follower = TRACEBACK.format(error="RuntimeError: Connection closed by peer [127.0.0.1]:4242")
    aborted = OPEN_MPI_SIGNAL.replace("signal 9 (Killed)", "signal 6 (Aborted)")
    assert cause(logs(aborted, r0=follower, r1=said)) == "rank 1: the host's memory is full" + LOWER


def test_a_loss_that_is_no_number_keeps_the_gates_words() -> None:
    said = (
        "the loss of rank 1 is nan at step 3 of the window: lower the learning rate, or look at "
        "the data"
    )
    assert cause(logs("", r0=f"hvdscale: error: {said}", r1="")) == f"rank 0: {said}"


class TestTime:
    def test_a_stall_that_horovod_ended(self) -> None:
        verdict = diagnose(Ending(1, 3.0), logs("", r0=STALL_END, r1=""), 120.0, 2)
        assert verdict.status == "stalled"
        assert verdict.cause == (
            "Horovod ended it: some ranks waited longer than 60 s for the others; missing: rank 3"
        )

    def test_a_stall_that_our_limit_ended(self) -> None:
        ending = Ending(None, 120.0, timed_out=True)
        verdict = diagnose(ending, logs("", r0=STALL, r1=""), 120.0, 2)
        assert verdict.status == "timeout"
        assert verdict.cause == (
            "not done after 120 s (measure.timeout_s); Horovod was waiting for rank 1, 3"
        )

    def test_a_rank_that_gloo_waited_for_in_vain(self) -> None:
        gave_up = (
            "[E operations.cc:697] [0]: Horovod background loop uncaught exception: "
            "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 40000ms for recv "
            "operation to complete\n"
        )
        lost = TRACEBACK.format(
            error="horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."
        )
        launcher = HOROVODRUN_EXIT.replace("137", "1").replace("name: 1", "name: 0")
        verdict = diagnose(Ending(1, 60.0), logs(launcher, r0=gave_up + lost, r1="x"), 80.0, 2)
        assert verdict.status == "stalled"
        assert verdict.cause.startswith("rank 1 did not answer for 40 s: stopped, stuck in a")
        # Not where a rank says what is wrong with it.
        own = TRACEBACK.format(error="ValueError: odd")
        found = logs(launcher, r0=gave_up + lost, r1="x", r2=own)
        assert cause(found, n=3) == "rank 2: ValueError: odd"

    def test_a_rank_that_never_came_to_gloo(self) -> None:
        gave_up = (
            "terminate called after throwing an instance of 'gloo::IoException'\n"
            "  what():  [/tmp/horovod/common/gloo/http_store.cc:54] Wait timeout after 30 seconds "
            "for key(s): 1. You may want to increase the timeout via HOROVOD_GLOO_TIMEOUT_SECONDS\n"
        )
        launcher = HOROVODRUN_EXIT.replace("137", "134").replace("name: 1", "name: 0")
        verdict = diagnose(Ending(1, 35.0), logs(launcher, r0=gave_up), 60.0, 2)
        assert verdict.status == "stalled"
        assert verdict.cause == "rank 1 never started its log; the others waited 30 s for it"

    @pytest.mark.parametrize(
        ("ending", "before"),
        [
            (Ending(14, 1.0), ""),
            # Its launcher hung, though all ranks had ended.
            (Ending(None, 60.0, timed_out=True), "not done after 60 s (measure.timeout_s); "),
        ],
    )
    def test_an_mpi_that_cannot_start(self, ending: Ending, before: str) -> None:
        """Of ``OMPI_MCA_pml=nonexistent``, or a library that a component needs and is not there."""
        found = logs(f"{NO_COMPONENT}\n{PRTE_EXIT}", r0="", r1=NO_MPI)
        assert diagnose(ending, found, 60.0, 2).cause == (
            f"{before}MPI cannot start: no pml component of Open MPI's works here; look at the "
            "OMPI_MCA_ variables and at openmpi-mca-params.conf"
        )

    def test_who_was_late_and_came_is_not_missing(self) -> None:
        later = STALL.replace("\n1: [", "\n0: [").partition("\n3: [")[0]
        verdict = diagnose(
            Ending(None, 120.0, timed_out=True), logs("", r0=f"{STALL}\n{later}"), 120.0, 1
        )
        assert verdict.cause.endswith("; Horovod was waiting for rank 0")

    def test_without_horovods_words_it_is_told_where_each_rank_was(self) -> None:
        def stack(function: str) -> str:
            return (
                "hvdscale: the time limit is near; thread MainThread is at\n"
                '  File "/a/bench.py", line 7, in run\n    step()\n'
                f'  File "/a/b/{function}.py", line 3, in {function}\n    x = 1\n'
                "hvdscale: the time limit is near; thread Thread-9 is at\n"
                '  File "/a/thread.py", line 5, in wait\n    y = 1'
            )

        found = logs("", r0=stack("reduce"), r1=stack("load"), r2=stack("reduce"), r3="")
        verdict = diagnose(Ending(None, 120.0, timed_out=True), found, 120.0, 4)
        assert verdict.cause == (
            "not done after 120 s (measure.timeout_s); rank 1 was in load (load.py:3), "
            "rank 0, 2 was in reduce (reduce.py:3)"
        )

    def test_a_stopped_process_is_named(self) -> None:
        ending = Ending(None, 120.0, timed_out=True, stopped=("rank 1 (process 77)",))
        assert diagnose(ending, logs("", r0="", r1=""), 120.0, 2).cause == (
            "not done after 120 s (measure.timeout_s); rank 1 (process 77) was stopped "
            "(SIGSTOP, or a debugger)"
        )

    def test_an_interrupt_is_no_failure(self) -> None:
        ending = Ending(None, 1.0, interrupted=True)
        assert diagnose(ending, logs("x"), 120.0, 2).status == "cancelled"


@pytest.mark.parametrize(
    ("code", "name"),
    [(-9, "signal SIGKILL"), (137, "signal SIGKILL"), (3, "exit code 3"), (255, "exit code 255")],
)
def test_exit_names(code: int, name: str) -> None:
    assert exit_name(code) == name


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes_give_one_harmless_line(rank: bytes, launcher: bytes) -> None:
    def lines(data: bytes) -> tuple[str, ...]:
        return tuple(escaped(line) for line in data.decode(errors="replace").split("\n"))

    found = Logs((RankLog(0, lines(rank), 0.0),), lines(launcher))
    verdict = diagnose(Ending(1, 1.0), found, 60.0, 1)
    assert verdict.cause
    assert all(c.isprintable() or c == "\t" for c in verdict.cause)
    RunError(cause=verdict.cause, rank_tails=found.rank_tails()).model_dump_json()


class TestLogs:
    def test_a_tail_is_the_last_lines_of_a_long_file(self, tmp_path: Path) -> None:
        path = tmp_path / "rank-0.log"
        path.write_text("".join(f"line {n}\n" for n in range(100_000)) + "\n\n")
        assert read_tail(path) == tuple(f"line {n}" for n in range(99_800, 100_000))

    def test_a_progress_bar_leaves_its_last_state(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        path.write_bytes(b"10%\r50%\r100%\r\nnext\r\n")
        assert read_tail(path) == ("100%", "next")

    def test_a_record_gets_twenty_lines(self, tmp_path: Path) -> None:
        for name in ("rank-0.log", "launcher.log"):
            (tmp_path / name).write_text("".join(f"line {n}\n" for n in range(100)))
        found = read_logs(tmp_path)
        last = tuple(f"line {n}" for n in range(80, 100))
        assert found.rank_tails() == {"0": last}
        assert found.launcher_tail() == last
        assert len(found.launcher) == 100

    def test_an_exception_of_a_megabyte_is_found(self, tmp_path: Path) -> None:
        """As a library raises it that prints a whole tensor."""
        (tmp_path / "rank-0.log").write_text(
            f"{'y' * 1_000_000}\nTraceback (most recent call last):\n"
            f"ValueError: {'z' * 1_000_000}\n"
        )
        found = read_logs(tmp_path)
        assert max(map(len, found.ranks[0].tail)) == 500
        cause = diagnose(Ending(1, 1.0), found, 60.0, 1).cause
        assert cause.startswith("rank 0: ValueError: zzz")

    @pytest.mark.parametrize("name", ["rank-1.log", "launcher.log"])
    @pytest.mark.parametrize("what", ["pipe", "folder", "loop"])
    def test_a_log_that_is_none_is_said_to_be(self, tmp_path: Path, name: str, what: str) -> None:
        path = tmp_path / name
        make = {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda p: os.symlink(p, p)}
        make[what](path)
        (tmp_path / "rank-0.log").write_text("ValueError: why\n")
        found = read_logs(tmp_path)
        tail = found.launcher if name == "launcher.log" else found.ranks[1].tail
        assert len(tail) == 1
        assert tail[0].startswith("(this log cannot be read: ")
        assert diagnose(Ending(1, 1.0), found, 60.0, 2).cause == "rank 0: ValueError: why"

    def test_a_folder_that_is_gone_has_no_logs(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert read_logs(tmp_path / "gone") == read_logs(tmp_path / "file") == Logs((), ())

    def test_ranks_are_in_numeric_order(self, tmp_path: Path) -> None:
        for rank in (10, 2, 0):
            (tmp_path / f"rank-{rank}.log").write_text(f"{rank}\n")
        (tmp_path / "rank-x.log").write_text("")
        found = read_logs(tmp_path)
        assert [log.rank for log in found.ranks] == [0, 2, 10]
        assert found.rank_tails() == {"0": ("0",), "2": ("2",), "10": ("10",)}
        assert found.launcher == ()


class TestProgress:
    def show(self, terminal: bool, monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "120", **env}.items():
            monkeypatch.setenv(name, value)
        stream = Terminal() if terminal else io.StringIO()
        config = factories.config("horovod", 2, backend="mpi")
        with reporter(stream) as report:
            report.begin("demo", 3, 1)
            report.launching("point one")
            report.finished("point one", factories.record(config, throughput=1234.5), 10.0)
            report.launching("point two")
            report.finished("point two", factories.failure(config, cause="rank 1: boom"), 20.0)
        return stream.getvalue()

    def test_lines_where_there_is_no_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.show(False, monkeypatch).splitlines() == [
            "demo: 3 launches, 1 done already",
            "[2/3] point one: 1,234 samples/s [10 s, about 10 s left]",
            "[3/3] point two: failed: rank 1: boom",
        ]

    def test_one_launch_is_no_launches(self) -> None:
        stream = io.StringIO()
        with reporter(stream) as report:
            report.begin("demo", 1, 0)
        assert stream.getvalue() == "demo: 1 launch, 0 done already\n"

    def test_a_bar_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = self.show(True, monkeypatch)
        assert "\x1b[" in text
        for part in ("demo", "1/3", "point one", "2/3", "about 10 s left", "point two", "3/3"):
            assert part in text
        assert "point two: failed: rank 1: boom" in text

    def test_no_colour_where_none_is_wanted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import re

        coloured = re.compile(r"\x1b\[[0-9;]*[34]\d(;[0-9;]*)?m")
        assert coloured.search(self.show(True, monkeypatch))
        assert not coloured.search(self.show(True, monkeypatch, NO_COLOR="1"))

    def test_lines_on_a_dumb_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "\x1b" not in self.show(True, monkeypatch, TERM="dumb")

    def test_a_plain_report_keeps_lines_whole(self) -> None:
        stream = io.StringIO()
        PlainReport(stream).note("x" * 500)
        assert stream.getvalue() == "x" * 500 + "\n"

    def test_a_closed_terminal_does_not_end_the_sweep(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of ``trap '' HUP`` and a window that is closed."""
        monkeypatch.setenv("TERM", "xterm")
        stream = ClosedTerminal()
        with reporter(stream) as report:
            report.begin("sweep", 2, 0)
            report.launching("point 1")
            report.finished("point 1", factories.failure(factories.config()), 1.0)
            report.note("the end")
        assert stream.getvalue()

    def test_a_log_on_a_full_disk_does_not_end_the_sweep(self) -> None:
        with open("/dev/full", "w", buffering=1) as stream:
            PlainReport(stream).note("x")
            with pytest.raises(OSError, match="No space"):
                print("x", file=stream, flush=True)
            with suppress(OSError):
                stream.close()

    @pytest.mark.parametrize(
        ("seconds", "text"), [(8.4, "8 s"), (89, "89 s"), (240, "4 min"), (9000, "2.5 h")]
    )
    def test_durations(self, seconds: float, text: str) -> None:
        assert duration(seconds) == text


class ClosedTerminal(io.StringIO):
    """A terminal whose window is closed as soon as something was written."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.getvalue():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(text)

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


TORCHRUN = """
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -{signal} (pid: 9169)  (SIGNAL)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 9168)
  traceback : To enable traceback see: ...
============================================================
"""


@pytest.mark.parametrize(("number", "rank"), [(9, "1"), (11, "1"), (15, "0")])
def test_what_torchrun_saw_first_is_not_always_first(number: int, rank: str) -> None:
    """Rank 0 lost its peer and was seen first; what torchrun itself ended (15) is no cause."""
    from harness.runner.diagnose import _fatal

    logs = Logs(ranks=(), launcher=tuple(TORCHRUN.format(signal=number).splitlines()))
    found = _fatal(logs)
    assert found is not None
    assert found[0] == rank
    assert found[1] == (-number if rank == "1" else 1)
