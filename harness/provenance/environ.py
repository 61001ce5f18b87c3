"""The allow-listed part of an environment, and which of it changes a measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

#: The only variables that enter a record; everything else in an environment may be a secret.
ENVIRONMENT = re.compile(
    r"(NCCL|HOROVOD|UCX|OMP|MKL|OPENBLAS|CUDA)_[A-Z0-9_]+"
    # What a user sets for Open MPI. Its mpirun sets others for its ranks: addresses, and a key;
    # those of release 4 also pmix, ess and orte, which start the ranks and move no data.
    r"|OMPI_MCA_(accelerator|btl|coll|hwloc|mtl|op|opal|osc|pml|rmaps|smsc|topo)(_[A-Za-z0-9_]+)?"
    r"|GLOO_SOCKET_IFNAME"
    r"|SLURM_(JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|NNODES|NTASKS)"
)
#: Allowed by the rule above, and still not to be kept.
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|PASSPHRASE|_PASS$|PWD|KEY|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE
)
#: A name and a password in an address.
_LOGIN = re.compile(r"(\w://)[^/@\s]+@")

#: Of the above, what makes another measurement of the same config.
_SETTING = re.compile(
    r"(NCCL|UCX|OMP|MKL|OPENBLAS)_[A-Z0-9_]+"
    # mpirun sets those of hwloc and rmaps itself, from its placement options.
    r"|OMPI_MCA_(accelerator|btl|coll|mtl|op|opal|osc|pml|smsc|topo)(_[A-Za-z0-9_]+)?"
    r"|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|DEVICE_MAX_COPY_CONNECTIONS|MODULE_LOADING"
    r"|MODULE_DATA_LOADING|AUTO_BOOST|MPS_ACTIVE_THREAD_PERCENTAGE|SCALE_LAUNCH_QUEUES"
    r"|FORCE_PTX_JIT|DISABLE_PTX_JIT)"
)
#: Of those again, what only says where things lie, or what is printed; threads are in a config.
_NO_SETTING = re.compile(
    r"NCCL_(DEBUG(_\w+)?|COMM_ID|VERSION|TOPO_DUMP_FILE|GRAPH_DUMP_FILE)"
    r"|UCX_(LOG_\w+|VERSION)"
    r"|OMPI_MCA_\w+_verbose"
    r"|(NCCL|UCX|OMP|MKL|OPENBLAS)_(\w+_)?(HOME|ROOT|DIR|PATH|INCLUDE|LIB|LIBRARY|PREFIX)"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS|OMP_DISPLAY_\w+"
)
#: The network interface. On one host it is loopback, or says nothing.
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")
#: What horovodrun gives Open MPI without being asked: its ``_OMPI_FLAGS`` (runner/mpi_run.py).
_OF_HOROVODRUN = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the allow-listed part of an environment."""
    return {
        name: _LOGIN.sub(r"\1***@", value)
        for name, value in sorted(environ.items())
        if ENVIRONMENT.fullmatch(name) and not is_secret(name)
    }


def is_secret(name: str) -> bool:
    """Say whether a variable may hold what is nobody else's business, going by its name."""
    return _SECRET.search(name) is not None


def settings(kept: Mapping[str, str], launcher: str = "") -> dict[str, str]:
    """Return what of a record's environment changes a measurement and is not in its config.

    Left out is what differs by nature between the launches of one curve: device lists, Slurm's
    ids, Horovod's knobs (a config has them), interfaces, and what ``launcher`` adds by itself.
    """
    given = _OF_HOROVODRUN if launcher == "horovodrun" else {}
    return {
        name: value
        for name, value in sorted(kept.items())
        if _is_setting(name) and given.get(name) != value
    }


@lru_cache(maxsize=4096)  # the same few names in every record, of which there may be 100,000
def _is_setting(name: str) -> bool:
    return bool(
        _SETTING.fullmatch(name) and not _NO_SETTING.fullmatch(name) and name not in _INTERFACES
    )


def interfaces(kept: Mapping[str, str]) -> dict[str, str | None]:
    """Return the network interfaces that were chosen, None where it was left open.

    Only launches on several hosts can be compared by them.
    """
    return {name: kept.get(name) for name in _INTERFACES}
