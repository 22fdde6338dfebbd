"""The benchmark of expiry: how long after their time keys are removed, beside traffic, and what the traffic feels.

Half of all keys expire, at times spread over some seconds. Meanwhile one caller reads and writes the others. Both
stores say how many keys they have removed so far. The k-th removal is compared with the k-th expiry, which is exact
where keys are removed in the order of their times.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import gpkvs
from gpkvs.batch import U8, Batch, Op
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.tables import Rows
from gpkvs.config import MIB
from gpkvs.info import package_version

_KEY_BYTES, _VALUE_BYTES = 16, 64
_LOADED_AT_ONCE = 10_000
_LOOK_SECONDS = 0.02
_PERCENTILES = (50, 99, 99.9)


@dataclass(frozen=True)
class ExpiryOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the stores: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    keys
        That expire, and as many that do not.
    spread_seconds
        Over which the expiries are spread.
    batch
        Operations in a batch of the traffic.
    wait_seconds_max
        After the last expiry, until the measurement is given up.
    redis
        Whether to compare with redis.
    """

    directory: Path
    promise: Promise = "process"
    keys: int = 1_000_000
    spread_seconds: float = 10.0
    batch: int = 100
    wait_seconds_max: float = 60.0
    redis: bool = True


class _Expiring(Protocol):
    """A store that holds keys which expire."""

    name: str
    version: str
    settings: str

    def load(self, keys: U8, expiries: NDArray[np.uint64] | None) -> None:
        """Store keys, one row each; without expiries they stay."""

    def prepare(self, op: Op, keys: U8) -> Any:
        """Return a batch of GETs or SETs."""

    def run(self, prepared: Any) -> None:
        """Run it, and wait for its end."""

    def removed(self) -> int:
        """Return how many expired keys were removed so far; from another thread than the others."""

    def close(self) -> None:
        """Close the store."""


class _Gpkvs:
    name, version, settings = "gpkvs", package_version(), "embedded"

    def __init__(self, options: ExpiryOptions, directory: Path) -> None:
        self._store = gpkvs.open(directory / "store", index_bytes=MIB)

    def load(self, keys: U8, expiries: NDArray[np.uint64] | None) -> None:
        batch: Batch = self.prepare(Op.SET, keys)
        object.__setattr__(batch, "expiries", expiries)
        self._store.execute(batch)

    def prepare(self, op: Op, keys: U8) -> Any:
        count = len(keys)
        values = count if op is Op.SET else 0
        return Batch(
            np.full(count, op, np.uint8),
            keys.ravel(),
            np.full(count, _KEY_BYTES, np.uint32),
            np.full(values * _VALUE_BYTES, ord("v"), np.uint8),
            np.full(values, _VALUE_BYTES, np.uint32),
        )

    def run(self, prepared: Any) -> None:
        if self._store.execute(prepared).status.any():
            raise BenchError("gpkvs lost a key that does not expire")

    def removed(self) -> int:
        return self._store.meter.expired_keys

    def close(self) -> None:
        self._store.close()


class _Redis:
    name = "redis"

    def __init__(self, options: ExpiryOptions, directory: Path) -> None:
        self._redis = Redis(directory / "redis", options.promise)
        self.version, self.settings = self._redis.version, f"{self._redis.settings}, a process of its own"
        self._traffic, self._questions = self._redis.connect(), self._redis.connect()

    def load(self, keys: U8, expiries: NDArray[np.uint64] | None) -> None:
        value = b"v" * _VALUE_BYTES
        rows = [row.tobytes() for row in keys]
        if expiries is None:
            commands = [_resp(b"SET", row, value) for row in rows]
        else:
            commands = [
                _resp(b"SET", row, value, b"PXAT", b"%d" % at) for row, at in zip(rows, expiries.tolist(), strict=True)
            ]
        self.run((b"".join(commands), len(b"+OK\r\n") * len(rows)))

    def prepare(self, op: Op, keys: U8) -> Any:
        value, rows = b"v" * _VALUE_BYTES, [row.tobytes() for row in keys]
        if op is Op.SET:
            return b"".join(_resp(b"SET", row, value) for row in rows), len(b"+OK\r\n") * len(rows)
        response = len(b"$%d\r\n" % _VALUE_BYTES) + _VALUE_BYTES + 2
        return b"".join(_resp(b"GET", row) for row in rows), response * len(rows)

    def run(self, prepared: Any) -> None:
        commands, wanted = prepared
        self._traffic.sendall(commands)
        while wanted > 0:
            got = self._traffic.recv(1 << 16)
            if not got or got.startswith(b"-"):
                raise BenchError(f"redis responded {got[:80]!r}")
            wanted -= len(got)
        if wanted:
            raise BenchError("redis responded more than was asked for")

    def removed(self) -> int:
        self._questions.sendall(_resp(b"INFO", b"stats"))
        head, _, text = self._questions.recv(1 << 16).partition(b"\r\n")
        while len(text) < int(head[1:]) + 2:
            text += self._questions.recv(1 << 16)
        return int(text.split(b"\nexpired_keys:")[1].split(b"\r\n")[0])

    def close(self) -> None:
        self._traffic.close()
        self._questions.close()
        self._redis.close()


