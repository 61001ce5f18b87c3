"""What a library must offer to be measured, and what holds the ranks together meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from harness.collectives.patterns import Buffers
from harness.collectives.record import LibraryFacts
from harness.errors import HarnessError

Operation = Callable[[Buffers], Any]


class Control(Protocol):
    """Talk between the ranks that is not measured."""

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order, on every rank."""

    def barrier(self) -> None:
        """Return when every rank has called it."""


class Library(ABC):
    """One way to move the bytes. A file beside this one each.

    It has a method for each collective that it does not lack: ``_all_reduce(buffers)`` and so on.
    """

    name: str
    #: Why a collective is not here, by its name.
    lacks: Mapping[str, str]

    def run(self, buffers: Buffers) -> Any:
        """Do the collective of ``buffers``; return the tensor that holds the result.

        When it returns, the result can be read by the host's next call: on a GPU this includes
        the work that was queued. In place, or into ``receive``, or, where the library's own
        interface makes the result (Horovod), into memory of its own.
        """
        operation: Operation = getattr(self, f"_{buffers.collective}")
        return operation(buffers)

    def _barrier(self, _: Buffers) -> None:
        self.barrier()

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def facts(self) -> LibraryFacts:
        """Return versions and what moves the bytes, after the first collective."""


class AgreedError(HarnessError):
    """An error that every rank has, and one of them is to tell."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def agree(control: Control, error: HarnessError | None) -> None:
    """Raise the first rank's error on every rank, so that none waits for one that has ended."""
    found = [e for e in control.gather(_plain(error)) if e is not None]
    if found:
        _raise(*found[0])


def _plain(error: HarnessError | None) -> tuple[str, int] | None:
    return None if error is None else (str(error), error.exit_code)


def _raise(message: str, exit_code: int) -> NoReturn:
    raise AgreedError(message, exit_code)
