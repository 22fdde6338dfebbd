"""How a program of gpkvs runs: its streams, and the status with which it ends, whatever happens."""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from gpkvs.cli.terminal.exit_status import INTERRUPTED, NO_OUTPUT, UNEXPECTED
from gpkvs.cli.terminal.streams import OutputError, open_streams
from gpkvs.errors import BackendError

_NO_LIBRARY = 1


def run_program(work: Callable[[], NoReturn]) -> NoReturn:
    """Do the work of a program, and end the process with an exit status."""
    open_streams()
    try:
        try:
            work()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BackendError as error:  # the compiled library is missing or cannot run here, so no command could begin
            sys.stderr.write(f"gpkvs: {error}\n")
            sys.exit(_NO_LIBRARY)
        except Exception:  # noqa: BLE001 - whatever it is, Python would end with 1, which says something else
            end_unexpectedly()
        finally:
            sys.stdout.flush()
    except OutputError as error:
        if error.errno == errno.EPIPE:  # the reader has seen enough: end as other programs do
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.raise_signal(signal.SIGPIPE)
        sys.stderr.write(f"gpkvs: {error}\n")
        sys.exit(NO_OUTPUT)


def end_unexpectedly() -> NoReturn:
    """End after the exception that is handled, which is a fault of gpkvs."""
    traceback.print_exc()
    sys.stderr.write("gpkvs: an unexpected error, which is a fault of gpkvs: please report the lines above\n")
    sys.exit(UNEXPECTED)
