"""A small web shop's state in gpkvs: sessions, short links, rate limits, counters and payments.

Run it against a server: ``gpkvs serve --data /tmp/shop`` in one shell, ``python shop.py 127.0.0.1:7171`` in another.
Everything goes through one `AsyncClient`, which gathers what runs at the same time into few messages.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from typing import Any

from gpkvs.client import AsyncClient, AsyncTransaction
from gpkvs.errors import ConditionFailedError


class Shop:
    """What the handlers of a web server would call.

    Parameters
    ----------
    db
        A client of the server.
    session_s
        How long a session lives after its last use, in seconds.
    calls_max, window_s
        How many calls a visitor may make in a window of so many seconds.
    """

    def __init__(self, db: AsyncClient, session_s: float = 1800, calls_max: int = 100, window_s: float = 60) -> None:
        self._db = db
        self._session_s = session_s
        self._calls_max = calls_max
        self._window_s = window_s

    # Sessions: a key that expires. Each use gives it a new time to live.

    async def log_in(self, user: str) -> str:
        """Begin a session, and return its token."""
        token = secrets.token_urlsafe(16)
        await self._db.set(b"session:" + token.encode(), json.dumps({"user": user}).encode(), ttl=self._session_s)
        return token

    async def session(self, token: str) -> dict[str, Any] | None:
        """Return a session, which lives on from now; None if it is over."""
        key = b"session:" + token.encode()
        if not await self._db.expire(key, self._session_s):
            return None
        found = await self._db.get(key)
        return None if found is None else json.loads(found)

    async def log_out(self, token: str) -> None:
        """End a session."""
        await self._db.delete(b"session:" + token.encode())

    # Short links: the name is taken by whoever comes first, at whatever server.

    async def shorten(self, url: str, name: str | None = None) -> str:
        """Store a link under a short name, its own or a free one; raises `ConditionFailedError` if it is taken."""
        while True:
            chosen = name or secrets.token_urlsafe(4)
            try:
                await self._db.set(b"link:" + chosen.encode(), url.encode(), if_absent=True)
            except ConditionFailedError:
                if name:
                    raise
            else:
                return chosen

    async def follow(self, name: str) -> str | None:
        """Return where a link leads, and count the visit."""
        url, _ = await asyncio.gather(self._db.get(b"link:" + name.encode()), self._count(name))
        return None if url is None else url.decode()

    # Counters: an increment is one operation, so no visit is lost.

    async def _count(self, name: str) -> None:
        await self._db.incr(b"visits:" + name.encode())

    async def visits(self, name: str) -> int:
        """Return how often a link was followed."""
        return int(await self._db.get(b"visits:" + name.encode(), b"0"))

    # Rate limits: a counter that is gone when the window ends; the first call in it gives the time to live.

    async def allows(self, visitor: str) -> bool:
        """Count a call of a visitor; return whether it is within the limit."""
        return await self._db.incr(b"calls:" + visitor.encode(), ttl=self._window_s) <= self._calls_max

    # Payments: a transaction reads, decides, and writes both balances or none.

    async def pay(self, payer: str, payee: str, cents: int) -> bool:
        """Move money; return whether the payer has as much."""

        async def move(transaction: AsyncTransaction) -> bool:
            debit, credit = b"balance:" + payer.encode(), b"balance:" + payee.encode()
            held = await transaction.get_all([debit, credit])
            if int(held.get(debit, b"0")) < cents:
                return False
            transaction.set(debit, b"%d" % (int(held[debit]) - cents))
            transaction.set(credit, b"%d" % (int(held.get(credit, b"0")) + cents))
            return True

        # What another payment changed meanwhile is read again; many payments of one payer need many attempts.
        return await self._db.transact(move, attempts=100)

    async def balance(self, user: str) -> int:
        """Return what a user has."""
        return int(await self._db.get(b"balance:" + user.encode(), b"0"))

    async def deposit(self, user: str, cents: int) -> int:
        """Add money, and return what the user has."""
        return await self._db.incr(b"balance:" + user.encode(), cents)

    async def report(self) -> dict[str, int]:
        """Return the visits of all links: a scan of the keys with a prefix."""
        prefix = b"visits:"
        return {key[len(prefix) :].decode(): int(visits) async for key, visits in self._db.scan(prefix)}


async def main(target: str) -> None:
    """Show each part once."""
    async with AsyncClient(target) as db:
        shop = Shop(db, session_s=3, calls_max=3)
        token = await shop.log_in("ada")
        print("session:", await shop.session(token))
        await asyncio.sleep(3.1)
        print("session, later:", await shop.session(token))

        name = await shop.shorten("https://example.org/", "home")
        try:
            await shop.shorten("https://example.com/", "home")
        except ConditionFailedError:
            print("link home: taken")
        await asyncio.gather(*[shop.follow(name) for _ in range(100)])
        print("visits:", await shop.report())

        print("calls allowed:", [await shop.allows("203.0.113.7") for _ in range(4)].count(True), "of 4")

        await shop.deposit("ada", 1000)
        paid = await asyncio.gather(*[shop.pay("ada", "bob", 30) for _ in range(40)])
        print("payments:", paid.count(True), "of 40; ada", await shop.balance("ada"), "bob", await shop.balance("bob"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7171"))
