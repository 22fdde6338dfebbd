"""The same commands to gpkvs and to a real Redis: the replies must be the same, and in the end the keys.

``python -m tests.tools.fuzz_redis --seconds 30 --seed 7``, or ``--commands 100000``. Several connections take turns.
Each sends some random commands at once, cut anywhere, on a few keys: right and wrong ones, transactions, both
protocols. Other connections send what is no protocol. Exit status 1 where the replies differ. What docs/redis.md says
that differs is left out: a watched key that was absent, made and deleted, and commands on whole tables between MULTI
and EXEC.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

from tests.server.redis.two_servers import DATABASE, Connection, encoded, gpkvs_server, redis_server

CONNECTIONS = 4
KEYS = (b"a", b"b", b"c", b"\r\n\0\xff", b"k" * 4096)
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

# Words of commands: a letter stands for a random key (K), value (V), number (N), time (T), pattern (P), options (O),
# the script that releases a lock (R), the SHA-1 of that (S), the one that extends it (E).
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
    WATCH K | UNWATCH | PING | PING V | ECHO V | DBSIZE x | KEYS P | SELECT x | NOSUCH V K | GET | set K | TIME x
    RANDOMKEY x | WAIT 0 -1 | WAIT 0 0 | CLIENT GETNAME | CLIENT SETNAME V | SCAN x | SCAN 0 COUNT 0 | DEL a b c d
    HELLO 2 | HELLO 3 | HELLO 4 | RESET | EVAL R 1 K V | EVALSHA x 1 K | EVAL R x K V | EVALSHA S 1 K V
    EVALSHA S 1 K V | EVAL E 1 K V 1000000 | EVAL E 1 K V -1 | WATCH K K | UNWATCH | SET K V XX GET | SET K V NX GET
    """.replace("\n", "|")
    .encode()
    .split(b"|")
    if line.strip()
)
# The script of redis-py's locks, as that sends it.
RELEASE = b"""
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        return 1
    """
EXTEND = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end'
# Of a transaction these are refused by gpkvs, by their names.
WHOLE_TABLES = (b"DBSIZE", b"KEYS", b"SELECT", b"RANDOMKEY", b"SCAN")
# The servers have read the clock, or began to count, so far from each other.
FAR_APART = {b"TTL": 5, b"PTTL": 5000, b"EXPIRETIME": 5, b"PEXPIRETIME": 5000}
# Redis sees any change of a watched key; a key that comes and goes again is as it was here.
NOT_EXECUTED = ("null array", None)
HISTORY = 60
COMMANDS_AT_ONCE = 6

# What a client may send on a connection of its own; the pieces of one come in any order.
PIECES = (
    *(
        b"PING\r\n",
        b"  ping  \n",
        b'ECHO "a \\x41\\n b"\r\n',
        b"ECHO 'it\\'s'\r\n",
        b'ECHO "open\r\n',
        b"ECHO 'a'b\r\n",
    ),
    *(b"\r\n", b"\n", b"*0\r\n", b"*-1\r\n", b"*-5\r\n", b"*1\r\n$4\r\nPING\r\n", b"*1\r\n$4\r\nPINGxx"),
    *(
        b"*x\r\n",
        b"*2147483648\r\n",
        b"*99999999999999999999\r\n",
        b"*2\r\n$4\r\nECHO\r\n$1\r\n\0\r\n",
        b"*1\r\n:1\r\n",
    ),
    *(
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n$0\r\n\r\n",
        b"$4\r\nPING\r\n",
    ),
    *(
        b"*+1\r\n",
        b"*1\r\n$+4\r\nPING\r\n",
        b"*01\r\n",
        b"NOSUCH a b\r\n",
        b"\0\r\n",
        b"x" * 70_000,
        b"get\r\n",
        b"QUIT\r\n",
    ),
)


class Pair:
    """A connection to both."""

    def __init__(self, found: int, expected: int) -> None:
        self.found, self.expected = Connection(found), Connection(expected)
        self.queued: list[bytes] | None = None  # the commands since MULTI

    def send(self, data: bytes, cuts: list[int]) -> None:
        """Send bytes in pieces."""
        for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True):
            for connection in (self.found, self.expected):
                connection.send_bytes(data[first:last])

    def replies(self) -> tuple[Any, Any]:
        """Return the next replies."""
        return self.found.reply(), self.expected.reply()

    def call(self, *words: bytes) -> tuple[Any, Any]:
        """Send a command to both; return both replies."""
        self.send(encoded(words), [])
        return self.replies()

    def begin(self, *words: bytes) -> None:
        """Begin as a client that has said nothing but this."""
        self.queued = None
        for command in ((b"RESET",), (b"SELECT", b"%d" % DATABASE), *((words,) if words else ())):
            found, expected = self.call(*command)
            assert is_same(command, found, expected), f"{command}: {found!r}, of Redis {expected!r}"


def is_same(
    words: tuple[bytes, ...] | list[bytes], found: Any, expected: Any, queued: list[bytes] | None = None
) -> bool:
    """Return whether two replies to a command say the same; `queued` are the commands that EXEC has run."""
    name = words[0].upper()
    if found == expected:
        return True
    if name == b"EXEC" and isinstance(found, list) and isinstance(expected, list) and queued is not None:
        each = zip(queued, found, expected, strict=True)
        return len(found) == len(expected) == len(queued) and all(is_same([one], *replies) for one, *replies in each)
    if name == b"KEYS" and isinstance(found, list) and isinstance(expected, list):
        return sorted(found) == sorted(expected)
    if name == b"HELLO":  # an id, and the name of the server
        return type(found) is type(expected) and len(found) == len(expected)
    if name in FAR_APART and b":-" not in found + expected and found[:1] == expected[:1] == b":":
        return abs(int(found[1:]) - int(expected[1:])) <= FAR_APART[name]
    return False


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
            case b"R":
                words.append(RELEASE)
            case b"S":
                words.append(hashlib.sha1(RELEASE, usedforsecurity=False).hexdigest().encode())
            case b"E":
                words.append(EXTEND)
            case _:
                words.append(word)
    return words


