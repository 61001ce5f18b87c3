"""A Horovod training loop as a user writes it, with nothing of hvdscale around it.

It is what ``hvdscale bench`` is measured against: the same model, optimiser and data (in memory),
the same number of steps, one rank a core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from workloads import registry


def bind() -> None:
    """Keep this rank to a core of its own, with the threads that Horovod has started."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= hvd.local_size():
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {cores[hvd.local_rank()]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--warmup-steps", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    bind()

    workload = registry.create("stress_strain", {"samples": arguments.samples}, arguments.data_dir)
    if hvd.local_rank() == 0:
        workload.prepare()
    hvd.barrier()
    arrays = workload.train().arrays()
    inputs, targets = (torch.from_numpy(array.copy()) for array in arrays)
    count, batch = len(inputs), arguments.batch_size
    a_epoch = count // (batch * hvd.size())
    generator = torch.Generator().manual_seed(1)

    parts = workload.parts("torch", 1)
    model, loss_of = parts.model, parts.loss
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=4.7331e-4),
        named_parameters=model.named_parameters(),
    )

    def train(first: int, steps: int) -> None:
        nonlocal order
        for step in range(first, first + steps):
            k = step % a_epoch
            if k == 0:
                order = torch.randperm(count, generator=generator)
            start = (k * hvd.size() + hvd.rank()) * batch
            index = order[start : start + batch]
            optimizer.zero_grad()
            loss = loss_of(model(inputs.index_select(0, index)), targets.index_select(0, index))
            loss.backward()
            optimizer.step()

    order = torch.arange(count)
    train(0, arguments.warmup_steps)
    hvd.barrier()
    started = time.perf_counter()
    train(arguments.warmup_steps, arguments.steps)
    wall_s = max(hvd.allgather_object(time.perf_counter() - started))
    if hvd.rank() == 0:
        arguments.out.write_text(json.dumps({"steps_per_s": arguments.steps / wall_s}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
