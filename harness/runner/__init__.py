"""Run a sweep on this machine or allocation: blocks, only what is missing, failures as records."""

from __future__ import annotations

from harness.runner.sweep import Summary, commands, run_sweep

__all__ = ["Summary", "commands", "run_sweep"]
