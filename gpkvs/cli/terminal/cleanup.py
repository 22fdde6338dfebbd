"""How long commands end: they remove the files that they made, and kill the processes that they started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType

from gpkvs.cli.terminal.output import empty_directory
from gpkvs.engine.engine import Engine
from gpkvs.engine.host.own_turn import OwnTurn
from gpkvs.engine.tables.schema import create_table, drop_table

_ENDING = (signal.SIGTERM, signal.SIGINT)
_AGAIN_SECONDS = 0.01


@contextmanager
def ended_by_signals(*, kill_children: bool = True) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the command by an exception, so that it cleans up everything on the way out.

    Where no exception may come, a timer tries again a moment later. Python drops an exception that comes in a
    finalizer: the timer tries again then, too.

    Parameters
    ----------
    kill_children
        Whether to kill first the processes that the command has started: the exception may come after the start of one
        and before the statement that would end it.
    """
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            told.append(number)
        while frame:
            if frame.f_code in unbroken:
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
                return
            frame = frame.f_back
        if kill_children:
            _kill_children()
        sys.exit(128 + told[0])

    def lost(found: sys.UnraisableHookArgs) -> None:
        if told and found.exc_type is SystemExit:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            hook(found)

    unbroken = _unbroken()
    hook = sys.unraisablehook
    before = {number: signal.signal(number, end) for number in (*_ENDING, signal.SIGALRM)}
    try:
        sys.unraisablehook = lost
        yield
    except Exception as error:
        if not told:
            raise
        # On the way out something failed, such as to stop a child that was killed.
        raise SystemExit(128 + told[0]) from error
    finally:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_between_steps() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and Ctrl-C end the command at its next step, so that it cleans up everything on the way out.

    For what must not be interrupted amid a step, such as to close a store or a call: an exception that comes there may
    leave a lock behind. A second signal ends the process at once; what it has made stays.

    Yields
    ------
    A function that is called between two steps: it raises SystemExit if the command is to end.
    """
    told: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if told:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        told.append(number)

    def step() -> None:
        if told:
            sys.exit(128 + told[0])

    before = {number: signal.signal(number, note) for number in _ENDING}
    try:
        yield step
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill_children() -> None:
    for task in Path("/proc/self/task").iterdir():
        children: list[str] = []
        with suppress(OSError):  # a thread that has ended
            children = (task / "children").read_text().split()
        for child in children:
            with suppress(OSError):  # a process that has ended
                os.kill(int(child), signal.SIGKILL)


@contextmanager
def scratch_directory(data: Path | None, prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Give a command a directory: `data`, which must be empty and stays, or a temporary one.

    The temporary one is removed when the command succeeds or is told to end. If the command fails, the files may show
    why: the directory then stays, unless it is empty.

    Parameters
    ----------
    data
        The directory that the user named.
    prefix
        The beginning of the temporary one's name.
    parent
        The directory in which it is made; by default where temporary files go.

    Raises
    ------
    InvalidArgumentError
        If `data` holds anything.
    """
    if data is not None:
        yield empty_directory(data)
        return
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield directory
    except Exception:
        with suppress(OSError):
            directory.rmdir()
        raise
    except BaseException:
        shutil.rmtree(directory)
        raise
    shutil.rmtree(directory)


def _unbroken() -> set[CodeType]:
    """Return the code in the middle of which no exception of a handler may come.

    A batch, a scan that removes expired keys, or a table that comes or goes would end the process at once
    (`gpkvs.process.fatal`). A poll would keep its lock, and who waits for the child later would wait for ever. A
    directory that is being removed would stay.
    """
    transactions = (Engine.execute, Engine.scan, OwnTurn.run, OwnTurn.run_batch, OwnTurn.end, create_table, drop_table)
    made = (tempfile.TemporaryDirectory.__init__, tempfile.TemporaryDirectory.__exit__, scratch_directory)
    return {unwrap(call).__code__ for call in (*transactions, *made, subprocess.Popen.poll)}
