"""The end of a process that must not go on."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_FATAL = 70  # EX_SOFTWARE of sysexits.h

_log = logging.getLogger("gpkvs")


def stop_process(reason: str, error: BaseException) -> NoReturn:
    """End the process at once, without cleaning up: only recovery at the next start may touch the store.

    Called when a write to the store's files failed, or when anything failed while the transaction flag was ACTIVE.
    """
    try:
        _log.critical(
            "%s: %s: %s. The process stops here; the store is recovered when it is next opened",
            reason,
            type(error).__name__,
            error,
            exc_info=error,
        )
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # a stream may be closed, or its disk full
        os._exit(EXIT_FATAL)


@contextmanager
def whole_or_stop(reason: str, *refusals: type[BaseException]) -> Iterator[None]:
    """Do something that must not be left half done: whatever breaks it off, an interrupt too, ends the process.

    Parameters
    ----------
    reason
        What was not done, for the log.
    *refusals
        Errors that say that nothing was done: they are raised.
    """
    try:
        yield
    except refusals:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is
        stop_process(reason, error)
