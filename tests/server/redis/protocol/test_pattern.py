"""Patterns fit what they fit in Redis, and none takes long."""

from __future__ import annotations

import random
import secrets
import time
from pathlib import Path

import pytest

from gpkvs.server.redis.protocol.pattern import pattern_of, patterns_of
from gpkvs.server.redis.protocol.reply import Error
from tests.server.redis.two_servers import Connection, redis_server


def fits(pattern: bytes, key: bytes) -> bool:
    return pattern_of(pattern).fullmatch(key) is not None


def simple(pattern: bytes, key: bytes) -> bool:
    """Return the same for patterns of letters, ``*`` and ``?``, by trying everything."""
    if not pattern:
        return not key
    if pattern[:1] == b"*":
        return any(simple(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[:1] in (b"?", key[:1]) and simple(pattern[1:], key[1:])


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (b"*", [b"", b"any\n"], []),
        (b"h[ae]llo", [b"hallo", b"hello"], [b"hillo"]),
        (b"h[^e]llo", [b"hallo"], [b"hello", b"hllo"]),
        (b"h[c-a]llo", [b"hbllo"], [b"hdllo"]),
        (b"\\*[\\]]", [b"*]"], [b"x]", b"*["]),
        (b"[ab", [b"a"], [b"c", b"ab"]),
        (b"a.c*", [b"a.c", b"a.cd"], [b"abc"]),
        (b"", [b""], [b"x"]),
    ],
)
def test_patterns(pattern: bytes, fitting: list[bytes], others: list[bytes]) -> None:
    assert [key for key in (*fitting, *others) if fits(pattern, key)] == fitting


def test_random_patterns() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    pick = random.Random(seed)
    for _ in range(3000):
        pattern = bytes(pick.choices(b"ab*?*", k=pick.randint(0, 7)))
        key = bytes(pick.choices(b"ab", k=pick.randint(0, 8)))
        assert fits(pattern, key) == simple(pattern, key), (pattern, key)


def test_no_pattern_takes_long() -> None:
    """By trying everything this one would take for ever."""
    began = time.process_time()
    assert not fits(b"*a" * 200 + b"*b", b"a" * 4096)
    assert time.process_time() - began < 1


def test_random_patterns_fit_what_they_fit_in_redis(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    pick = random.Random(seed)
    keys = list({bytes(pick.choices(b"ab]^-\\", k=pick.randint(1, 5))) for _ in range(300)})
    patterns = [bytes(pick.choices(b"ab*?[]^-\\", k=pick.randint(0, 8))) for _ in range(2000)]
    with redis_server(tmp_path) as port, Connection(port) as redis:
        redis.call(b"MSET", *[word for key in keys for word in (key, b"")])
        redis.send(*((b"KEYS", pattern) for pattern in patterns))
        for pattern in patterns:
            expected = sorted(key for _, key in redis.reply())
            assert sorted(key for key in keys if fits(pattern, key)) == expected, pattern


def test_patterns_of_one_command_have_a_length_together() -> None:
    assert len(patterns_of([b"a" * 512] * 2)) == 2
    with pytest.raises(Error, match=r"patterns of 1,025 bytes, allowed are 1,024"):
        patterns_of([b"a" * 512, b"b" * 513])


def test_a_pattern_of_many_sets_is_short_to_re() -> None:
    """With the letters of its sets one by one it had 200 kB, and was read for half a second."""
    assert len(pattern_of(b"[\0-\xff]" * 204).pattern) < 4096
