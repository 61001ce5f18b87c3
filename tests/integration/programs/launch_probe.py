"""One rank that says how it was started, and does one all-reduce.

Arguments: the folder for ``rank-K.json``, what to join (horovod, ddp, none, plain), and others that
must arrive unchanged. ``plain`` imports nothing: the rank is what the launcher's variables say.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def join(engine: str) -> dict[str, Any]:
    """Return rank, size and the sum of (rank + 1) over the ranks."""
    if engine == "plain":
        rank = next((os.environ[name] for name in _RANK if name in os.environ), "0")
        size = next((os.environ[name] for name in _SIZE if name in os.environ), "1")
        return {"rank": int(rank), "size": int(size)}
    import torch

    if engine == "horovod":
        import horovod.torch as hvd

        hvd.init()
        total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
        joined = {"mpi": hvd.mpi_enabled(), "gloo": hvd.gloo_enabled()}
        return {"rank": hvd.rank(), "size": hvd.size(), "sum": float(total), **joined}
    if engine == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        answer = {"rank": dist.get_rank(), "size": dist.get_world_size(), "sum": float(total)}
        dist.destroy_process_group()
        return answer
    return {"rank": 0, "size": 1, "sum": 1.0}


def main(folder: str, engine: str, *arguments: str) -> None:
    """Write what this rank found."""
    found = join(engine)
    found["arguments"] = arguments
    found["environment"] = dict(os.environ)
    found["cores"] = sorted(os.sched_getaffinity(0))
    Path(folder, f"rank-{found['rank']}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
