"""Exit statuses: every command's help lists its own, in one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])

WRONG_OPTIONS = 2
IN_USE = 3  # another process has the store; for any command that opens one
INTERRUPTED = 130

# For the commands that only have subcommands.
EVERY = (
    f"Exit status: 0 done; {WRONG_OPTIONS} wrong options, or nothing could be done; {INTERRUPTED} Ctrl-C. "
    "The help of a subcommand says what its others mean."
)


def exits(statuses: dict[int, str], *, interrupted: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds a command's exit statuses to its help.

    Parameters
    ----------
    statuses
        The meaning of each. The decorator adds wrong options, which end any command with 2.
    interrupted
        Whether Ctrl-C ends the command with 130, as it ends most commands.
    """
    meanings = dict(statuses)
    meanings[WRONG_OPTIONS] = ", or ".join(filter(None, [meanings.get(WRONG_OPTIONS), "wrong options"]))
    if interrupted:
        meanings[INTERRUPTED] = "Ctrl-C"
    listed = "; ".join(f"{status} {meaning}" for status, meaning in sorted(meanings.items()))

    def add(command: Command) -> Command:
        command.__doc__ = f"{inspect.getdoc(command)}\n\nExit status: {listed}."
        return command

    return add
