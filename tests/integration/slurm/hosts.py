"""Machines on one machine: a head and some nodes, each with a name, an address and its own life.

Every one has its own network, host name, process numbers and mounts, made by ``unshare``. All of it
hangs on one process, the head's first: when that ends, whatever ended it (it waits on a pipe from
here, so the death of this process is enough), the kernel ends every process in there, and with the
last one the namespaces, links and mounts are gone. The machine's own namespaces are not touched, so
names and addresses are the same in every instance and never meet.

Shared between the nodes is the file system, as on a cluster, but not what is local on real nodes:
``/dev/shm``, ``/run`` and ``/tmp`` (except the folders that ``shared`` names).
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.processes import read_process
from tests import proc

HEAD = "head"
NETWORK = "10.213.0"
START_S = 120.0  # beside another worker on two cores
_HEAD_ADDRESS = f"{NETWORK}.254"
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # where daemons are; not on every user's PATH
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
_NEW = ("unshare", "--net", "--uts", "--mount", "--propagation=private", "--pid", "--fork")

# Run as the first process of a host. It says its process number as this machine sees it: /proc is
# still the machine's.
_SAY_PID = "read pid rest </proc/self/stat; echo $pid\n"
_HEAD_INIT = """\
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
ip link set lo up
ip link add name bridge type bridge
ip address add {address}/24 dev bridge
ip link set bridge up
{say_pid}
read never
"""
# sshd is the node's first process: it waits for whatever is orphaned there.
_NODE_INIT = """\
hostname {name}
ip link set lo up
mount --bind {tmp} /mnt
for each in {shared}; do mkdir -p /mnt$each; mount --bind /tmp$each /mnt$each; done
mount --move /mnt /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
{say_pid}
mount -t proc proc /proc
[ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc
exec {sshd} -D -e -f {folder}/sshd_config
"""
# Not by the machine's own congestion control: BBR leaves a fifth of a shaped link free.
_LINK = """\
ip link add name {name} type veth peer name eth0 address {hardware} netns {pid}
ip link set {name} master bridge
ip link set {name} up
nsenter --target={pid} --net ip -batch - <<.
address add {address}/24 dev eth0
link set eth0 up
route replace {network}.0/24 dev eth0 src {address} congctl reno
.
"""
_SSHD_CONFIG = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
LogLevel ERROR
"""
_SSH_CONFIG = """\
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
_PROBE = """\
ip link add name one type veth peer name other
ip link add name bridge type bridge
tc qdisc add dev one root tbf rate 1gbit burst 16kb latency 50ms
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
"""


def missing() -> str:
    """Say what such hosts lack here, in one line; "" where they can be made."""
    absent = [name for name in _PACKAGES if which(name) is None]
    if absent:
        packages = sorted({_PACKAGES[name] for name in absent})
        return f"{', '.join(absent)} missing: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0:
        return "namespaces with a network, a name and mounts of their own take root"
    done = subprocess.run([*_NEW, "sh", "-ec", _PROBE], capture_output=True, text=True, check=False)
    return f"no namespaces with a slow link here: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Host:
    """A running host: its first process as this machine sees it, and what started that."""

    pid: int
    process: subprocess.Popen[str]


@dataclass
class Hosts:
    """A head and nodes, started by ``start`` and gone after ``stop``."""

    folder: Path
    names: tuple[str, ...]
    shared: Sequence[Path] = ()
    _running: dict[str, Host] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)  # their identities, of all but removed hosts
    _stopped: float = math.inf  # when, in the kernel's ticks

    def start(self) -> None:
        """Make the head and all nodes; RuntimeError with what was said where that fails."""
        self._write()
        init = _HEAD_INIT.format(
            name=HEAD, folder=self.folder, address=_HEAD_ADDRESS, say_pid=_SAY_PID
        )
        self._add(HEAD, [*_NEW, "sh", "-ec", init])
        for name in self.names:
            self.add(name)
        for name in self.names:
            self._until_reached(name)

    def stop(self) -> None:
        """End the head, and with it everything."""
        head = self._running.get(HEAD)
        if head is not None and head.process.stdin is not None:
            head.process.stdin.close()
        for host in self._running.values():
            host.process.wait(START_S)
        self._running.clear()
        self._stopped = _ticks()

    def add(self, name: str) -> None:
        """Make a node and its link."""
        tmp = self.folder / "tmp" / name
        tmp.mkdir(parents=True, exist_ok=True)
        init = _NODE_INIT.format(
            name=name,
            folder=self.folder,
            tmp=tmp,
            shared=" ".join(shlex.quote(f"/{place}") for place in self._shared_tmp()),
            say_pid=_SAY_PID,
            sshd=which("sshd"),
        )
        host = self._add(name, [*self.enter(HEAD, pid=True), *_NEW, "sh", "-ec", init])
        # As a real node's, its card is the same after a restart: nobody has to learn it again.
        hardware = f"02:00:00:00:00:{self.names.index(name) + 1:02x}"
        address = self.address(name)
        values = {"pid": host.pid, "address": address, "hardware": hardware, "network": NETWORK}
        link = _LINK.format(name=name, **values)
        self._in_network(HEAD, "sh", "-ec", link)

    def remove(self, name: str) -> None:
        """Cut a node's link, then end all in it: nobody out there hears of its end."""
        self._in_network(HEAD, "ip", "link", "delete", "dev", name)
        host = self._running.pop(name)
        self.networks.discard(_network(host.pid))
        os.kill(host.pid, 9)
        host.process.wait(START_S)

    def enter(self, name: str, *, pid: bool = False) -> list[str]:
        """Return what to put before a command that is to run in a host.

        Without ``pid`` the process is the caller's child itself, and may be sent signals; its
        process numbers are this machine's, which fits the head only.
        """
        kinds = ["--net", "--uts", "--mount", *(["--pid"] if pid or name != HEAD else [])]
        return ["nsenter", f"--target={self._running[name].pid}", *kinds]

    def address(self, name: str) -> str:
        """Return a host's address."""
        if name == HEAD:
            return _HEAD_ADDRESS
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def processes(self, name: str) -> list[int]:
        """Return the pids of a node's processes, as this machine sees them."""
        network = _network(self._running[name].pid)
        return [pid for pid, _ in processes() if _network(pid) == network]

    def slow(self, rate_bits_per_s: int, burst_bytes: int) -> None:
        """Let every node send no faster than that; what is within the burst is let through."""
        shape = f"rate {rate_bits_per_s}bit burst {burst_bytes} latency 100ms"
        for name in self._nodes():
            self._in_network(name, *f"tc qdisc replace dev eth0 root tbf {shape}".split())

    def fast(self) -> None:
        """Let every node send as fast as it can; also where none was slowed."""
        for name in self._nodes():
            if "tbf" in self._in_network(name, "tc", "qdisc", "show", "dev", "eth0"):
                self._in_network(name, "tc", "qdisc", "delete", "dev", "eth0", "root")

    def traces(self) -> list[str]:
        """Return what is left of all hosts: processes and mounts.

        The kernel gives a network's number to another one when it is gone, so what started after
        the end is somebody else's.
        """
        found = [
            f"process {pid}: {command}"
            for pid, command in processes()
            if _network(pid) in self.networks and _started(pid) < self._stopped
        ]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return found + [f"mount: {line}" for line in mounts if str(self.folder) in line]

    def _nodes(self) -> Iterable[str]:
        return [name for name in self.names if name in self._running]

    def _write(self) -> None:
        for key in ("key", "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        lines = [f"{self.address(name)} {name}\n" for name in (HEAD, *self.names)]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
        (self.folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=self.folder))
        (self.folder / "ssh_config").write_text(_SSH_CONFIG.format(folder=self.folder))

    def _shared_tmp(self) -> list[Path]:
        """Return what is to be seen below the nodes' own /tmp, relative to it."""
        places = {place.resolve() for place in (self.folder, Path(sys.prefix), *self.shared)}
        return sorted(p.relative_to("/tmp") for p in places if p.is_relative_to("/tmp"))

    def _add(self, name: str, argv: Sequence[str]) -> Host:
        log = self.folder / f"{name}.out"
        with log.open("ab") as said:
            process = subprocess.Popen(
                argv,
                env=environ(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None  # a pipe
        line = process.stdout.readline()
        if not line:
            process.wait(START_S)
            raise RuntimeError(f"host {name} did not start: {log.read_text()}")
        host = Host(int(line), process)
        self._running[name] = host
        self.networks.add(_network(host.pid))
        return host

    def _in_network(self, name: str, *argv: str) -> str:
        """Run a program of this machine on a host's network and return its output."""
        done = subprocess.run(
            ["nsenter", f"--target={self._running[name].pid}", "--net", *argv],
            env=environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {shlex.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def _until_reached(self, name: str) -> None:
        """Wait until a node's sshd answers."""
        deadline = time.monotonic() + START_S
        command = [*self.enter(HEAD), "ssh", "-o", "ConnectTimeout=1", name, "true"]
        while subprocess.run(command, capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline or self._running[name].process.poll() is not None:
                raise RuntimeError(f"no ssh to {name}: {(self.folder / f'{name}.out').read_text()}")
            time.sleep(0.02)


def which(name: str) -> str | None:
    """Return the path of a program, looking where daemons are too."""
    return shutil.which(name, path=environ()["PATH"])


def environ() -> Mapping[str, str]:
    """Return this process's environment with the folders of daemons on its PATH."""
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])}


def processes() -> Iterable[tuple[int, str]]:
    """Give pid and command of every process of this machine but this one."""
    return ((pid, proc.command_line(pid)) for pid in proc.pids() if pid != os.getpid())


def _ticks() -> float:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s * os.sysconf("SC_CLK_TCK")


def _started(pid: int) -> float:
    process = read_process(pid)
    return process.started if process is not None else math.inf


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""
