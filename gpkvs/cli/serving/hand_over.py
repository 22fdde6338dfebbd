"""How the command line of `gpkvs serve` hands over to the server.

What reads a command line takes 7 MiB of memory and is needed once. So the process executes its own program again, with
the settings in its environment: `gpkvs.cli.__main__` finds them there and serves. The id, the streams, the limits and
the name of the process stay. Nothing in the settings is secret: they name files.
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpkvs.cli.options.environment import HANDED_OVER
from gpkvs.server.serve_options import ServeOptions
from gpkvs.server.signs.logs import LogFormat, LogLevel

# What `top` and `pgrep` show. The system would name the process after Python.
_NAME_FILE = Path("/proc/self/comm")


class Settings(NamedTuple):
    """What the server needs to know.

    Attributes
    ----------
    options
        What to serve, and how.
    log_format, log_level
        How to log.
    unread
        What to warn of first: variables of the environment that nothing reads.
    """

    options: ServeOptions
    log_format: LogFormat
    log_level: LogLevel
    unread: list[str]


class SettingsTooLongError(Exception):
    """The settings of a server are longer than what a program can be started with."""


def hand_over(settings: Settings) -> NoReturn:
    """Execute this program again, with these settings.

    Raises
    ------
    SettingsTooLongError
        If the system does not start a program with so much.
    """
    text = b64encode(pickle.dumps((settings, _name()))).decode()
    environment = os.environ | {HANDED_OVER: f"{os.getpid()}:{text}"}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise SettingsTooLongError(
                "the settings are too long: the system starts no program with so much"
            ) from error
        raise
    raise AssertionError("execve does not return")


def take_over() -> Settings:
    """Return the settings that this program was executed with."""
    settings: Settings
    _, _, text = os.environ.pop(HANDED_OVER).partition(":")
    settings, name = pickle.loads(b64decode(text))
    with suppress(OSError):
        _NAME_FILE.write_bytes(name)
    return settings


def _name() -> bytes:
    try:
        return _NAME_FILE.read_bytes().rstrip(b"\n")
    except OSError:
        return b"gpkvs"
