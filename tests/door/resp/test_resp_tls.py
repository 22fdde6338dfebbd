"""The RESP door inside TLS: what was read ahead, what comes behind the end, and who speaks something else."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.certificates import HERE, Authority
from tests.door.resp_client import LIMITS, VALUE, Client
from tests.door.resp_door import bare_door, command, connect
from tests.server.tls_by_hand import Tls

GET = command(b"GET", b"k")
FOUND = b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)


class Site:
    """A client of a door with TLS, its engine and its Python side."""

    def __init__(self, client: Client, port: int, context: ssl.SSLContext) -> None:
        self.client = client
        self.port = port
        self.tls = Tls(context, client.connection)

    def execute(self, commands: int) -> None:
        """Run batches until so many commands have come."""
        while commands:
            commands -= len(self.client.execute())
        assert not commands


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@contextmanager
def resp_tls(authority: Authority, **settings: int) -> Iterator[Site]:
    pair = authority.issue("server", *HERE)
    with bare_door(LIMITS, **settings) as (library, port):
        library.set_tls(pair.cert.read_bytes(), pair.key.read_bytes(), None, 10)
        with connect(port) as connection:
            yield Site(Client(library, connection), port, authority.context())


@pytest.fixture
def site(authority: Authority) -> Iterator[Site]:
    with resp_tls(authority) as made:
        yield made


def test_what_was_read_ahead_is_not_forgotten(authority: Authority) -> None:
    """A connection that has enough to do leaves it where the system does not see it."""
    with resp_tls(authority, stream_bytes_max=5000) as site:
        for _ in range(2):
            site.tls.write(command(b"SET", b"k", b"v" * 5000))
        site.tls.flush()
        for _ in range(2):
            site.execute(1)
        assert site.tls.read(10) == b"+OK\r\n" * 2


def test_a_client_that_has_said_the_end_gets_its_answers(site: Site) -> None:
    site.tls.write(GET * 3 + command(b"PING"))
    site.tls.say_the_end()
    site.tls.flush()
    time.sleep(0.05)
    site.execute(3)
    assert site.tls.read(1000) == FOUND * 3 + b"+PONG\r\n"
    assert site.client.connection.recv(1) == b""


def test_a_client_that_breaks_off_gets_no_answers(site: Site) -> None:
    """Without TLS's word for the end, somebody else may have cut it off."""
    site.tls.write(GET)
    site.tls.flush()
    site.client.connection.shutdown(socket.SHUT_WR)
    time.sleep(0.05)
    site.execute(1)
    with pytest.raises(ssl.SSLError):
        site.tls.read(1000)


def test_a_door_that_waits_does_not_turn(site: Site) -> None:
    """The client was slow, has said the end, and its last command takes long."""
    echo = b"*" * 60_000
    site.tls.write(command(b"ECHO", echo) * 200 + GET)
    site.tls.say_the_end()
    sender = threading.Thread(target=site.tls.flush)
    sender.start()
    time.sleep(0.1)
    answer = b"$60000\r\n" + echo + b"\r\n"
    assert site.tls.read(200 * len(answer)) == answer * 200
    sender.join()
    time.sleep(0.05)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.1
    site.execute(1)
    assert site.tls.read(1000) == FOUND


def test_a_command_that_is_cut_anywhere(site: Site) -> None:
    """Each of its bytes may be in a record of its own, and each record in two pieces."""
    text = GET + b"ECHO 'a b'\r\n" + command(b"PING")
    found = FOUND + b"$3\r\na b\r\n+PONG\r\n"
    for cut in range(1, len(text)):
        for part in (text[:cut], text[cut:]):
            site.tls.write(part)
            site.tls.flush()
        site.execute(1)
        assert site.tls.read(len(found)) == found
    for byte in text:
        site.tls.write(bytes([byte]))
        site.tls.flush_in_two()
    site.execute(1)
    assert site.tls.read(len(found)) == found