def _resp(*words: bytes) -> bytes:
    """Return a command as redis takes it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def run_expiry(options: ExpiryOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If redis is not installed, the directory gives another promise, a store returns wrong values, or does not remove
        all keys in time.
    """
    began, measured = time.perf_counter(), []
    require_promise(options.directory, options.promise)
    if options.redis:
        require_redis()
    contenders: list[Callable[[ExpiryOptions, Path], _Expiring]] = [_Gpkvs, *([_Redis] if options.redis else [])]
    for make in contenders:
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
            contender = make(options, Path(folder))
            try:
                measured.append(_measure(contender, options, progress))
            finally:
                contender.close()
    return {
        "benchmark": "expiry",
        "promise": options.promise,
        **describe_run(options.directory),
        "seconds": time.perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name != "directory"},
            "key_bytes": _KEY_BYTES,
            "value_bytes": _VALUE_BYTES,
            "runs": 1,
        },
        "measurements": measured,
    }


def _keys(prefix: bytes, numbers: NDArray[np.int64]) -> U8:
    """Return keys, one row each."""
    digits = numbers[:, np.newaxis] // 10 ** np.arange(_KEY_BYTES - 2, -1, -1) % 10 + ord("0")
    rows = np.full((len(numbers), _KEY_BYTES), prefix[0], np.uint8)
    rows[:, 1:] = digits
    return rows


def _measure(contender: _Expiring, options: ExpiryOptions, progress: Progress) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    numbers = np.arange(options.keys)
    parts = [numbers[first : first + _LOADED_AT_ONCE] for first in range(0, options.keys, _LOADED_AT_ONCE)]
    progress(f"{contender.name}: loading")
    began = time.perf_counter()
    for part in parts:
        contender.load(_keys(b"o", part), None)
    # The others took as long as these will take, about.
    starts = time.time() + 2 * (time.perf_counter() - began) + 1
    due = np.sort(rng.integers(0, int(options.spread_seconds * 1000), options.keys)).astype(np.uint64)
    due += np.uint64(starts * 1000)
    shuffled = rng.permutation(due)
    for part in parts:
        contender.load(_keys(b"e", part), shuffled[part[0] : part[-1] + 1])
    if time.time() > starts:
        raise BenchError(f"{contender.name} took too long to load the keys: they expire already")
    progress(f"{contender.name}: keys expire")
    batches = [
        contender.prepare(Op.SET if number % 2 else Op.GET, _keys(b"o", rng.integers(0, options.keys, options.batch)))
        for number in range(200)
    ]
    with _Watch(contender, options.keys) as watch:
        before = _traffic(contender, batches, lambda: time.time() < starts)
        give_up = starts + options.spread_seconds + options.wait_seconds_max
        during = _traffic(contender, batches, lambda: not watch.is_done and time.time() < give_up)
    if not watch.is_done:
        raise BenchError(f"{contender.name} removed {watch.removed:,} of {options.keys:,} keys in time")
    at, removed = np.array(watch.looks).T
    late = at[np.searchsorted(removed, np.arange(1, options.keys + 1))] - due.astype(np.float64) / 1000
    return {
        "contender": contender.name,
        "version": contender.version,
        "settings": contender.settings,
        "lag_seconds": {**_percentiles(late), "max": float(late.max())},
        "batches_before": before,
        "batches_while_keys_expire": during,
    }


class _Watch:
    """Looks at how many keys a store has removed, in a thread, until it is all."""

    def __init__(self, contender: _Expiring, keys: int) -> None:
        self._contender = contender
        self._keys = keys
        self._may_end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks: list[tuple[float, int]] = []
        self.is_done = False

    @property
    def removed(self) -> int:
        return self.looks[-1][1] if self.looks else 0

    def _run(self) -> None:
        while not self.is_done and not self._may_end.wait(_LOOK_SECONDS):
            removed = self._contender.removed()
            self.looks.append((time.time(), removed))
            self.is_done = removed >= self._keys

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join()


def _traffic(contender: _Expiring, batches: list[Any], goes_on: Callable[[], bool]) -> dict[str, float]:
    """Run batches one after the other; return how many in a second, and what they took."""
    taken, began, number = [], time.perf_counter(), 0
    while goes_on():
        start = time.perf_counter()
        contender.run(batches[number % len(batches)])
        taken.append(time.perf_counter() - start)
        number += 1
    seconds = time.perf_counter() - began
    milliseconds = {f"{name}_ms": value * 1000 for name, value in _percentiles(np.array(taken or [0.0])).items()}
    return {"per_second": number / seconds, **milliseconds}


def _percentiles(seconds: NDArray[np.float64]) -> dict[str, float]:
    return {f"p{number:g}": float(np.percentile(seconds, number)) for number in _PERCENTILES}


def expiry_rows(result: dict[str, Any]) -> Rows:
    """Return a result as a table."""
    parameters = result["parameters"]
    lines = []
    for measured in result["measurements"]:
        before, during, lag = (
            measured[name] for name in ("batches_before", "batches_while_keys_expire", "lag_seconds")
        )
        figures = (
            *(f"{lag[name]:.2f}" for name in ("p50", "p99", "max")),
            *(f"{batches['per_second']:,.0f}" for batches in (before, during)),
            *(f"{batches['p99_ms']:.2f}" for batches in (before, during)),
        )
        lines.append((f"{measured['contender']} {measured['version']}", *figures))
    return Rows(
        f"expiry, promise {result['promise']}: {parameters['keys']:,} keys expire within "
        f"{parameters['spread_seconds']:g} s, as many stay; batches of {parameters['batch']}",
        ("", "lag p50, s", "p99", "max", "batches/s before", "while", "p99 before, ms", "while"),
        lines,
    )
