"""A store and both clients as one fixture: a test of it is for all three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.faces import FACES, opened
from tests.conftest import assert_clean
from tests.serving import Server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests: each has a table of its own in it."""
    folder = tmp_path_factory.mktemp("server")
    server = Server(folder / "store", folder)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Callable[[], Server]:
    """Return what starts the server, for those that need it."""

    def started() -> Server:
        server: Server = request.getfixturevalue("shared")
        return server

    return started


@pytest.fixture(params=FACES)
def db(request: pytest.FixtureRequest, tmp_path: Path, serve: Callable[[], Server]) -> Iterator[Any]:
    with opened(request.param, tmp_path, serve) as face:
        yield face
