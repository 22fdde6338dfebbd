"""The Redis protocol inside TLS: real clients, certificates that name users, and what one side leaves the other."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, Pair, server_options
from tests.programs import needs, require
from tests.server.redis.two_servers import Connection, encoded, resp_port
from tests.server.tls_by_hand import Tls
from tests.serving import Server

OK = b"+OK\r\n"
SECONDS_MAX = 20
VALUE_BYTES_MAX = 16 << 20


class Site:
    """A server with TLS on all ports, and everybody's certificates."""

    def __init__(self, folder: Path, *options: str, client_ca: bool = False) -> None:
        self.authority = Authority(folder)
        self.pair = self.authority.issue("server", *HERE)
        tls = server_options(self.pair, self.authority.path if client_ca else None)
        self.server = Server(folder / "store", folder, "--resp", "127.0.0.1:0", *tls, *options)
        self.port = resp_port(self.server)

    def connect(self, client: Pair | None = None) -> Connection:
        return Connection(self.port, self.authority.context(client))

    def redis_cli(self, *words: str) -> str:
        require("redis-cli")
        command = ["redis-cli", "--tls", "-p", str(self.port), "--cacert", str(self.authority.path), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True).stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    sizes = ("--heap-bytes", "512MiB", "--log-bytes", "64MiB", "--journal-bytes", "256MiB")
    made = Site(tmp_path_factory.mktemp("redis-tls"), *sizes)
    yield made
    made.server.stop()
    assert "Traceback" not in made.server.log.read_text()


def test_redis_cli(site: Site) -> None:
    assert site.redis_cli("SET", "k", "v") == "OK\n"
    assert site.redis_cli("GET", "k") == "v\n"
    assert site.redis_cli("INCR", "n") == "1\n"
    assert "Redis protocol with TLS on 127.0.0.1:" in site.server.log.read_text()


def test_redis_py(site: Site) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(port=site.port, ssl=True, ssl_ca_certs=str(site.authority.path), protocol=3) as client:
        assert client.set("k", b"v" * 100_000, ex=100)
        assert client.get("k") == b"v" * 100_000
        with client.pipeline() as pipeline:
            assert pipeline.set("a", 1).incr("a").execute() == [True, 2]


@needs("openssl")
def test_openssl(site: Site) -> None:
    """Its client takes the end of its input for the end of all that it has to say."""
    command = ["openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{site.port}", "-CAfile"]
    done = subprocess.run(
        [*command, str(site.authority.path)],
        input=b"SET k 1\r\nINCR k\r\nQUIT\r\n",
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.stdout == b"+OK\r\n:2\r\n+OK\r\n"


def test_the_largest_values(site: Site) -> None:
    """Several on their way at once, to a client that reads slowly; native code returns some, Python others."""
    values = [bytes([letter]) * VALUE_BYTES_MAX for letter in b"ab"]
    with site.connect() as redis:
        redis.send((b"SET", b"a", values[0]), (b"SETEX", b"b", b"1000", values[1]))
        assert [redis.reply(), redis.reply()] == [OK, OK]
        redis.send((b"GET", b"a"), (b"GETRANGE", b"b", b"0", b"-1"), (b"MGET", b"b", b"a"), (b"PING",))
        time.sleep(0.2)
        for _ in range(20):
            assert redis._stream.peek(1)
            time.sleep(0.005)
        assert redis.reply() == ("bulk", values[0])
        assert redis.reply() == ("bulk", values[1])
        assert redis.reply() == [("bulk", values[1]), ("bulk", values[0])]
        assert redis.reply() == b"+PONG\r\n"
        assert redis.call(b"DEL", b"a", b"b") == b":2\r\n"


def test_a_certificate_that_is_renewed(site: Site) -> None:
    """Connections that are there go on."""

    def serial() -> str:
        with site.connect() as redis:
            return redis.certificate()["serialNumber"]

    before = serial()
    with site.connect() as redis:
        assert redis.call(b"SET", b"k", b"v") == OK
        site.authority.issue("server", *HERE)
        give_up = time.monotonic() + SECONDS_MAX
        while serial() == before:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert redis.certificate()["serialNumber"] == before
        assert redis.call(b"INCR", b"renewals") == b":1\r\n"
        assert redis.call(b"GET", b"k") == ("bulk", b"v")


def test_all_that_was_said_before_the_end_is_answered(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=SECONDS_MAX) as connection:
        tls = Tls(site.authority.context(), connection)
        tls.write((encoded([b"SET", b"k", b"v"]) + encoded([b"INCR", b"last"])) * 50)
        tls.say_the_end()
        tls.flush()
        assert tls.read(1 << 20) == b"".join(OK + b":%d\r\n" % number for number in range(1, 51))


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    """Native commands and those of Python have its rights; AUTH makes the client another user."""
    reader = Account(certificates=("DNS:reader.example",), read=("*",))
    writer = Account(password="a long password", read=("*",), write=("*",))
    accounts = Accounts(tmp_path / "users.toml", reader=reader, writer=writer)
    accounts.save()
    made = Site(tmp_path, "--users", str(accounts.path), client_ca=True)
    client = made.authority.issue("client", "DNS:reader.example")
    unknown = made.authority.issue("unknown", "DNS:nobody.example")
    with made.connect(client) as redis:
        assert redis.call(b"GET", b"k") is None
        assert redis.call(b"SET", b"k", b"v").startswith(b"-NOPERM user reader may not write ")
        assert redis.call(b"ACL", b"WHOAMI") == ("bulk", b"reader")
        redis.send((b"MULTI",), (b"GET", b"k"), (b"EXEC",))
        assert [redis.reply() for _ in range(3)] == [OK, b"+QUEUED\r\n", [None]]
        assert redis.call(b"AUTH", b"writer", b"wrong").startswith(b"-WRONGPASS ")
        assert redis.call(b"SET", b"k", b"v").startswith(b"-NOPERM ")
        assert redis.call(b"AUTH", b"writer", b"a long password") == OK
        assert redis.call(b"SET", b"k", b"v") == OK
        assert redis.call(b"INCR", b"n") == b":1\r\n"
        assert redis.call(b"RESET") == b"+RESET\r\n"
        assert redis.call(b"ACL", b"WHOAMI") == ("bulk", b"reader")
        assert redis.call(b"GET", b"k") == ("bulk", b"v")
        assert redis.call(b"SET", b"k", b"w").startswith(b"-NOPERM ")
    with made.connect(unknown) as redis:
        assert redis.call(b"GET", b"k") == b"-NOAUTH Authentication required.\r\n"
        assert redis.call(b"AUTH", b"writer", b"a long password") == OK
        assert redis.call(b"GET", b"k") == ("bulk", b"v")
    made.server.stop()
    assert "Traceback" not in made.server.log.read_text()
