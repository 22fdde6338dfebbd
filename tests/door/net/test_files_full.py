"""Clients take all the open files that they may have: the server keeps some for itself, and says what is the matter."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.server.door.library import Protocol
from tests.door.net.test_strangers import OK, PONG, Site, rest
from tests.door.resp_door import answers, command
from tests.server.test_faults import wait_settled, wait_until

CONNECTIONS = 9
STRANGERS = 150
REPOSITORY = Path(__file__).parents[3]
# A door with more threads than that of a server on this machine may have.
_DOOR = """
from gpkvs.server.door.library import Protocol
from tests.door.net.test_strangers import MIB, Door
door = Door(asks_for_logins=False, memory_bytes=16_384 * MIB, threads=4)
print(door.ports[Protocol.RESP], flush=True)
input()
print(door.count("files_full"))
door.close()
"""


def files_of(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def kept_of(process: int, most: int) -> list[int]:
    """Return which files that the process keeps for itself are connections: those with these numbers or higher ones."""
    found = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed
            if int(file.name) >= most and str(file.readlink()).startswith("socket:"):
                found.append(int(file.name))
    return found


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
def few_files(process: int) -> Iterator[int]:
    """Let clients have few; return how many may be open then, but for an eighth that the process keeps for itself."""
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    most = int(wait_settled(lambda: files_of(process))) + CONNECTIONS
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
    with few_files(site.server.process.pid) as most, contextlib.ExitStack() as stack:
        users = [stack.enter_context(site.redis()) for _ in range(CONNECTIONS)]
        with site.socket(Protocol.RESP) as refused:
            assert rest(refused).startswith(b"-ERR the server has as many open files as it may")
        wait_until(lambda: files_of(site.server.process.pid) <= most, "the refused one's file is not closed")
        site.make_token()
        wait_until(lambda: log_in(site, users[0]) == OK, "the users were not read again", 30)
        assert site.server.metric("gpkvs_connections_refused_total", reason="files_full") == 1


def test_users_come_in_though_strangers_have_all_files(site: Site) -> None:
    """Each newcomer takes the file of a stranger, and no more than that."""
    with few_files(site.server.process.pid) as most, contextlib.ExitStack() as stack:
        user = stack.enter_context(site.redis())
        for _ in range(STRANGERS):
            stack.enter_context(site.socket(Protocol.RESP))
        for _ in range(3):
            site.come_in()
        user.sendall(command(b"PING"))
        assert answers(user, 1) == PONG
        assert site.server.metric("gpkvs_connections_refused_total", reason="files_full") > 0
        wait_until(lambda: not kept_of(site.server.process.pid, most), "connections have files that are kept")


def test_newcomers_in_several_threads_take_no_file_that_is_kept() -> None:
    """A thread closes a stranger for a newcomer, and another newcomer is faster: one more stranger goes."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _DOOR], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        stack.callback(door.kill)
        assert door.stdout
        address = "127.0.0.1", int(door.stdout.readline())
        with few_files(door.pid) as most:
            for _ in range(STRANGERS):
                newest = stack.enter_context(socket.create_connection(address))
            newest.sendall(command(b"PING"))
            assert answers(newest, 1) == PONG
            wait_until(lambda: not kept_of(door.pid, most), "connections have files that are kept")
        refused, _ = door.communicate(b"\n", timeout=60)
        assert int(refused) > 0
        assert door.returncode == 0
