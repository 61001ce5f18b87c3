"""One rank of the self-proof: an all-reduce whose result is known, over a named controller.

Started by ``mpirun`` or ``horovodrun``: ``proof_program.py FRAMEWORK CONTROLLER DEVICE``. Prints
``PROVEN <rank> of <size>`` only after its checks. Run as a file, so it imports nothing of hvdscale.
"""

from __future__ import annotations

import sys
from typing import Any

ELEMENTS = 1000


def prove_torch(device: str) -> tuple[Any, list[float]]:
    """All-reduce with torch; return (Horovod's module, the sums)."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    place = f"cuda:{hvd.local_rank() % torch.cuda.device_count()}" if device == "cuda" else "cpu"
    values = torch.arange(ELEMENTS, dtype=torch.float32, device=place) * (hvd.rank() + 1)
    return hvd, hvd.allreduce(values, op=hvd.Sum, name="proof").cpu().tolist()


def prove_tensorflow(device: str) -> tuple[Any, list[float]]:
    """All-reduce with TensorFlow inside a ``tf.function``; return (Horovod's module, the sums)."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def reduce(values: Any) -> Any:
        return hvd.allreduce(values, op=hvd.Sum, name="proof")

    values = tf.range(ELEMENTS, dtype=tf.float32) * float(hvd.rank() + 1)
    return hvd, [float(value) for value in reduce(values).numpy()]


def main(framework: str, controller: str, device: str) -> int:
    """Prove one framework and controller; the exit status is 1 when anything is wrong."""
    prove = {"torch": prove_torch, "tensorflow": prove_tensorflow}[framework]
    hvd, sums = prove(device)
    size = hvd.size()
    if size != 2:
        print(f"WRONG: {size} ranks instead of 2")
        return 1
    if hvd.mpi_enabled() is not (controller == "mpi"):
        print(f"WRONG: the controller is not {controller}")
        return 1
    # 1 + 2 times each element; exact in float32 below 2**24.
    if sums != [3.0 * element for element in range(ELEMENTS)]:
        print(f"WRONG: the all-reduce gave {sums[:4]}... instead of [0.0, 3.0, 6.0, 9.0]...")
        return 1
    print(f"PROVEN {hvd.rank()} of {size}", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