class Fuzz:
    """Random commands, for two ports."""

    def __init__(self, seed: int, found: int, expected: int) -> None:
        self._pick = random.Random(seed)
        self._ports = (found, expected)
        self._pairs = [Pair(found, expected) for _ in range(CONNECTIONS)]
        self._history: deque[str] = deque(maxlen=HISTORY)
        self.commands = 0
        self._begin_again()

    def _begin_again(self) -> None:
        for pair in self._pairs:
            pair.begin(*self._pick.choice(((), (b"HELLO", b"3"))))
        self._pairs[0].call(b"DEL", *KEYS)

    def turn(self) -> None:
        """Let one connection send some commands; compare the replies.

        Raises
        ------
        AssertionError
            Where they differ.
        """
        if self._pick.random() < 0.01:
            self._compare_keys()
        if self._pick.random() < 0.03:
            self._send_broken()
        number = self._pick.randrange(CONNECTIONS)
        pair = self._pairs[number]
        commands = self._choose(pair)
        data = b"".join(map(encoded, commands))
        cuts = sorted(self._pick.sample(range(len(data)), self._pick.choice((0, 0, 0, 1, 2))))
        pair.send(data, cuts)
        for words in commands:
            self.commands += 1
            found, expected = pair.replies()
            name = words[0].upper()
            self._history.append(f"{number}: {[word[:80] for word in words]} -> {expected!r:.200}")
            queued, pair.queued = pair.queued, _queued_after(pair.queued, name, expected)
            if name == b"EXEC" and expected in NOT_EXECUTED and isinstance(found, list):
                return self._begin_again()  # both are as one again
            if not is_same(words, found, expected, queued):
                self._fail(f"{words}: {found!r}, of Redis {expected!r}")
            if name == b"RESET":
                pair.begin()
        return None

    def _choose(self, pair: Pair) -> list[list[bytes]]:
        """Return commands to send at once; one that the next ones depend on is the last."""
        chosen: list[list[bytes]] = []
        is_queueing = pair.queued is not None
        for _ in range(self._pick.randrange(1, COMMANDS_AT_ONCE + 1)):
            words = random_words(self._pick)
            name = words[0].upper()
            if is_queueing and name in (*WHOLE_TABLES, b"HELLO"):
                continue
            chosen.append(words)
            is_queueing = is_queueing or name == b"MULTI"
            if name in (b"EXEC", b"DISCARD", b"RESET", b"HELLO"):
                break
        return chosen or [[b"PING"]]

    def _compare_keys(self) -> None:
        with Connection(self._ports[0]) as found, Connection(self._ports[1]) as expected:
            for words in (
                [b"SELECT", b"%d" % DATABASE],
                *([name, key] for key in KEYS for name in (b"GET", b"PEXPIRETIME")),
            ):
                one, other = found.call(*words), expected.call(*words)
                if not is_same(words, one, other):
                    self._fail(f"in the end {words}: {one!r}, of Redis {other!r}")

    def _send_broken(self) -> None:
        data = b"".join(self._pick.choices(PIECES, k=self._pick.randrange(1, 4)))
        found, expected = (_all_replies(port, data) for port in self._ports)
        if found != expected and None not in (found, expected):
            self._fail(f"{data[:300]!r}: {found!r}, of Redis {expected!r}")

    def _fail(self, text: str) -> None:
        raise AssertionError("\n".join((*self._history, f"command {self.commands}: {text}")))


def _queued_after(queued: list[bytes] | None, name: bytes, reply: Any) -> list[bytes] | None:
    """Return the commands of a transaction after one more command."""
    if name in (b"EXEC", b"DISCARD", b"RESET"):
        return None
    if queued is None:
        return [] if name == b"MULTI" and reply == b"+OK\r\n" else None
    return [*queued, name] if reply == b"+QUEUED\r\n" else queued


def _all_replies(port: int, data: bytes) -> bytes | None:
    """Send bytes on a new connection, and the end; return all that comes, or None: it was reset before it was read."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        parts = []
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                parts.append(part)
        except OSError:
            return None
        return b"".join(parts)


def fuzz(seed: int, found: int, expected: int, seconds: float, commands: int = sys.maxsize) -> int:
    """Send commands to two ports for a while, and not more than so many; return how many.

    Raises
    ------
    AssertionError
        Where replies differ.
    """
    running, end = Fuzz(seed, found, expected), time.monotonic() + seconds
    for _ in count():
        if time.monotonic() > end or running.commands >= commands:
            return running.commands
        running.turn()
    return running.commands


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--commands", type=int, help="so many, however long it takes")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    print(f"python -m tests.tools.fuzz_redis --seed {given.seed}", flush=True)
    if not shutil.which("redis-server"):
        print("redis is not installed: apt-get install redis-server")
        return 2
    limits = (float("inf"), given.commands) if given.commands else (given.seconds,)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with redis_server(folder) as expected, gpkvs_server(folder) as found:
            print(f"{fuzz(given.seed, found, expected, *limits):,} commands, the same replies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
