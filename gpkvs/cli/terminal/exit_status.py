"""Exit statuses: every command's help lists its own, in one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])

WRONG_OPTIONS = 2
IN_USE = 3  # another process has the store; for any command that opens one
UNEXPECTED = 71  # never 1, with which Python ends: 1 has a meaning in many commands
NO_OUTPUT = 74  # EX_IOERR of sysexits.h
INTERRUPTED = 130

_OF_ANY_COMMAND = {
    WRONG_OPTIONS: "wrong options",
    UNEXPECTED: "an unexpected error",
    NO_OUTPUT: "the output cannot be written",
}

# For the commands that only have subcommands.
EVERY = (
    f"Exit status: 0 done; {WRONG_OPTIONS} wrong options, or nothing could be done; "
    f"{UNEXPECTED} {_OF_ANY_COMMAND[UNEXPECTED]}; {NO_OUTPUT} {_OF_ANY_COMMAND[NO_OUTPUT]}; {INTERRUPTED} Ctrl-C. "
    "The help of a subcommand says what its others mean."
)


def exits(statuses: dict[int, str], *, interrupted: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds a command's exit statuses to its help.

    Parameters
    ----------
    statuses
        The meaning of each. The decorator adds those that any command has.
    interrupted
        Whether Ctrl-C ends the command with 130, as it ends most commands.
    """
    meanings = dict(statuses)
    for status, meaning in _OF_ANY_COMMAND.items():
        meanings[status] = ", or ".join(filter(None, [meanings.get(status), meaning]))
    if interrupted:
        meanings[INTERRUPTED] = "Ctrl-C"
    listed = "; ".join(f"{status} {meaning}" for status, meaning in sorted(meanings.items()))

    def add(command: Command) -> Command:
        command.__doc__ = f"{inspect.getdoc(command)}\n\nExit status: {listed}."
        return command

    return add
