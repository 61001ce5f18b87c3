"""What TensorFlow says of a step that it cannot run, as one line and with what to do."""

from __future__ import annotations

from harness.engines.failures import memory_is_full


def out_of_memory(said: str, batch: int) -> str:
    """Return one line of a ResourceExhaustedError's message, for a step of ``batch`` samples."""
    where = "GPU" if "GPU" in said else "host"
    asked = said.partition("allocating tensor with ")[2].partition(" on ")[0] or "more"
    return memory_is_full(where, asked, batch)


def unimplemented(said: str) -> str:
    """Return one line of an UnimplementedError's message: what there is no kernel for."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if line.endswith(".") or "implement" in line), said)
    return (
        f"TensorFlow has no kernel for a part of this step: {told} Set deterministic or "
        "execution.compile to false"
    )
