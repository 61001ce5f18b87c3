"""``hvdscale status``: what became of every launch of a sweep, and what its jobs do now."""

from __future__ import annotations

from harness.submit.status.sweep import AskSlurm, Scheduler, sweep_status
from harness.submit.status.text import render
from harness.submit.status.types import SweepStatus

__all__ = ["AskSlurm", "Scheduler", "SweepStatus", "render", "sweep_status"]
