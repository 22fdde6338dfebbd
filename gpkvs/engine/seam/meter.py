"""What an engine counts about itself: seconds by phase, and bytes.

Plain numbers that only grow. The engine's thread adds to them, also in native code (``kernels/base/meter.hpp``);
whoever publishes them reads them from any thread.
"""

from __future__ import annotations

import ctypes
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from gpkvs.engine.seam.left import Left
from gpkvs.engine.seam.write_set import Volumes

# In the order a transaction passes them. Each takes the time since the end of the one before it, so that together they
# are all the time spent in the engine. `resolve` is of batches that look first. `plan` is all that the native planner
# does; `active` and `idle` store the flag and make it durable.
READ_PHASES = ("route", "order", "find", "fold", "measure")
COMMIT_PHASES = ("record", "log", "persist_heap", "persist_log", "active", "apply", "persist_index", "idle")
WRITE_PHASES = ("place", "stage", *COMMIT_PHASES)
# Upper bounds of how late expired keys were removed, in seconds; the last class has none.
EXPIRY_LAG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PHASES = ("resolve", "plan", *READ_PHASES, *WRITE_PHASES, "reply")
# Words that native code shares (`MeterWord` in kernels/base/meter.hpp); behind them, the nanoseconds of each phase.
_TRANSACTIONS, _COMMITS, _USER_BYTES, _HEAP_BYTES, _LOG_BYTES, _INDEX_BYTES, _ROOT_BYTES, _LAST = range(8)
_LAST_LEFT, _PLANNED, _LEFT = 8, 9, 10
_FIRST_PHASE = _LEFT + len(Left) + 1
_AT = {phase: at for at, phase in enumerate(PHASES, _FIRST_PHASE)}


class Meter:
    """What the transactions of one store took and wrote.

    Attributes
    ----------
    address
        Where native code finds the words.
    expired_keys
        Removed because they had expired.
    helped_batches
        Of the batches that the native engine left, those for which Python has done what they lacked: they ran natively.
    expiry_lags, expiry_lag_seconds
        How many of them were removed how late after their expiry, by the classes of `EXPIRY_LAG_SECONDS` and one above
        them; and the sum of it. What expired while the store was closed counts from its opening.
    """

    __slots__ = ("_words", "address", "expired_keys", "expiry_lag_seconds", "expiry_lags", "helped_batches")

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * (_FIRST_PHASE + len(PHASES)))()
        self.address = ctypes.addressof(self._words)
        self.expired_keys = 0
        self.helped_batches = dict.fromkeys(Left, 0)
        self.expiry_lags = [0] * (len(EXPIRY_LAG_SECONDS) + 1)
        self.expiry_lag_seconds = 0.0

    @property
    def planned_address(self) -> int:
        """Where native code keeps `planned_ns`."""
        return self.address + ctypes.sizeof(ctypes.c_uint64) * _PLANNED

    @property
    def planned_ns(self) -> int:
        """When the native engine had planned its last batch, by the monotonic clock."""
        return self._words[_PLANNED]

    @property
    def transactions(self) -> int:
        """Begun, of all kinds."""
        return self._words[_TRANSACTIONS]

    @property
    def commits(self) -> int:
        """Those that changed something, or gave versions."""
        return self._words[_COMMITS]

    @property
    def phase_seconds(self) -> dict[str, float]:
        """The time spent in each phase."""
        return {phase: self._words[at] / 1e9 for phase, at in _AT.items()}

    @property
    def user_bytes(self) -> int:
        """Keys and values of the committed SETs, keys of the committed DELETEs."""
        return self._words[_USER_BYTES]

    @property
    def written_bytes(self) -> dict[str, int]:
        """Stored to PM, by file; over `user_bytes` it is the write amplification.

        ``heap`` has the records, ``log`` undo entries and descriptors, ``index`` slots, ``root`` flags. Of a log in
        chunks all entries count as whole ones: at most so much is stored.
        """
        words = self._words
        return {
            "heap": words[_HEAP_BYTES],
            "log": words[_LOG_BYTES],
            "index": words[_INDEX_BYTES],
            "root": words[_ROOT_BYTES],
        }

    @property
    def left_batches(self) -> dict[Left, int]:
        """The batches that the native engine left, or that nobody gave to it, by the reason."""
        return {reason: self._words[_LEFT + reason] for reason in Left}

    def left(self, reason: Left) -> None:
        """Count a batch that no native engine was asked to run."""
        self._words[_LEFT + reason] += 1

    @property
    def last_left(self) -> Left | None:
        """Why the native engine has left a batch, until somebody takes note."""
        return Left(last) if (last := self._words[_LAST_LEFT]) else None

    def take_left(self) -> bool:
        """Whether the native engine has left a batch, which it has counted; asked once."""
        is_left = self._words[_LAST_LEFT] != 0
        self._words[_LAST_LEFT] = 0
        return is_left

    def helped(self, reason: Left) -> None:
        """Count a batch that was left, and will run natively after all, unless it lacks more."""
        self._words[_LAST_LEFT] = 0
        self.helped_batches[reason] += 1

    def gave_up(self) -> None:
        """Count a transaction as not begun: another one has its batch."""
        self._words[_TRANSACTIONS] -= 1

    def begin(self) -> None:
        """Start the clock of a transaction."""
        self._words[_TRANSACTIONS] += 1
        self._words[_LAST] = perf_counter_ns()

    def add(self, phase: str, seconds: float) -> None:
        """Book time on a phase that was spent beside the others."""
        self._words[_AT[phase]] += int(seconds * 1e9)

    def lap(self, phase: str) -> None:
        """Book the time since the last lap on a phase."""
        words, now = self._words, perf_counter_ns()
        words[_AT[phase]] += now - words[_LAST]
        words[_LAST] = now

    def committed(self, volumes: Volumes, header_bytes: int, flag_bytes: int) -> None:
        """Book the bytes of a committed transaction: what users asked to write, what was stored to each file."""
        words = self._words
        words[_COMMITS] += 1
        words[_USER_BYTES] += volumes.user_bytes
        words[_HEAP_BYTES] += volumes.record_bytes
        words[_LOG_BYTES] += header_bytes + volumes.entry_bytes
        words[_INDEX_BYTES] += volumes.index_bytes
        words[_ROOT_BYTES] += flag_bytes

    def expired(self, late_ms: NDArray[np.int64]) -> None:
        """Book keys that were removed because they had expired; of each, how long after."""
        seconds = late_ms / 1000
        classes = np.searchsorted(EXPIRY_LAG_SECONDS, seconds)
        counts = np.bincount(classes, minlength=len(self.expiry_lags)).tolist()
        self.expiry_lags = [old + new for old, new in zip(self.expiry_lags, counts, strict=True)]
        self.expiry_lag_seconds += float(seconds.sum())
        self.expired_keys += len(late_ms)
