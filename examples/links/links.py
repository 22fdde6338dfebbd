"""Short links for signed-in users: a small application on gpkvs, with asyncio. README.md tells how to run it.

Keys of the default table:

    credits/USER     how many credits a user has, as text; each user has this key
    session/TOKEN    who is signed in with this token; expires
    made/USER        how many links the user has made in this minute; expires
    link/CODE        where a link leads; may expire
    links/USER       the codes of the user's links, each with a space behind it

The table `clicks` has the layout u64: its keys are the codes, its values are numbers.
"""

from __future__ import annotations

import secrets

from gpkvs.client import AsyncClient, AsyncTransaction, ConditionFailedError, ConflictError

SESSION_SECONDS = 1800
LINKS_A_MINUTE = 10
CREDITS_AT_FIRST = 100
CODE_BYTES = 6  # 8 letters: as long as a key of the table `clicks` must be


class LinksError(Exception):
    """What the user asked for cannot be done; the text says why."""


class Links:
    """The application; `open` makes one.

    Parameters
    ----------
    client
        Connected to a server. One serves any number of concurrent calls.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._db = client
        self._clicks = client.table("clicks")

    @classmethod
    async def open(cls, client: AsyncClient) -> Links:
        """Make the table, if it is not there, and return the application."""
        await client.create_table("clicks", layout="u64", index_bytes=1 << 20, exist_ok=True)
        return cls(client)

    # Sessions: a key that expires.

    async def sign_up(self, user: str) -> None:
        """Make a user; of two with one name at the same time, one gets it."""
        try:
            await self._db.set(f"credits/{user}".encode(), b"%d" % CREDITS_AT_FIRST, if_absent=True)
        except ConditionFailedError:
            raise LinksError(f"there is a user {user} already") from None

    async def sign_in(self, user: str) -> str:
        """Return a token for a user who has proved who they are; how, is not the matter of this example."""
        if not await self._db.exists(f"credits/{user}".encode()):
            raise LinksError(f"there is no user {user}")
        token = secrets.token_urlsafe()
        await self._db.set(f"session/{token}".encode(), user.encode(), ttl=SESSION_SECONDS)
        return token

    async def user_of(self, token: str) -> str:
        """Return who has a token; from now on it stays for another half an hour."""
        key = f"session/{token}".encode()
        async with self._db.batch() as batch:  # one request: nobody sees a half of it
            batch.get(key)
            batch.expire(key, SESSION_SECONDS)
        user = batch.results[0]
        if not isinstance(user, bytes):
            raise LinksError("the session has ended: sign in again")
        return user.decode()

    async def sign_out(self, token: str) -> None:
        """End a session."""
        await self._db.delete(f"session/{token}".encode())

    async def signed_in(self) -> int:
        """Return how many sessions there are; this looks at every key of the table."""
        return await self._db.count(b"session/")

    # Links: a rate limit, and a request that is done whole or not at all.

    async def shorten(self, token: str, url: str, ttl: float | None = None) -> str:
        """Make a link, which expires after `ttl` seconds if it is given, and return its code."""
        user = await self.user_of(token)
        made = await self._db.incr(f"made/{user}".encode(), ttl=60)  # the first link of a minute makes the key
        if made > LINKS_A_MINUTE:
            raise LinksError(f"{LINKS_A_MINUTE} links a minute are enough")
        while True:
            code = secrets.token_urlsafe(CODE_BYTES)
            batch = self._db.batch()
            batch.check(f"link/{code}".encode(), absent=True)
            batch.set(f"link/{code}".encode(), url.encode(), ttl=ttl)
            batch.append(f"links/{user}".encode(), f"{code} ".encode())
            try:
                await batch
            except ConflictError:  # another link has this code: nothing was done
                continue
            return code

    async def follow(self, code: str) -> str:
        """Return where a link leads, and count the click."""
        url = await self._db.get(f"link/{code}".encode())
        if url is None:
            raise LinksError("there is no such link, or it has expired")
        await self._clicks.incr(code.encode())
        return url.decode()

    async def clicks_of(self, token: str) -> dict[str, int]:
        """Return how often each link of a user was followed."""
        user = await self.user_of(token)
        codes = (await self._db.get(f"links/{user}".encode(), b"")).split()
        clicks = await self._clicks.get_all(codes)
        return {code.decode(): int.from_bytes(clicks.get(code, b""), "little") for code in codes}

    # Credits: a transaction.

    async def credits_of(self, user: str) -> int:
        """Return how many credits a user has."""
        return int(await self._db.get(f"credits/{user}".encode(), b"0"))

    async def give(self, token: str, receiver: str, number: int) -> None:
        """Move credits to another user: both change, or none does."""
        giver = await self.user_of(token)
        if giver == receiver or number < 1:
            raise LinksError("credits go to somebody else, at least one")
        from_key, to_key = f"credits/{giver}".encode(), f"credits/{receiver}".encode()

        async def move(t: AsyncTransaction) -> None:  # runs again if somebody else changed what it has read
            credits = await t.get_all([from_key, to_key])
            if to_key not in credits:
                raise LinksError(f"there is no user {receiver}")
            if int(credits[from_key]) < number:
                raise LinksError(f"{giver} has only {int(credits[from_key])}")
            t.set(from_key, b"%d" % (int(credits[from_key]) - number))
            t.set(to_key, b"%d" % (int(credits[to_key]) + number))

        await self._db.transact(move)
