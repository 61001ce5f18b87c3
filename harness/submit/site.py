"""What a cluster's partition is and wants: the part of a submission that no sweep knows.

A site stands for the machine on a login node, where nothing of it can be seen. Inside a job the
machine itself is looked at, and a launch that would then be decided otherwise is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from harness.config.models import Count, Frozen, Natural
from harness.detect import LAUNCHERS, MODULES, Host, Machine, Mpi, Slurm

Backend = Literal["nccl", "mpi", "mpi-host", "gloo"]

DEFAULT_TIME_S = 3600
MAX_NODES = 100_000  # above what Slurm can have; a machine of all of them is made in memory
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,6})((?::[0-5]?\d){0,2})", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MEMORY = re.compile(r"\d+[KMGT]?", re.ASCII | re.IGNORECASE)
_GRES = re.compile(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?", re.ASCII)
_OPTION = re.compile(r"--([a-z][a-z-]*[a-z])(?:=.*)?", re.ASCII)
#: Options of sbatch that are not a site's to give as such, with what decides them.
_DECIDED = {
    **{key: f"the key {key}" for key in ("account", "constraint", "exclusive", "partition", "qos")},
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "the key memory"),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node"), "the keys gres and gpus_per_node"),
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node"), "the sweep's placement"),
    "cpus-per-task": "the key cpus_per_node",
    "time": "the keys time_per_point and time_per_job",
    **dict.fromkeys(
        ("array", "comment", "dependency", "error", "job-name", "output", "parsable", "signal",
         "test-only", "wait", "wrap"),
        "hvdscale",
    ),
    # Without an answer, or without a sight of the queue, nobody knows what is submitted.
    **dict.fromkeys(("help", "quiet", "usage", "version"), "hvdscale, which reads sbatch's answer"),
    **dict.fromkeys(("cluster", "clusters"), "hvdscale, which sees this cluster's queue alone"),
}  # fmt: skip


def parse_time_s(value: object) -> int:
    """Read a time in one of Slurm's forms, in seconds.

    They are minutes, mm:ss, hh:mm:ss, d-hh, d-hh:mm and d-hh:mm:ss: "1:30" is a minute and a half.
    """
    match = None if isinstance(value, bool) else _TIME.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not a time: write minutes, hh:mm:ss or d-hh:mm:ss")
    days, first, more = match.groups()
    parts = [int(part) for part in (first + more).split(":")]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0, parts[0], 0
    else:
        hours, minutes, seconds = (0, *parts)[-3:]
    return ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds


def time_text(seconds: int) -> str:
    """Return a time as ``sbatch --time`` takes it, in whole minutes, rounded up."""
    minutes = -(-seconds // 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    return f"{days}-{hours:02d}:{minutes % 60:02d}:00" if days else f"{hours}:{minutes % 60:02d}:00"


def _seconds(value: object) -> object:
    return value if value is None else parse_time_s(value)


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("should be above 0")
    return value


def _not_too_many(value: int) -> int:
    if value > MAX_NODES:
        raise ValueError(f"should be at most {MAX_NODES:,}, got {value:,}")
    return value


def _one_line(value: str) -> str:
    if any(character in value for character in "\n\r\0"):
        raise ValueError("should be one line")
    return value


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty; leave the key out instead")
    return value


def _site_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"'{value}' is no name: letters, digits, dot, dash and underscore")
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a variable")
    return value


def _memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(f"'{value}' is no memory: write 0 for all, or a number with K, M, G or T")
    return value


def _gres(value: str) -> str:
    if not _GRES.fullmatch(value) or value.rpartition(":")[2].isdecimal():
        raise ValueError(f"'{value}' is no name of a GPU: write gpu or gpu:TYPE, without a count")
    return value


def _scratch(value: str) -> str:
    if not value.startswith(("/", "$")):
        raise ValueError(f"'{value}' is no folder of a node: write /path or $VARIABLE/path")
    return value


def _shared(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"'{value}' is no absolute path; is a variable in it not set here?")
    return value


def _interpreter(value: str) -> str:
    # A bare name is found on the PATH that ``setup`` makes.
    return _shared(value) if "/" in value or "$" in value else value


def _option(value: str) -> str:
    match = _OPTION.fullmatch(value)
    if match is None:
        raise ValueError(f"'{value}' is no option: write --name or --name=value, one each")
    # sbatch takes any beginning of a name that only one has.
    decided = next((by for key, by in _DECIDED.items() if key.startswith(match.group(1))), None)
    if decided is not None:
        raise ValueError(f"--{match.group(1)} is decided by {decided}; leave it out")
    return value


def _exact(seconds: int) -> str:
    # Not a number: that would be read as minutes again.
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


#: A time as Slurm writes it; kept in seconds.
Seconds = Annotated[
    int,
    BeforeValidator(_seconds),
    AfterValidator(_positive),
    PlainSerializer(_exact, return_type=str),
]
Line = Annotated[str, AfterValidator(_one_line)]
Word = Annotated[Line, AfterValidator(_not_empty)]
Interpreter = Annotated[Word, AfterValidator(_interpreter)]


class Site(Frozen):
    """One partition of a cluster, and how its jobs are to be asked for and set up.

    ``slurm/README.md`` explains every key.
    """

    name: Annotated[str, AfterValidator(_site_name)]
    title: Line = ""
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    nodes: Annotated[Count, AfterValidator(_not_too_many)]  # the most that one job may have
    cpus_per_node: Count  # logical CPUs, as Slurm counts them
    gpus_per_node: Natural = 0
    gres: Annotated[str, AfterValidator(_gres)] = "gpu"  # name of a GPU: "gpu", "gpu:a100"
    exclusive: bool = True  # whole nodes: neighbours disturb what is measured
    memory: Annotated[str, AfterValidator(_memory)] = "0"  # of a node, as ``--mem``; "0": all
    launcher: Literal["srun", "mpirun", "horovodrun"] | None = "srun"
    mpi: Literal["openmpi", "mpich", "intel", "none"] = "openmpi"  # the ranks', for srun to speak
    mpi_is_cuda_aware: bool = False
    mpi_plugins: tuple[Word, ...] = ("pmix", "pmi2")  # what ``srun --mpi=list`` names there
    interface: Word | None = None  # that ranks meet over; None: the only one
    setup: tuple[Line, ...] = ()  # lines of shell before anything: module load …
    environment: Annotated[dict[str, Line], AfterValidator(_variables)] = Field(
        default_factory=dict
    )
    python: Interpreter | None = None  # interpreter of every rank; None: the one that submits
    python_by_backend: dict[Backend, Interpreter] = Field(default_factory=dict)
    time_per_point: Seconds | None = None  # a launch with its start; None: estimated
    time_per_job: Seconds = DEFAULT_TIME_S  # about what an element may take; at most max_time
    max_time: Seconds | None = None  # the partition's limit
    max_array_size: Count = 1001  # Slurm's default: indices up to 1000
    scratch: Annotated[Word, AfterValidator(_scratch)] | None = (
        None  # node-local folder for data, $VARIABLES are the node's
    )
    data_dir: Annotated[Word, AfterValidator(_shared)] | None = (
        None  # shared folder for data; None: the user's default
    )
    options: tuple[Annotated[Word, AfterValidator(_option)], ...] = ()  # more options of sbatch

    @model_validator(mode="before")
    @classmethod
    def _default_below_limit(cls, data: Any) -> Any:
        """Where a partition's limit is less than the default of ``time_per_job``, that is it."""
        if not isinstance(data, dict) or "time_per_job" in data or data.get("max_time") is None:
            return data
        try:
            limit_s = parse_time_s(data["max_time"])
        except ValueError:
            return data  # said where the field is checked
        # In the form in which it was given: a bare number is minutes.
        return data if limit_s >= DEFAULT_TIME_S else {**data, "time_per_job": data["max_time"]}

    @model_validator(mode="after")
    def _below_limit(self) -> Self:
        for key in ("time_per_point", "time_per_job"):
            asked_s = getattr(self, key)
            if asked_s is not None and self.max_time is not None and asked_s > self.max_time:
                raise ValueError(
                    f"{key}: {_exact(asked_s)} is more than max_time, {_exact(self.max_time)}"
                )
        return self

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Return what a rank drives there."""
        return "cuda" if self.gpus_per_node else "cpu"

    @property
    def devices_per_node(self) -> int:
        """Return how many ranks a node takes: its GPUs, else its CPUs."""
        return self.gpus_per_node or self.cpus_per_node

    def machine(self, python: str) -> Machine:
        """Return what an allocation of all ``nodes`` would look like from inside.

        ``python`` is the interpreter of ranks where the site names none. What is installed there
        cannot be known here, so everything is; a job that lacks it fails, and says so.
        """
        host = Host("", self.cpus_per_node, self.devices_per_node)
        return Machine(
            hosts=tuple(
                Host(f"node{number}", host.cores, host.slots) for number in range(self.nodes)
            ),
            device=self.device,
            python=self.python or python,
            mpi=None
            if self.mpi == "none"
            else Mpi(self.mpi, "", "mpirun", cuda_aware=self.mpi_is_cuda_aware),
            slurm=Slurm("", mpi_plugins=self.mpi_plugins),
            launchers={name: name for name in LAUNCHERS},
            modules=frozenset(MODULES),
            interfaces=(self.interface,) if self.interface else (),
            python_by_backend=dict[str, str](self.python_by_backend.items()),
            launcher=self.launcher,
        )
