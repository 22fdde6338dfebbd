"""Users make links, follow them and give credits, all at the same time.

python demo.py HOST:PORT
"""

from __future__ import annotations

import asyncio
import sys

from links import CREDITS_AT_FIRST, LINKS_A_MINUTE, Links, LinksError

from gpkvs.client import AsyncClient

USERS = [f"user{number}" for number in range(20)]
CLICKS = 50


async def visit(links: Links, number: int) -> None:
    """Do what one user does."""
    token = await links.sign_in(USERS[number])
    codes = await asyncio.gather(*(links.shorten(token, f"https://example.org/{page}") for page in range(3)))
    await asyncio.gather(*(links.follow(codes[0]) for _ in range(CLICKS)))
    clicks = await links.clicks_of(token)
    assert [clicks[code] for code in codes] == [CLICKS, 0, 0]
    for _ in range(5):
        await links.give(token, USERS[(number + 1) % len(USERS)], 10)


async def shorten_many(links: Links, token: str) -> None:
    """Make more links than are allowed in a minute."""
    for page in range(LINKS_A_MINUTE + 1):
        await links.shorten(token, f"https://example.org/{page}")


async def main(target: str) -> None:
    """Run the demo on an empty store."""
    async with AsyncClient(target) as client:
        links = await Links.open(client)
        await asyncio.gather(*(links.sign_up(user) for user in USERS))
        await asyncio.gather(*(visit(links, number) for number in range(len(USERS))))
        print("signed in:", await links.signed_in())
        credits = [await links.credits_of(user) for user in USERS]
        print("credits:", sum(credits), "as at first:", sum(credits) == CREDITS_AT_FIRST * len(USERS))

        token = await links.sign_in(USERS[0])
        code = await links.shorten(token, "https://example.org/soon-gone", ttl=2)
        print("leads to", await links.follow(code))
        await asyncio.sleep(2.1)
        for refused in (
            links.follow(code),
            links.sign_up(USERS[0]),
            links.give(token, USERS[1], 1_000_000),
            shorten_many(links, token),
        ):
            try:
                await refused
            except LinksError as error:
                print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7171"))
