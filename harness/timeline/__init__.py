"""Horovod's own account of its all-reduces: read as a stream, and summed up per step.

Pure: knows files of Horovod 0.28.1 (``horovod/common/timeline.cc``) and nothing else of the harness
but its errors.
"""

from harness.timeline.account import PHASES, WITHIN_QUEUE
from harness.timeline.events import TimelineError
from harness.timeline.summary import PhaseTime, Summary, read_summary

__all__ = ["PHASES", "WITHIN_QUEUE", "PhaseTime", "Summary", "TimelineError", "read_summary"]
