"""The options of `gpkvs serve` in a TOML file, which is read at the start, and again on SIGHUP."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from gpkvs.cli.removed_settings import no_such_setting
from gpkvs.errors import GpkvsError
from gpkvs.server import logs
from gpkvs.server.logs import LogLevel

READ_AGAIN: Final = "log_level"
"""The setting that SIGHUP reads again."""

_log = logging.getLogger("gpkvs.server")


class SettingsFileError(GpkvsError):
    """A settings file cannot be read, or holds what is no setting.

    Parameters
    ----------
    path
        The file.
    faults
        A line for each thing that is wrong with it.
    settings
        What is right.
    """

    def __init__(self, path: Path, faults: Sequence[str], settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{path}: {'; '.join(faults)}")
        self.faults = [f"{path}: {fault}" for fault in faults]
        self.settings = settings or {}


def read_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file.

    Parameters
    ----------
    path
        The file.
    known
        The names of all settings that there are.

    Raises
    ------
    SettingsFileError
        If anything is wrong with it.
    """
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsFileError(path, [f"cannot read it: {getattr(error, 'strerror', None) or error}"]) from error
    faults = {name: fault for name, value in settings.items() if (fault := _fault(name, value, known))}
    if faults:
        raise SettingsFileError(
            path, list(faults.values()), {name: value for name, value in settings.items() if name not in faults}
        )
    return settings


def _fault(name: str, value: object, known: Collection[str]) -> str:
    """Return what is wrong with a line of a file, without a look at what the value means; else nothing."""
    if name not in known:
        return no_such_setting("setting", name, known)
    return f"{name} takes one value" if isinstance(value, dict | list) else ""


@dataclass(frozen=True)
class Reload:
    """What SIGHUP does: it reads the log level again, and logs which other settings of the file have changed.

    Parameters
    ----------
    path
        The settings file, if there is one.
    known
        The names of all settings that there are.
    in_force
        What the file said at the start.
    log_level
        That of the command line or the environment, which wins over the file's.
    """

    path: Path | None
    known: Collection[str]
    in_force: Mapping[str, Any]
    log_level: LogLevel | None

    def __call__(self) -> None:
        """Read the file again. If anything is wrong with it, log that and change nothing."""
        if self.path is None:
            _log.info("SIGHUP: there is no --config file to read again", extra={"event": "reload"})
            return
        try:
            settings = read_settings(self.path, self.known)
            level = settings.get(READ_AGAIN, logs.LOG_LEVEL)
            if level not in get_args(LogLevel):
                raise SettingsFileError(self.path, [f"log_level is one of {', '.join(get_args(LogLevel))}"])
        except SettingsFileError as error:
            _log.error("SIGHUP: %s; nothing is changed", error, extra={"event": "reload"})
            return
        level = self.log_level or level
        logs.set_level(level)
        names = sorted({*settings, *self.in_force} - {READ_AGAIN})
        changed = [name for name in names if settings.get(name) != self.in_force.get(name)]
        fields = {"event": "reload", "path": str(self.path), "log_level": level, "at_next_start": changed}
        later = f"; these count from the next start: {', '.join(changed)}" if changed else ""
        # A warning where a change waits for the next start, so that the usual log levels show it.
        _log.log(
            logging.WARNING if changed else logging.INFO,
            "SIGHUP: %s read again, log level %s%s",
            self.path,
            level,
            later,
            extra=fields,
        )
