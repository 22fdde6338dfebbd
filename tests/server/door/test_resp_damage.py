"""Of a damaged record no value is returned, and a command that would return it replaces nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpkvs
from gpkvs.engine.left import Left
from gpkvs.engine.native_engine import NativeEngine
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.server.door.resp_door import answers, command, connect, resp_door

DAMAGED = b"-ERR the record fails its checksum, so no value is returned: run gpkvs check\r\n"
VALUE = b"value of the key"
READ_AND_WRITE = [[b"GETSET", b"key", b"new"], [b"GETDEL", b"key"], [b"SET", b"key", b"new", b"EX", b"100", b"GET"]]
READ_AND_WRITE += [[b"GETEX", b"key", b"PERSIST"], [b"GETEX", b"key", b"EX", b"100"]]


def handed_on(words: list[bytes]) -> bytes:
    raise AssertionError(f"Python was asked for {words}")


def flip(store: Store) -> None:
    """Damage the value, or mend it again."""
    heap = store._files.heap._view
    assert heap is not None
    content = heap.tobytes()
    assert content.count(VALUE[1:]) == 1
    heap[content.index(VALUE[1:]) - 1] ^= 1


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("words", READ_AND_WRITE)
def test_a_damaged_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[bytes], *, is_left: bool
) -> None:
    """Natively as in a batch that is left to Python, alone as in a transaction."""
    if is_left:
        monkeypatch.setattr(NativeEngine, "_leaves", lambda _: Left.TURN)
    with (
        gpkvs.open(tmp_path / "store", **SMALL, commit="undo") as store,
        resp_door(store, handed_on) as (_, port),
        connect(port) as connection,
    ):

        def ask(*commands: list[bytes]) -> bytes:
            connection.sendall(b"".join(command(*one) for one in commands))
            return answers(connection, len(commands))

        assert ask([b"SET", b"key", VALUE]) == b"+OK\r\n"
        flip(store)
        assert ask(words) == DAMAGED
        assert ask([b"MULTI"], words, [b"SET", b"other", b"1"], [b"EXEC"]) == (
            b"+OK\r\n" + b"+QUEUED\r\n" * 2 + b"*2\r\n" + DAMAGED + b"+OK\r\n"
        )
        flip(store)
        assert ask(words) == b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)
        assert ask([b"SET", b"key", b"mine"], words) == b"+OK\r\n$4\r\nmine\r\n"
