"""One key of a terminal. The terminal gets its settings back, however the command ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def key_presses(key: bytes) -> Iterator[Callable[[float], bool]]:
    """Give a function that waits so many seconds for a key, and returns whether it was pressed.

    Ctrl-C stays a signal. Signals end the command by an exception, so that the terminal gets its settings back. Where
    standard input is not a terminal there are no keys.
    """
    if not sys.stdin.isatty():
        yield no_key_within
        return
    terminal = sys.stdin.fileno()
    ended: list[BaseException] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ended.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        raise ended[0]

    def is_pressed_within(seconds: float) -> bool:
        if ended:  # Python drops an exception that a signal raises while an object is being freed
            raise ended[0]
        until = time.monotonic() + seconds
        while select.select([terminal], [], [], max(until - time.monotonic(), 0))[0]:
            if os.read(terminal, 1) in (key, b""):  # b"": the terminal is gone
                return True
        return False

    before = {number: signal.signal(number, end) for number in _ENDING}
    settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield is_pressed_within
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)
        for number, handler in before.items():
            signal.signal(number, handler)


def no_key_within(seconds: float) -> bool:
    """Wait where there are no keys."""
    time.sleep(seconds)
    return False
