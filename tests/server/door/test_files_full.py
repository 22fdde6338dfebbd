"""Clients take all the open files that they may have: the server keeps some for itself, and says what is the matter."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.server.door.library import Protocol
from tests.server.door.resp_door import answers, command
from tests.server.door.test_strangers import OK, PONG, Site, rest
from tests.server.test_faults import wait_settled, wait_until
from tests.serving import Server

CONNECTIONS = 9
STRANGERS = 150


def files_of(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Return one with more places than files."""
    made = Site(tmp_path, is_tls=False)
    try:
        made.come_in()
        made.server.metric("gpkvs_serving")
        yield made
        made.server.stop()
        log = made.server.log.read_text()
        assert "the process has as many open files as it may: raise that limit" in log
        assert "Traceback" not in log
    finally:
        made.server.kill()


@contextlib.contextmanager
def few_files(server: Server) -> Iterator[int]:
    """Let clients have few; return how many may be open then, but for an eighth that the server keeps for itself."""
    process = server.process.pid
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    most = int(wait_settled(lambda: files_of(server))) + CONNECTIONS
    limit = next(limit for limit in range(most, 2 * most) if limit - limit // 8 == most)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield most
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)


def log_in(site: Site, connection: socket.socket) -> bytes:
    connection.sendall(command(b"AUTH", site.token))
    return answers(connection, 1)


def test_the_server_has_files_though_users_have_all_of_theirs(site: Site) -> None:
    """It reads its own files again, and whoever asks for the metrics gets them."""
    with few_files(site.server) as most, contextlib.ExitStack() as stack:
        users = [stack.enter_context(site.redis()) for _ in range(CONNECTIONS)]
        with site.socket(Protocol.RESP) as refused:
            assert rest(refused).startswith(b"-ERR the server has as many open files as it may")
        assert files_of(site.server) <= most
        site.make_token()
        wait_until(lambda: log_in(site, users[0]) == OK, "the users were not read again", 30)
        assert site.server.metric("gpkvs_connections_refused_total", reason="files_full") == 1


def test_users_come_in_though_strangers_have_all_files(site: Site) -> None:
    """Each newcomer takes the file of a stranger, and no more than that."""
    with few_files(site.server) as most, contextlib.ExitStack() as stack:
        user = stack.enter_context(site.redis())
        for _ in range(STRANGERS):
            stack.enter_context(site.socket(Protocol.RESP))
        for _ in range(3):
            site.come_in()
        user.sendall(command(b"PING"))
        assert answers(user, 1) == PONG
        assert site.server.metric("gpkvs_connections_refused_total", reason="files_full") > 0
        wait_until(lambda: files_of(site.server) <= most, f"{files_of(site.server)} of {most}")
