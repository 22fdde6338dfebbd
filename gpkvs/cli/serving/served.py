"""The process of `gpkvs serve`, after the command line has handed over: it logs, serves, and says why it ends."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gpkvs.cli.serving.hand_over import take_over
from gpkvs.cli.terminal.exit_status import IN_USE, UNEXPECTED, WRONG_OPTIONS
from gpkvs.cli.terminal.failure import say
from gpkvs.cli.terminal.program import run_program
from gpkvs.errors import GpkvsError, InvalidArgumentError, StoreLockedError
from gpkvs.server.access.users import UsersError
from gpkvs.server.app import run as run_server
from gpkvs.server.ports.tls import TlsFilesError, TlsFilesUnsettledError
from gpkvs.server.setting_checks import file_faults
from gpkvs.server.signs import logs

_log = logging.getLogger("gpkvs.server")


def run() -> NoReturn:
    """Serve, and end the process with an exit status."""
    run_program(_serve)


def _serve() -> NoReturn:
    settings = take_over()
    logs.configure(settings.log_format, settings.log_level)
    for line in settings.unread:
        _log.warning(line, extra={"event": "setting_ignored"})
    try:
        with _faults_logged():
            run_server(settings.options)
    except GpkvsError as error:
        say(error, settings.log_format)
        if _status_of(error) == WRONG_OPTIONS:
            for other in file_faults(settings.options):
                if str(other) != str(error):
                    say(other, settings.log_format)
        sys.exit(_status_of(error))
    sys.exit()


def _status_of(error: GpkvsError) -> int:
    """Return the exit status: systemd does not try again after wrong options, which also name the files of the start.

    It does so for a pair of files of which one is still on its way.
    """
    if isinstance(error, StoreLockedError):
        return IN_USE
    if isinstance(error, TlsFilesUnsettledError):
        return 1
    return WRONG_OPTIONS if isinstance(error, InvalidArgumentError | TlsFilesError | UsersError) else 1


@contextmanager
def _faults_logged() -> Iterator[None]:
    """Log what nobody expected, in the format of the log."""
    try:
        yield
    except GpkvsError:
        raise
    except MemoryError as error:
        raise GpkvsError("the process got no memory: raise the limit on it (ulimit -v, MemoryMax)") from error
    except Exception as error:
        _log.critical("an unexpected error, which is a fault of gpkvs", exc_info=True, extra={"event": "failed"})
        raise SystemExit(UNEXPECTED) from error
