"""What connections hold in Python, in the account."""

from __future__ import annotations

from contextlib import suppress

from gpkvs.errors import NoSpaceError
from gpkvs.server.memory import Account, Memory


def test_an_account_gives_back_what_it_took() -> None:
    memory = Memory(1 << 30)
    first, second = Account(memory.connection("peer")), Account(memory.connection("peer"))
    first.change_responses(3000)
    second.admit(4000)
    first.change_responses(-1000)
    first.close()
    first.change_responses(50_000)  # a call that has ended holds nothing
    assert 8000 <= memory.bytes == memory.connection("peer").bytes < 40_000
    second.close()
    second.close()
    assert (memory.bytes, memory.connection("peer").bytes) == (0, 0)


def test_a_connection_never_holds_more_than_it_leaves_free() -> None:
    """However many there are and whatever they ask for: the bound is kept, and a newcomer finds room."""
    memory = Memory(100_000_000)
    for number in range(10):
        account = Account(memory.connection(str(number)))
        for size in (20_000_000, 4_500_000, 500_000, 50_000, 5_000):
            with suppress(NoSpaceError):
                while True:
                    account.admit(size)
    assert 90_000_000 < memory.bytes <= 100_000_000
    Account(memory.connection("newcomer")).admit(6_000)
