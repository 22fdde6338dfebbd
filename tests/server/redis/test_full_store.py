"""A store that is full: who finds room is served, who does not is told, and all are counted."""

from __future__ import annotations

from collections import Counter

from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import StartServer

_ROUNDS, _PIPELINED = 60, 50
_HEAP = ("--heap-bytes", "4MiB", "--heap-bytes-max", "4MiB")


def test_new_values_are_refused_and_others_stay(start_server: StartServer) -> None:
    """Commands that come together, of which some have room: each has its own answer, also in a transaction."""
    server = start_server("--resp", "127.0.0.1:0", *_HEAP)
    value = bytes(5000)
    replies: Counter[bytes] = Counter()
    stored = []
    with Connection(resp_port(server)) as redis:
        for first in range(0, _ROUNDS * _PIPELINED, _PIPELINED):
            keys = [b"%d" % number for number in range(first, first + _PIPELINED)]
            redis.send(*((b"SET", key, value) for key in keys), (b"GET", b"0"), (b"SET", b"0", value))
            told = [redis.reply() for _ in keys]
            replies.update(reply[:20] for reply in told)
            stored += [key for key, reply in zip(keys, told, strict=True) if reply == b"+OK\r\n"]
            assert redis.reply() == ("bulk", value)
            assert redis.reply() == b"+OK\r\n"
        redis.send((b"MULTI",), (b"SET", b"0", b"other"), *((b"SET", b"n%d" % n, value) for n in range(3)), (b"EXEC",))
        *_, executed = [redis.reply() for _ in range(6)]
        assert executed.startswith(b"-EXECABORT Transaction discarded because of: OOM heap full: the records")
        assert redis.call(b"GET", b"0") == ("bulk", value)
        assert redis.call(b"DBSIZE") == b":%d\r\n" % len(stored)
        assert redis.call(b"EXISTS", *stored) == b":%d\r\n" % len(stored)
        assert redis.call(b"DEL", *stored[1:100]) == b":99\r\n"
        assert redis.call(b"SET", b"new", value) == b"+OK\r\n"
    assert replies.keys() == {b"+OK\r\n", b"-OOM heap full: the "}
    refused = replies[b"-OOM heap full: the "]
    assert refused > 500
    assert server.metric("gpkvs_requests_refused_total", reason="heap_full") == refused + 1
    assert server.metric("gpkvs_engine_left_batches_total", reason="python") == 0
