"""The example of short links, against a real server."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpkvs.client import AsyncClient, ConflictError
from tests.conftest import assert_clean
from tests.serving import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "links"
SEED = 7


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for several tests, each with users of its own."""
    folder = tmp_path_factory.mktemp("links")
    server = Server(folder / "store", folder)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


@pytest.fixture
def example() -> ModuleType:
    """Return the module of the application."""
    spec = spec_from_file_location("links", EXAMPLE / "links.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(server: Server, example: ModuleType, work: Callable[[AsyncClient, Any], Awaitable[None]]) -> None:
    """Run something with a client and the application."""

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await work(client, await example.Links.open(client))

    asyncio.run(main())


async def outcomes(calls: Iterable[Awaitable[Any]], *refusals: type[Exception]) -> list[Any]:
    """Make calls at the same time, and return what those return that are not refused."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, refusals):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


def test_the_demo_runs(server: Server) -> None:
    command = [sys.executable, "demo.py", server.target]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().splitlines() == [
        "signed in: 20",
        "credits: 2000 as at first: True",
        "leads to https://example.org/soon-gone",
        "refused: there is no such link, or it has expired",
        "refused: there is a user user0 already",
        "refused: user0 has only 100",
        "refused: 10 links a minute are enough",
    ]


def test_a_session_lasts_as_long_as_it_is_used(shared: Server, example: ModuleType) -> None:
    async def work(client: AsyncClient, links: Any) -> None:
        assert len(await outcomes((links.sign_up("Ada") for _ in range(20)), example.LinksError)) == 1
        before = await links.signed_in()
        token = await links.sign_in("Ada")
        key = f"session/{token}".encode()
        await client.expire(key, 5)
        assert await links.user_of(token) == "Ada"
        assert await links.signed_in() == before + 1
        left = await client.ttl(key)
        assert left is not None
        assert example.SESSION_SECONDS - 60 < left <= example.SESSION_SECONDS
        await client.expire(key, 0.001)
        await asyncio.sleep(0.05)
        with pytest.raises(example.LinksError, match="sign in again"):
            await links.user_of(token)
        assert await links.signed_in() == before
        token = await links.sign_in("Ada")
        await links.sign_out(token)
        with pytest.raises(example.LinksError, match="sign in again"):
            await links.user_of(token)

    run(shared, example, work)


def test_no_two_links_have_one_code(shared: Server, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes are drawn from a few, by all users at the same time."""
    draw, drawn = random.Random(SEED), []

    def token(nbytes: int | None = None) -> str:
        if nbytes is None:
            return f"{draw.random()}"
        drawn.append(draw.randrange(40))
        return f"code{drawn[-1]:04}"

    monkeypatch.setattr(example.secrets, "token_urlsafe", token)

    async def work(client: AsyncClient, links: Any) -> None:
        tokens = {}
        for user in ("Ben", "Cyd", "Dan"):
            await links.sign_up(user)
            tokens[user] = await links.sign_in(user)
        urls = [(user, f"https://example.org/{user}/{page}") for user in tokens for page in range(10)]
        codes = await asyncio.gather(*(links.shorten(tokens[user], url) for user, url in urls))
        assert len(drawn) > len(codes) == len(set(codes)), f"seed {SEED}"
        assert await asyncio.gather(*(links.follow(code) for code in codes)) == [url for _, url in urls]
        for user, token in tokens.items():
            own = {code: 1 for code, (owner, _) in zip(codes, urls, strict=True) if owner == user}
            assert await links.clicks_of(token) == own

    run(shared, example, work)


def test_a_user_makes_so_many_links_a_minute(shared: Server, example: ModuleType) -> None:
    async def work(client: AsyncClient, links: Any) -> None:
        await links.sign_up("Eve")
        token = await links.sign_in("Eve")
        calls = (links.shorten(token, "https://example.org/") for _ in range(3 * example.LINKS_A_MINUTE))
        codes = await outcomes(calls, example.LinksError)
        assert len(set(codes)) == len(codes) == example.LINKS_A_MINUTE
        assert 0 < (await client.ttl(b"made/Eve") or 0) <= 60
        await client.expire(b"made/Eve", 0.001)
        await asyncio.sleep(0.05)
        assert await links.shorten(token, "https://example.org/") not in codes

    run(shared, example, work)


def test_credits_move_and_none_is_lost(shared: Server, example: ModuleType) -> None:
    async def work(client: AsyncClient, links: Any) -> None:
        await links.sign_up("Fay")
        await links.sign_up("Gus")
        token = await links.sign_in("Fay")
        gives = (links.give(token, "Gus", 9) for _ in range(30))
        done = len(await outcomes(gives, example.LinksError, ConflictError))
        assert 0 < done <= example.CREDITS_AT_FIRST // 9
        assert await links.credits_of("Fay") == example.CREDITS_AT_FIRST - 9 * done
        assert await links.credits_of("Gus") == example.CREDITS_AT_FIRST + 9 * done
        for receiver, number in (("Fay", 1), ("Gus", -1), ("nobody", 1)):
            with pytest.raises(example.LinksError):
                await links.give(token, receiver, number)
        assert await links.credits_of("Fay") == example.CREDITS_AT_FIRST - 9 * done
        assert await links.credits_of("nobody") == 0

    run(shared, example, work)
