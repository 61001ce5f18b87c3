"""The launch that trains a point (``hvdscale train``), instead of measuring a window of it."""

from __future__ import annotations

from harness.config.models import Measure, RunConfig, Train

_MEASURE = Measure()


def training_config(config: RunConfig, train: Train) -> RunConfig:
    """Return the launch that trains ``config``.

    Window and instruments have no part in it, so their values are not in it either, and its id
    does not depend on them.
    """
    return config.model_copy(update={"measure": _MEASURE, "train": train})


def is_training(config: RunConfig) -> bool:
    """Say whether a launch trains to an end."""
    return config.train is not None
