"""What an engine counts about itself: seconds by phase, and bytes.

Plain numbers that only grow. The engine's thread adds to them; whoever publishes them reads them from any thread.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from gpkvs.engine.write_set import Volumes

# In the order a transaction passes them. Each takes the time since the end of the one before it, so that together they
# are all the time spent in the engine. `resolve` is of batches that look first. `plan` is all that the native planner
# does; `active` and `idle` store the flag and make it durable.
READ_PHASES = ("route", "order", "find", "fold", "measure")
COMMIT_PHASES = ("record", "log", "persist_heap", "persist_log", "active", "apply", "persist_index", "idle")
WRITE_PHASES = ("place", "stage", *COMMIT_PHASES)
# Upper bounds of how late expired keys were removed, in seconds; the last class has none.
EXPIRY_LAG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PHASES = ("resolve", "plan", *READ_PHASES, *WRITE_PHASES, "reply")


class Meter:
    """What the transactions of one store took and wrote.

    Attributes
    ----------
    transactions
        Begun, of all kinds.
    commits
        Those that changed something, or gave versions.
    phase_seconds
        The time spent in each phase.
    user_bytes
        Keys and values of the committed SETs, keys of the committed DELETEs.
    written_bytes
        Stored to PM, by file: ``heap`` (records), ``log`` (undo entries, descriptors), ``index`` (slots), ``root``
        (flags). Over `user_bytes` it is the write amplification.
    expired_keys
        Removed because they had expired.
    expiry_lags, expiry_lag_seconds
        How many of them were removed how late after their expiry, by the classes of `EXPIRY_LAG_SECONDS` and one above
        them; and the sum of it. What expired while the store was closed counts from its opening.
    """

    __slots__ = (
        "_last",
        "commits",
        "expired_keys",
        "expiry_lag_seconds",
        "expiry_lags",
        "phase_seconds",
        "transactions",
        "user_bytes",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.transactions = 0
        self.commits = 0
        self.phase_seconds = dict.fromkeys(PHASES, 0.0)
        self.user_bytes = 0
        self.written_bytes = dict.fromkeys(("heap", "log", "index", "root"), 0)
        self.expired_keys = 0
        self.expiry_lags = [0] * (len(EXPIRY_LAG_SECONDS) + 1)
        self.expiry_lag_seconds = 0.0
        self._last = 0.0

    def begin(self) -> None:
        """Start the clock of a transaction."""
        self.transactions += 1
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap on a phase."""
        now = perf_counter()
        self.phase_seconds[phase] += now - self._last
        self._last = now

    def committed(self, volumes: Volumes, header_bytes: int, flag_bytes: int) -> None:
        """Book the bytes of a committed transaction: what users asked to write, what was stored to each file."""
        self.commits += 1
        self.user_bytes += volumes.user_bytes
        written = self.written_bytes
        written["heap"] += volumes.record_bytes
        written["log"] += header_bytes + volumes.entry_bytes
        written["index"] += volumes.index_bytes
        written["root"] += flag_bytes

    def expired(self, late_ms: NDArray[np.int64]) -> None:
        """Book keys that were removed because they had expired; of each, how long after."""
        seconds = late_ms / 1000
        classes = np.searchsorted(EXPIRY_LAG_SECONDS, seconds)
        counts = np.bincount(classes, minlength=len(self.expiry_lags)).tolist()
        self.expiry_lags = [old + new for old, new in zip(self.expiry_lags, counts, strict=True)]
        self.expiry_lag_seconds += float(seconds.sum())
        self.expired_keys += len(late_ms)
