"""Holds back what the engine does beside its batches."""

from __future__ import annotations

import threading

from gpkvs.process import failpoint


class Held:
    """Holds back the end of a GPU's transaction, as a slow link would."""

    def __init__(self) -> None:
        self._may_end = threading.Event()
        self.is_reached = threading.Event()

    def __enter__(self) -> Held:
        failpoint.stop_instead(self._stop)
        failpoint.arm("before_idle_flag")
        return self

    def _stop(self) -> None:
        self.is_reached.set()
        assert self._may_end.wait(60)

    def let_go(self) -> None:
        self._may_end.set()

    def __exit__(self, *_: object) -> None:
        self.let_go()
        failpoint.arm("")
        failpoint.stop_instead(None)
