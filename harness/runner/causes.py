"""Known trouble, by the words that libraries say it in, and what helps. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOWER = "lower batch_size, or raise execution.accumulate"
_GPU = "the GPU's memory is full"
_HOST = "the host's memory is full"

#: Most telling first; what a group has matched stands in the cause.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        # Memory. TensorFlow has one error for both; torch one for the GPU, and none for the host.
        (
            r"OOM when allocating tensor with shape(\[[\d,]*\]).*device:GPU",
            f"{_GPU} (a tensor of shape {{0}} was asked for); {_LOWER}",
        ),
        (
            r"OOM when allocating tensor with shape(\[[\d,]*\])",
            f"{_HOST} (a tensor of shape {{0}} was asked for); {_LOWER}",
        ),
        (
            r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)",
            f"{_GPU} ({{0}} more were asked for); {_LOWER}",
        ),
        (
            r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory"
            r"|Cuda failure \d* ?'out of memory'",
            f"{_GPU}; {_LOWER}",
        ),
        (
            r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+ bytes)",
            f"{_HOST} ({{0}} more were asked for); {_LOWER}",
        ),
        (
            r"ArrayMemoryError: Unable to allocate ([\d.]+ \w+)",
            f"{_HOST} ({{0}} more were asked for); {_LOWER}",
        ),
        (r"^MemoryError\b|std::bad_alloc", f"{_HOST}; {_LOWER}"),
        (r"[Oo][Oo][Mm][-_ ]kill|Out of memory: Kill", "ended by the kernel: out of memory"),
        # Data that does not fit the model.
        (
            r"IndexError: Target (-?\d+) is out of bounds",
            "label {0} is not one of the model's classes; look at the data, or set more classes",
        ),
        (
            r"Received a label value of (-?\d+) which is outside the valid range of (\[[^)]*\))",
            "label {0} is not one of the model's classes {1}; look at the data, or set more "
            "classes",
        ),
        (
            r"Assertion `t >= 0 && t < n_classes` failed",
            "a label is not one of the model's classes; look at the data, or set more classes",
        ),
        (
            r"IndexError: index out of range in self|Assertion `.*(?:index out of bounds"
            r"|srcIndex < srcSelectDimSize).*` failed",
            "an index is outside of its table (a token that an embedding does not have, say); look "
            "at the data, or set a larger vocabulary",
        ),
        (
            r"CUDA error: device-side assert triggered",
            "a check in a kernel failed on the GPU (a label or an index out of range, most often); "
            "CUDA_LAUNCH_BLOCKING=1 shows where",
        ),
        # The installation and the network.
        (
            r"(?:InvalidCxxCompiler|CppCompileError)",
            "torch.compile has no working C++ compiler; install g++, or set "
            "execution.compile: false",
        ),
        (
            r"(?:ModuleNotFoundError|python[\d.]*): (No module named \S+)",
            "{0}; `hvdscale doctor` says what is missing",
        ),
        (r"Address already in use|EADDRINUSE", "address already in use (a network port)"),
        (r"No space left on device", "no space left on device"),
        (
            r"mca_base_framework_open on (?:ompi_)?(\w+) failed",  # Open MPI's name of a part
            "MPI cannot start: no {0} component of Open MPI's works here; look at the OMPI_MCA_ "
            "variables and at openmpi-mca-params.conf",
        ),
        (r"It looks like MPI_INIT failed", "MPI cannot start; the launcher's log says more"),
        (r"not enough slots available", "the launcher has too few slots for the ranks"),
        (
            r"[Hh]ost key verification failed|Permission denied \(publickey",
            "ssh to another host was refused",
        ),
    )
)
_BARE = re.compile(r"[\w.]+:")  # an exception with nothing after its name
#: Its exception says only that a check failed; which one was printed long before.
_ELSEWHERE = "device-side assert triggered"


def known_cause(lines: Sequence[str]) -> str | None:
    """Return what the most telling of ``lines`` stands for, or None."""
    for pattern, cause in _PATTERNS:
        for line in lines:
            if match := pattern.search(line):
                return cause.format(*match.groups())
    return None


def whole_message(error: str, log: Sequence[str]) -> str:
    """Return an exception's line, with the next of its ``log`` where its message begins there."""
    if not _BARE.fullmatch(error) or error not in log:
        return error
    last = len(log) - 1 - list(reversed(log)).index(error)
    message = next((line.strip() for line in log[last + 1 :] if line.strip()), "")
    return f"{error} {message}".rstrip()


def cause_of(error: str, log: Sequence[str]) -> str | None:
    """Return what an exception's line in a rank's log stands for, or None.

    TensorFlow says what went wrong some lines after the exception's own, a CUDA kernel before it.
    """
    if _ELSEWHERE in error:
        return known_cause(log)
    found = known_cause([error])
    if found is not None or error not in log:
        return found
    last = len(log) - 1 - list(reversed(log)).index(error)
    return known_cause(log[last + 1 :])
