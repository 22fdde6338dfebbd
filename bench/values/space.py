"""The space that stores take for large values that are overwritten: one size, and mixed sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.redis.memory import held_by_redis
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.values.gpkvs_values import OWN, value_bytes_taken
from gpkvs.bench.values.opened import opened
from gpkvs.bench.values.options import MIX_BYTES_MAX, MIX_BYTES_MIN, Found, ValuesOptions
from gpkvs.bench.values.payload import Payload, equal_sizes, key_of, mixed_sizes, size_text
from gpkvs.bench.values.resp_values import RespValues
from gpkvs.bench.values.value_store import ValueStore
from gpkvs.bench.wear.options import stored_bytes
from gpkvs.config import MIB

_OVERWRITES = 3  # of each value
_AIM = 1.15
_SETTLE_SECONDS = 1.0
_USUAL_BYTES = 4 * MIB
_MIX_VALUES_MIN = 4  # that the total has room for, of the largest size


@dataclass
class _Held:
    """A store, and the bytes that it takes now: of its directory, or of its process."""

    store: ValueStore
    now: Callable[[], int]
    peak: int = 0

    def look(self) -> int:
        """Note what it takes now; return it."""
        taken = self.now()
        self.peak = max(self.peak, taken)
        return taken


def measure_space(options: ValuesOptions, progress: Progress, found: Found) -> None:
    """Measure stores in memory, and redis."""
    _measure_both(options, "process", progress, found)


def measure_disk_space(options: ValuesOptions, progress: Progress, found: Found) -> None:
    """Measure stores on a disk; redis holds the same in memory there."""
    embedded = tuple(peer for peer in options.peers if peer != REDIS)
    _measure_both(replace(options, directory=options.disk, peers=embedded), "msync", progress, found)


def _measure_both(options: ValuesOptions, promise: Promise, progress: Progress, found: Found) -> None:
    """Measure values of one size, and of mixed sizes."""
    total = options.total_bytes
    size = min(options.sizes, key=lambda one: abs(one - _USUAL_BYTES))
    largest = min(MIX_BYTES_MAX, value_bytes_taken(options, options.directory), total // _MIX_VALUES_MIN)
    _measure(options, promise, f"values of {size_text(size)}", equal_sizes(size, total), progress, found)
    if largest > MIX_BYTES_MIN:
        text = f"values of {size_text(MIX_BYTES_MIN)} to {size_text(largest)}"
        _measure(options, promise, text, mixed_sizes(MIX_BYTES_MIN, largest, total), progress, found)


def _measure(
    options: ValuesOptions, promise: Promise, text: str, sizes: list[int], progress: Progress, found: Found
) -> None:
    payload = Payload.of_sizes(sizes)
    what = f"space, {len(payload):,} {text}"
    with _all_opened(options, promise, payload) as stores:
        ends = {}
        for held in stores:
            progress(f"{what}: each overwritten {_OVERWRITES} times, {held.store.name}")
            payload.load(held.store)
            found.contender(held.store, "space" if promise == "process" else "disk-space")
            loaded = held.look()
            _overwrite(held, payload)
            ends[held.store.name] = held.look()
            _add(found, f"{what}, loaded", held, loaded, payload)
        for held in stores:
            _add(found, f"{what}, at the peak", held, held.peak, payload)
        for held in stores:
            _add(found, f"{what}, overwritten", held, ends[held.store.name], payload)
        progress(f"{what}: at rest for {options.idle_seconds:.0f} s")
        _rest(stores, options.idle_seconds)
        for held in stores:
            _add(found, f"{what}, at rest", held, held.now(), payload)


def _overwrite(held: _Held, payload: Payload) -> None:
    for generation in range(1, _OVERWRITES + 1):
        for number in payload.order(generation):
            held.store.set_one(key_of(number), payload.value(number, generation))
            held.look()


def _rest(stores: list[_Held], seconds: float) -> None:
    """Let all stores do what they do in idle time."""
    end = time.monotonic() + seconds
    while True:
        for held in stores:
            held.store.settle()
        if time.monotonic() >= end:
            return
        time.sleep(min(_SETTLE_SECONDS, seconds))


def _add(found: Found, what: str, held: _Held, taken: int, payload: Payload) -> None:
    is_own = held.store.name == OWN
    found.comparisons.append(
        Comparison(
            what,
            held.store.name,
            "live bytes",
            [taken / payload.live_bytes],
            _AIM if is_own and not what.endswith("loaded") else None,
            is_least=False,
            note=f"{taken / MIB:,.0f} MiB",
        )
    )


@contextmanager
def _all_opened(options: ValuesOptions, promise: Promise, payload: Payload) -> Iterator[list[_Held]]:
    """Open the embedded stores, and redis if it is chosen."""
    with ExitStack() as stack:
        at = stack.enter_context(opened(options, options.directory, promise, payload))
        found = [_Held(store, partial(stored_bytes, path)) for store, path in at]
        if REDIS in options.peers:
            require_redis()
            folder = Path(stack.enter_context(TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-")))
            redis = Redis(folder / "redis", promise)
            stack.callback(redis.close)
            values = RespValues(REDIS, redis.version, f"{redis.settings}; its process's memory", redis)
            stack.callback(values.close)
            found.append(_Held(values, lambda: held_by_redis(redis, folder).total))
        yield found
