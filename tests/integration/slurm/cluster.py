"""A private Slurm on this machine: munge and a controller on a head, and nodes that are hosts.

Nothing under /etc is touched, no service manager is asked, and every daemon runs in the foreground
inside the namespaces that ``hosts`` makes, so nothing outlives them.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import proc
from tests.integration.slurm.hosts import HEAD, START_S, Hosts, environ, processes, which

PROGRAMS = (
    *("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc"),
    *("squeue", "sinfo", "scontrol", "scancel"),
)
REVOKED_S = 3.0
CLIENT_S = 500.0  # below the limit of a test, so that what hangs is told

_CONF = """\
ClusterName=hvdscale
SlurmctldHost={head}({address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# How long a requeued job waits before it may start again is the life of a credential.
AuthInfo=socket={folder}/munge/munge.sock,cred_expire=300
CredType=cred/munge
StateSaveLocation={folder}/state
TmpFS={folder}/scratch/%n
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/log/slurmctld.pid
SlurmdPidFile={folder}/log/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
MinJobAge=3600
KillWait=60
InactiveLimit=0
MessageTimeout=30
# Every third of it each node is asked; one that was away is not used before.
SlurmdTimeout=90
{nodes}
PartitionName=DEFAULT Nodes=ALL MaxTime=60 DefaultTime=10 State=UP OverSubscribe=NO
PartitionName=main Default=YES PriorityTier=1
PartitionName=urgent PriorityTier=10
{more}"""


def missing() -> list[str]:
    """Return the programs of Slurm that a cluster needs and that are not here."""
    return [name for name in PROGRAMS if which(name) is None]


@dataclass
class Cluster:
    """Started by ``start``, and gone without a trace (but ``folder``) after ``stop``.

    Nodes are n1, n2, …, each a host of its own (see ``hosts``) with ``cpus`` cores and ``gpus``
    GPUs that are none. Partition ``urgent`` preempts jobs of ``main``, which are requeued. There is
    no accounting: ``sacct`` fails. Jobs see ``shared`` and ``folder``, and of other folders those
    that are not below /tmp.
    """

    folder: Path
    nodes: int = 2
    cpus: int = 2
    gpus: int = 0
    shared: Sequence[Path] = ()
    more: str = ""  # further lines of slurm.conf
    hosts: Hosts = field(init=False)
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = tuple(f"n{number}" for number in range(1, self.nodes + 1))
        self.hosts = Hosts(self.folder, names, self.shared)

    @property
    def environ(self) -> Mapping[str, str]:
        """Return what a client of this cluster has in its environment."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start all hosts and daemons and wait until every node is idle.

        RuntimeError with their logs where that does not happen, and nothing is left.
        """
        self._write()
        try:
            self.hosts.start()
            munge = self.folder / "munge"
            self._daemon(
                *(HEAD, "munged", "-F", f"--key-file={munge}/key", f"--socket={munge}/munge.sock"),
                *(f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"),
                f"--log-file={self.folder}/log/munged.log",
            )
            self._until((munge / "munge.sock").exists, "munged made no socket")
            self._daemon(HEAD, "slurmctld", "-D")
            for name in self.hosts.names:
                self._daemon(name, "slurmd", "-D", "-N", name)
            self._until(lambda: self._idle() == set(self.hosts.names), "not every node became idle")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all at once: the kernel does, when the head is gone."""
        self.hosts.stop()
        for daemon in self._daemons.values():
            daemon.wait(START_S)
        self._daemons.clear()

    def start_client(
        self, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on the head, as a child of this process; its outputs are pipes of text.

        ``env`` is added to this process's own; the folder is ``cwd``, or this process's own.
        """
        return subprocess.Popen(
            [*self.hosts.enter(HEAD), f"--wdns={cwd or Path.cwd()}", "--", *argv],
            env={**os.environ, **self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def client(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = CLIENT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end, a Slurm command of this cluster or any other."""
        client = self.start_client(*argv, env=env, cwd=cwd)
        try:
            stdout, stderr = client.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(client.pid, signal.SIGKILL)
            client.communicate()
            raise
        return subprocess.CompletedProcess(argv, client.returncode, stdout, stderr)

    def state(self, job_id: str) -> str:
        """Return a job's state, as PENDING or RUNNING; "" where Slurm does not know it."""
        return self.client("squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id).stdout.strip()

    def wait_for(self, job_id: str, *states: str, timeout_s: float = CLIENT_S) -> str:
        """Wait until a job is in one of ``states`` and return that; AssertionError at the end."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job_id)) not in states:
            if time.monotonic() > deadline:
                said = self.client("scontrol", "show", "job", job_id).stdout
                said += self.client("sinfo", "-N", "-l").stdout
                raise AssertionError(f"job {job_id} is {state}, not {' or '.join(states)}: {said}")
            time.sleep(0.1)
        return state

    def hasten(self, job_id: str) -> None:
        """Let a job that was requeued start now, and not when its old credential has expired."""
        self.wait_for(job_id, "PENDING")
        # A node takes no credential that is not younger, by whole seconds, than the one that it
        # revoked when the job was requeued: the job would fail to start (JobLaunchFailure).
        time.sleep(REVOKED_S)
        deadline = time.monotonic() + CLIENT_S
        while self.state(job_id) == "PENDING" and time.monotonic() < deadline:
            done = self.client("scontrol", "update", f"JobId={job_id}", "StartTime=now")
            assert done.returncode == 0 or self.state(job_id) != "PENDING", done.stderr
            time.sleep(0.5)

    def slow(self, rate_bits_per_s: int, burst_bytes: int = 16_384) -> None:
        """Limit what every node sends. A larger burst would let a small gradient through free."""
        self.hosts.slow(rate_bits_per_s, burst_bytes)

    def fast(self) -> None:
        """Take the limit away."""
        self.hosts.fast()

    def kill_node(self, name: str) -> None:
        """Take the power of a node away, and have Slurm know of it.

        Slurm by itself would notice after ``SlurmdTimeout``, minutes.
        """
        self.hosts.remove(name)
        self._daemons.pop(name).wait(START_S)
        self.client("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=power")

    def revive(self, name: str) -> None:
        """Start a node again that was killed, and wait until it is idle."""
        self.hosts.add(name)
        self._daemon(name, "slurmd", "-D", "-N", name)
        self._until(lambda: name in self._idle(), f"{name} did not become idle")

    def traces(self) -> list[str]:
        """Return what is left of this cluster: processes and mounts."""
        marker = f"SLURM_CONF={self.environ['SLURM_CONF']}"
        carrying = [
            f"process {pid}: {command}"
            for pid, command in processes()
            if marker in proc.environ(pid)
        ]
        return [*self.hosts.traces(), *carrying]

    def _write(self) -> None:
        for name in ("munge", "state", "log", "devices"):
            (self.folder / name).mkdir()
        for name in self.hosts.names:
            (self.folder / "spool" / name).mkdir(parents=True)
            (self.folder / "scratch" / name).mkdir(parents=True)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        shape = f"CPUs={self.cpus} CoresPerSocket={self.cpus} RealMemory=1000 State=UNKNOWN"
        gres = self._gpus()
        text = _CONF.format(
            head=HEAD,
            address=self.hosts.address(HEAD),
            user=getpass.getuser(),
            folder=self.folder,
            nodes="\n".join(
                f"NodeName={name} NodeAddr={self.hosts.address(name)} {shape}{gres}"
                for name in self.hosts.names
            ),
            more=self.more,
        )
        (self.folder / "slurm.conf").write_text(text)
        # There may be no cgroup file system; this plug-in starts without one.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _gpus(self) -> str:
        """Write gres.conf, and return what a node's line says of its GPUs."""
        if not self.gpus:
            return ""
        for number in range(self.gpus):
            (self.folder / "devices" / f"gpu{number}").symlink_to("/dev/null")
        files = f"{self.folder}/devices/gpu[0-{self.gpus - 1}]"
        (self.folder / "gres.conf").write_text(f"Name=gpu File={files}\n")
        return f" Gres=gpu:{self.gpus}"

    def _daemon(self, host: str, name: str, *arguments: str) -> None:
        program = which(name)
        assert program is not None  # ``missing`` was asked before
        key = host if name == "slurmd" else name
        with (self.folder / "log" / f"{key}.out").open("ab") as output:
            self._daemons[key] = subprocess.Popen(
                [*self.hosts.enter(host, pid=True), program, *arguments],
                env={**environ(), **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _idle(self) -> set[str]:
        lines = self.client("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").stdout.splitlines()
        return {line.split()[0] for line in lines if line.split()[1:] == ["idle"]}

    def _until(self, ready: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            ended = [daemon for daemon in self._daemons.values() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = (self.folder / "log").iterdir()
                said = "".join(log.read_text(errors="replace")[-2000:] for log in logs)
                raise RuntimeError(f"{problem}: {[d.args for d in ended]}\n{said}")
            time.sleep(0.05)
