"""No launcher: the one rank is the process itself."""

from __future__ import annotations

from harness.launch.api import Command, Launch
from harness.launch.environment import rank_environment


def command(launch: Launch) -> Command:
    """Return the rank's own command."""
    return Command(launch.rank_argv, rank_environment(launch))
