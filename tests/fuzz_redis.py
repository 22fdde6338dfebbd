"""The same commands to gpkvs and to a real Redis: the replies must be the same.

``python -m tests.fuzz_redis --seconds 30 --seed 7``. Several connections send random commands on a few keys, right
and wrong ones, transactions among them. Exit status 1 where the replies differ. What docs/redis.md says that differs is
left out: a watched key that was absent, made and deleted, and commands on whole tables between MULTI and EXEC.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.server.redis.two_servers import DATABASE, Connection, gpkvs_server, redis_server

CONNECTIONS = 3
KEYS = (b"a", b"b", b"c", b"d")
VALUES = (b"1", b"-5", b"10", b"abc", b"", b"9223372036854775807", b"3.5", b"1e3", b" 1", b"x" * 100, b"\r\n\0")
VALUES += (b"-0", b"007", b"inf")
NUMBERS = (b"0", b"1", b"-1", b"5", b"100", b"-100", b"3.1", b"abc", b"9223372036854775807", b"-9223372036854775808")
NUMBERS += (b"99999999999999999999", b"1000000")
# Of times: nothing expires while a test looks.
TIMES = (b"0", b"-1", b"abc", b"1000000", b"-100", b"9223372036854775807", b"-9223372036854775808", b"9223372036854775")
FAR_SECONDS, FAR_MS = b"4102444800", b"4102444800000"
OPTIONS = (b"NX", b"XX", b"GET", b"KEEPTTL", b"EX", b"PX", b"EXAT", b"PXAT", b"PERSIST", b"GT", b"LT", b"REPLACE")
OPTIONS += (b"nx", b"foo", b"1000000", b"0", b"-1", FAR_SECONDS, FAR_MS)
PATTERNS = (b"*", b"a*", b"[a-b]", b"?", b"[^a]", b"\\a", b"[c-a]", b"[ab", b"")

# Words of commands: a letter stands for a random key (K), value (V), number (N), time (T), pattern (P), options (O).
COMMANDS = tuple(
    line.split()
    for line in """
    GET K | SET K V | SET K V O | SETNX K V | SETEX K 1000 V | SETEX K T V | PSETEX K 100000 V | PSETEX K T V
    GETSET K V | GETDEL K | GETEX K O | MGET K K K | MGET | MSET K V K V | MSET K V K | MSETNX K V K V
    INCR K | DECR K | INCRBY K N | DECRBY K N | INCRBYFLOAT K N | INCRBYFLOAT K 0.1 | INCRBYFLOAT K 1.5e2
    INCRBYFLOAT K -2.25 | INCRBYFLOAT K nan | INCRBYFLOAT K 0x10 | APPEND K V | STRLEN K | GETRANGE K N N
    SUBSTR K 0 -1 | SETRANGE K 0 V | SETRANGE K 3 V | SETRANGE K -1 V | SETRANGE K 10 V | SETRANGE K x V
    DEL K K | UNLINK K | EXISTS K K K | TOUCH K K | TYPE K | RENAME K K | RENAMENX K K | COPY K K | COPY K K REPLACE
    EXPIRE K 1000 O | EXPIRE K T O | PEXPIRE K T O | EXPIREAT K 4102444800 O | EXPIREAT K T | PEXPIREAT K 4102444800000
    PEXPIREAT K T | TTL K | EXPIRETIME K | PEXPIRETIME K | PERSIST K | MULTI | MULTI | EXEC | EXEC | EXEC | DISCARD
    WATCH K | UNWATCH | PING | PING V | ECHO V | DBSIZE | KEYS P | SELECT x | NOSUCH V K | GET | set K | TIME x
    RANDOMKEY x | WAIT 0 -1 | WAIT 0 0 | CLIENT GETNAME | CLIENT SETNAME V | SCAN x | SCAN 0 COUNT 0 | DEL a b c d
    """.replace("\n", "|")
    .encode()
    .split(b"|")
    if line.strip()
)
# Of a transaction these are refused by gpkvs, by their names.
WHOLE_TABLES = (b"DBSIZE", b"KEYS", b"SELECT", b"RANDOMKEY", b"SCAN")
# Redis sees any change of a watched key; a key that comes and goes again is as it was here.
_DIFFERENT = "null array"


class Pair:
    """A connection to both."""

    def __init__(self, found: int, expected: int) -> None:
        self.found, self.expected = Connection(found), Connection(expected)
        self.is_queueing = False

    def call(self, *words: bytes) -> tuple[Any, Any]:
        """Send a command to both; return both replies."""
        for connection in (self.found, self.expected):
            connection.send(words)
        return self.found.reply(), self.expected.reply()


def is_same(found: Any, expected: Any) -> bool:
    """Return whether two replies say the same; moments may differ by what the test takes."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return all(map(is_same, found, expected)) or sorted(map(repr, found)) == sorted(map(repr, expected))
    if found == expected:
        return True
    numbers = [reply for reply in (found, expected) if isinstance(reply, bytes) and reply[:1] == b":"]
    if len(numbers) < 2:
        return False
    one, other = (int(number[1:]) for number in numbers)
    return min(one, other) > 0 and abs(one - other) <= (20_000 if one > 1 << 40 else 20) and one > 50


def random_words(pick: random.Random) -> list[bytes]:
    """Return a command."""
    words: list[bytes] = []
    for word in pick.choice(COMMANDS):
        match word:
            case b"K":
                words.append(pick.choice(KEYS))
            case b"V":
                words.append(pick.choice(VALUES))
            case b"N":
                words.append(pick.choice(NUMBERS))
            case b"T":
                words.append(pick.choice(TIMES))
            case b"P":
                words.append(pick.choice(PATTERNS))
            case b"O":
                words += pick.choices(OPTIONS, k=pick.choice((0, 0, 1, 2, 2, 3)))
            case _:
                words.append(word)
    return words


def fuzz(seconds: float, seed: int, found: int, expected: int) -> int:
    """Send commands to two ports for a while; return how many.

    Raises
    ------
    AssertionError
        Where replies differ.
    """
    pick = random.Random(seed)
    pairs = [Pair(found, expected) for _ in range(CONNECTIONS)]
    for pair in pairs:
        assert pair.call(b"SELECT", b"%d" % DATABASE) == (b"+OK\r\n", b"+OK\r\n")
    pairs[0].call(b"DEL", *KEYS)
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        pair, words = pick.choice(pairs), random_words(pick)
        name = words[0].upper()
        if pair.is_queueing and name in WHOLE_TABLES:
            continue
        if name == b"MULTI":
            pair.is_queueing = True
        elif name in (b"EXEC", b"DISCARD"):
            pair.is_queueing = False
        replies = pair.call(*words)
        count += 1
        if name == b"EXEC" and replies[1] == _DIFFERENT != replies[0]:
            for connection in pairs:  # both are as one again
                connection.call(b"DISCARD")
                connection.call(b"CLIENT", b"SETNAME", b"")
                connection.is_queueing = False
            pairs[0].call(b"DEL", *KEYS)
            continue
        assert is_same(*replies), f"command {count}: {words}: {replies[0]!r}, of Redis {replies[1]!r}"
    return count


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    print(f"python -m tests.fuzz_redis --seed {given.seed}", flush=True)
    if not shutil.which("redis-server"):
        print("redis is not installed: apt-get install redis-server")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with redis_server(folder) as expected, gpkvs_server(folder) as found:
            print(f"{fuzz(given.seconds, given.seed, found, expected):,} commands, the same replies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
