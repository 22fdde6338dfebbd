"""What connections hold in Python, in the account."""

from __future__ import annotations

from contextlib import suppress

from gpkvs.errors import NoSpaceError
from gpkvs.server.account.memory import Account
from tests.server.counted import Counted


def test_an_account_gives_back_what_it_took() -> None:
    counted = Counted()
    first, second = Account(counted.connection()), Account(counted.connection())
    first.change_responses(3000)
    second.admit(4000)
    first.change_responses(-1000)
    first.close()
    first.change_responses(50_000)  # a call that has ended holds nothing
    assert 8000 <= counted.clients_bytes() == counted.connection().bytes < 40_000
    second.close()
    second.close()
    assert (counted.clients_bytes(), counted.connection().bytes) == (0, 0)


def test_a_connection_never_holds_more_than_it_leaves_free() -> None:
    """However many there are and whatever they ask for: the bound is kept, and a newcomer finds room."""
    counted = Counted(100_000_000)
    for number in range(10):
        account = Account(counted.connection(str(number)))
        for size in (20_000_000, 4_500_000, 500_000, 50_000, 5_000):
            with suppress(NoSpaceError):
                while True:
                    account.admit(size)
    assert 80_000_000 < counted.clients_bytes() <= 87_500_000  # the rest is the door's
    Account(counted.connection("newcomer")).admit(6_000)


def test_a_name_may_be_another_connections() -> None:
    """A client may come back from the same address and port while a call of before still ends."""
    counted = Counted()
    before = Account(counted.memory.connection("peer", 1))
    after = Account(counted.memory.connection("peer", 2))
    assert (before.connection.id, after.connection.id) == (1, 2)
    before.close()
    assert counted.memory.connection("peer", 2) is after.connection
    after.close()
    assert not counted.memory._connections
