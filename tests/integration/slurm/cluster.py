"""A private Slurm on this machine: munge, a controller and some fake nodes, in one folder.

Nothing under /etc is touched, no service manager is asked, and every daemon runs in the foreground
as a child of this process. The nodes share the machine's name and address and differ in their port.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "squeue", "sinfo")
START_S = 120.0  # beside another worker on two cores
STOP_S = 10.0
_SBIN = ("/usr/sbin", "/usr/local/sbin")  # where the daemons are; not on every user's PATH

_CONF = """\
ClusterName=hvdscale
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
TmpFS={folder}/tmp/%n
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/log/slurmctld.pid
SlurmdPidFile={folder}/log/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
MinJobAge=3600
KillWait=5
InactiveLimit=0
MessageTimeout=30
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP OverSubscribe=NO
"""


def missing() -> list[str]:
    """Return the programs that a cluster needs and that are not here."""
    return [name for name in PROGRAMS if _which(name) is None]


@dataclass
class Cluster:
    """Started by ``start``, and gone without a trace (but ``folder``) after ``stop``."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> Mapping[str, str]:
        """Return what a client of this cluster has in its environment."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons and wait until every node is idle; RuntimeError with their logs."""
        self._write()
        munge = self.folder / "munge"
        self._daemon(
            *("munged", "-F", f"--key-file={munge}/key", f"--socket={munge}/munge.sock"),
            *(f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"),
            f"--log-file={self.folder}/log/munged.log",
        )
        self._until((munge / "munge.sock").exists, "munged made no socket")
        self._daemon("slurmctld", "-D")
        for number in range(1, self.nodes + 1):
            self._daemon("slurmd", "-D", "-N", f"n{number}")
        self._until(lambda: self._idle() == self.nodes, "not every node became idle")

    def stop(self) -> None:
        """End jobs, then daemons, then steps whose daemon is gone."""
        if self._daemons:
            self.client("scancel", "--full", "--signal=KILL", "--state=RUNNING", "--me")
            self.client("scancel", "--me")
        for daemon in reversed(self._daemons[1:]):  # munge goes last: the others talk through it
            daemon.terminate()
        deadline = time.monotonic() + STOP_S
        for daemon in reversed(self._daemons):
            if daemon is self._daemons[0]:
                daemon.terminate()
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def client(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command of this cluster to its end."""
        return subprocess.run(
            argv,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def processes(self) -> list[int]:
        """Return the pids of processes that belong to this cluster: daemons, steps and jobs."""
        marker = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                mine = marker in entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if mine and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
        return found

    def _write(self) -> None:
        for name in ("munge", "state", "log"):
            (self.folder / name).mkdir()
        for number in range(1, self.nodes + 1):
            (self.folder / "spool" / f"n{number}").mkdir(parents=True)
            (self.folder / "tmp" / f"n{number}").mkdir(parents=True)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(self.nodes + 1)
        shape = f"CPUs={self.cpus} CoresPerSocket={self.cpus} RealMemory=1000 State=UNKNOWN"
        nodes = [
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {shape}"
            for i, port in enumerate(ports[1:], start=1)
        ]
        text = _CONF.format(
            host=host,
            port=ports[0],
            user=getpass.getuser(),
            folder=self.folder,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text)
        # There may be no cgroup file system; this plug-in starts without one.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _daemon(self, name: str, *arguments: str) -> None:
        program = _which(name)
        assert program is not None  # ``missing`` was asked before
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    [program, *arguments],
                    env={**os.environ, **self.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _idle(self) -> int:
        return self.client("sinfo", "-h", "-N", "-o", "%t").stdout.split().count("idle")

    def _until(self, ready: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "".join(log.read_text()[-2000:] for log in (self.folder / "log").iterdir())
                self.stop()
                raise RuntimeError(f"{problem}: {[d.args for d in ended]}\n{said}")
            time.sleep(0.05)


def _which(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    return shutil.which(name, path=path)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
