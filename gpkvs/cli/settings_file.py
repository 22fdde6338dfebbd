"""The options of `gpkvs serve` in a TOML file, which the server reads when it starts, and again on SIGHUP."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any, get_args

import typer

from gpkvs.server import logs
from gpkvs.server.logs import LogLevel
from gpkvs.text import no_such

_log = logging.getLogger("gpkvs.server")

# The sources whose values win over the file.
_STRONGER = ("COMMANDLINE", "ENVIRONMENT")


def load_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options' defaults from a TOML file; the command line and the environment win over it."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **_read(context, path)}
    return path


def _read(context: typer.Context, path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}") from error
    known = sorted(str(parameter.name) for parameter in context.command.params if parameter.name != "config")
    for key, value in settings.items():
        if key not in known:
            raise typer.BadParameter(f"{path}: {no_such('setting', key, known)}")
        if isinstance(value, dict | list):
            raise typer.BadParameter(f"{path}: {key} takes one value")
    return settings


class Reload:
    """What SIGHUP does: it reads the log level again, and logs which other settings of the file have changed.

    Parameters
    ----------
    context
        The context of the running command.
    path
        The settings file, if there is one.
    """

    def __init__(self, context: typer.Context, path: Path | None) -> None:
        self._context = context
        self._path = path
        self._in_force = dict(context.default_map or {})

    def __call__(self) -> None:
        """Read the file again. If anything is wrong with it, log that and change nothing."""
        if self._path is None:
            _log.info("SIGHUP: there is no --config file to read again", extra={"event": "reload"})
            return
        try:
            settings = _read(self._context, self._path)
            level = settings.get("log_level", logs.LOG_LEVEL)
            if level not in get_args(LogLevel):
                raise typer.BadParameter(f"{self._path}: log_level is one of {', '.join(get_args(LogLevel))}")
        except typer.BadParameter as error:
            _log.error("SIGHUP: %s; nothing is changed", error.message, extra={"event": "reload"})
            return
        source = self._context.get_parameter_source("log_level")
        if source is not None and source.name in _STRONGER:
            level = self._context.params["log_level"]
        logs.set_level(level)
        names = sorted({*settings, *self._in_force} - {"log_level"})
        changed = [name for name in names if settings.get(name) != self._in_force.get(name)]
        fields = {"event": "reload", "path": str(self._path), "log_level": level, "at_next_start": changed}
        later = f"; these count from the next start: {', '.join(changed)}" if changed else ""
        # A warning where a change waits for the next start, so that the usual log levels show it.
        _log.log(
            logging.WARNING if changed else logging.INFO,
            "SIGHUP: %s read again, log level %s%s",
            self._path,
            level,
            later,
            extra=fields,
        )
