"""Fuzzing of how clients log in: headers and tokens, near-right ones above all, against a real server.

``python -m tests.tools.fuzz_logins --seconds 30 --seed 7``. They come over gRPC, as HTTP/2 by hand, and to the metrics
over HTTP/1. Nothing is read without the right secret, and everything with it; no secret stands in the log or in the
audit log; the server has no traceback, keeps its memory, and stops in order.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import secrets
import socket
import string
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.access.passwords import hash_password
from gpkvs.server.access.users import TOKEN_PREFIX, make_token
from tests.server.hostile import call_headers, connection_with, is_answered, message
from tests.serving import Server

GROWN_BYTES_MAX = 64 << 20
_WAIT_SECONDS_MAX = 30
# With more in headers the native door resets the stream, and with more in one value nghttp2 ends the connection.
_VALUE_BYTES_MAX = 64 << 10
_OTHER_HEADERS_BYTES = 1 << 10  # of gRPC itself, at most
_BEYOND = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE
_ATTEMPTS_A_LOOK = 50  # whether those with the right secret still come in
_KEY = b"key"
_PRINTABLE = re.compile(rb"[ -~]*")
_SECRET_PART = 20  # characters of a secret that must stand nowhere

Fields = list[tuple[bytes, bytes]]


def _parts(token: str) -> tuple[str, str]:
    """Return the head of a token and its secret, which may have underscores of its own."""
    token_id, _, secret = token.removeprefix(TOKEN_PREFIX).partition("_")
    return TOKEN_PREFIX + token_id, secret


class Site:
    """A server with one user, who has a token, one that has ended, and a password."""

    def __init__(self, folder: Path) -> None:
        self.token, token_id, sha256 = make_token()
        self.ended, ended_id, ended_sha256 = make_token()
        # As base64 these have no padding: only one text decodes to them.
        self.password = secrets.token_urlsafe(24)[:30]
        self.pair = base64.b64encode(b"alice:" + self.password.encode())
        self.value = secrets.token_hex(16).encode()
        self.audit = folder / "audit.log"
        users = folder / "users.toml"
        users.touch(0o600)
        users.write_text(
            f'[users.alice]\npassword = "{hash_password(self.password)}"\nread = ["*"]\nwrite = ["*"]\nmetrics = true\n'
            + _token_text(token_id, sha256, 1)
            + _token_text(ended_id, ended_sha256, -1)
        )
        self.server = Server(folder / "store", folder, "--users", str(users), "--audit-log", str(self.audit))
        kv = kv_pb2_grpc.KVStub(self.server.channel)
        kv.Set(kv_pb2.SetRequest(key=_KEY, value=self.value), metadata=(("authorization", f"Bearer {self.token}"),))

    def has_secret(self, fields: Fields) -> bool:
        """Return whether a request may be let in: it has one header for it, and a right secret in that."""
        shown = [value for name, value in fields if name.lower() == b"authorization"]
        return len(shown) == 1 and (self.token.encode() in shown[0] or self.pair in shown[0])

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def check_files(self) -> None:
        """Fail if a secret, or a half of a nearly right one, stands in the log or in the audit log."""
        audit = b"".join(file.read_bytes() for file in self.audit.parent.glob(f"{self.audit.name}*"))
        for line in audit.splitlines():
            json.loads(line)
        log = self.server.log.read_bytes()
        assert b"Traceback" not in log, log.decode(errors="replace")
        for secret in (_parts(self.token)[1], _parts(self.ended)[1], self.password, self.pair.decode()):
            for part in (secret[:_SECRET_PART], secret[-_SECRET_PART:]):
                for name, text in (("log", log), ("audit log", audit)):
                    assert part.encode() not in text, f"a secret stands in the {name}"


def _token_text(token_id: str, sha256: bytes, days: int) -> str:
    ends = datetime.now(UTC) + timedelta(days=days)
    created = ends - timedelta(days=2)
    times = f"created = {created:%Y-%m-%dT%H:%M:%SZ}\nends = {ends:%Y-%m-%dT%H:%M:%SZ}\n"
    return f'[users.alice.tokens.{token_id}]\nsha256 = "{sha256.hex()}"\n{times}'


class Maker:
    """Makes headers: right, nearly right, and any."""

    def __init__(self, site: Site, draw: random.Random) -> None:
        self._site = site
        self._draw = draw

    def fields(self) -> Fields:
        """Return the headers of a request."""
        draw = self._draw
        value = self.value()
        match draw.randrange(12):
            case 0:
                return [(b"authorization", value), (b"authorization", self.value())]
            case 1:
                return [(b"authorization", self.right())] * 2
            case 2:
                name = draw.choice(
                    [b"authorization-bin", b"proxy-authorization", b"x-authorization", b"authorization "]
                )
                return [(name, draw.choice([value, self.right(), base64.b64encode(self.right())]))]
            case 3:
                return [(b"authorization", value), (b"authorization-bin", base64.b64encode(self.right()))]
            case 4:
                return []
        return [(b"authorization", value)]

    def right(self) -> bytes:
        """Return what is let in."""
        return b"Bearer " + self._site.token.encode() if self._draw.random() < 0.8 else b"Basic " + self._site.pair

    def value(self) -> bytes:
        """Return what somebody shows."""
        draw = self._draw
        kind = draw.randrange(10)
        if kind == 0:
            return self.right()
        if kind == 1:
            return draw.randbytes(draw.choice([0, 1, 8, 80, 4000, 20_000, 200_000]))
        if kind < 6:
            return draw.choice([b"Bearer ", b"bearer ", b"BEARER  ", b"Bearer", b"Basic ", b""]) + self._token()
        return draw.choice([b"Basic ", b"basic ", b"Basic  ", b"Basic", b"Bearer "]) + self._pair()

    def _token(self) -> bytes:
        """Return a token that is not right."""
        draw, text = self._draw, self._site.token
        head, secret = _parts(text)
        wrong = "".join(draw.choices(string.ascii_letters + string.digits + "-_", k=len(secret)))
        cut = draw.randrange(len(text))
        return draw.choice(
            [
                f"{head}_{wrong}".encode(),
                f"{TOKEN_PREFIX}{draw.randbytes(4).hex()}_{secret}".encode(),
                _one_bit_off(text.encode(), draw),
                _one_bit_off(text.encode(), draw),
                text.upper().encode(),
                text[:cut].encode(),
                text[:cut].encode() + b"\0" + text[cut:].encode(),
                text[:cut].encode() + b" " + text[cut:].encode(),
                f"{head}_{secret}="[1:].encode(),
                f"{head}_{secret[:-1]}\u00e9".encode(),
                self._site.ended.encode(),
                self._site.password.encode(),
                f"{head}_{wrong}".encode() * draw.choice([2, 100, 1000]),
            ]
        )

    def _pair(self) -> bytes:
        """Return a user and password that are not right, more or less as base64."""
        draw, site = self._draw, self._site
        pair = draw.choice(
            [
                b"alice:" + draw.randbytes(draw.randrange(40)),
                b"alice:" + _one_bit_off(site.password.encode(), draw),
                b"alice:" + site.password[:-3].encode(),
                b"alice:" + site.password.upper().encode(),
                b"Alice:" + site.password.encode(),
                b"bob:" + site.password.encode(),
                b"alice" + site.password.encode(),
                site.token.encode() + b":",
                _one_bit_off(site.token.encode(), draw) + b":",
                site.token.encode() + b":x-oauth-basic",
                b":" + site.token.encode(),
                b":",
                b"",
                b"alice\0:" + site.password.encode(),
                b"alice:" + b"x" * draw.choice([1000, 5000, 100_000]),
                draw.randbytes(draw.choice([10, 1000])) + b":x",
            ]
        )
        text = base64.b64encode(pair)
        return draw.choice(
            [text, text, text[:-1], text[: len(text) // 2], base64.urlsafe_b64encode(pair), pair, text + b"!"]
        )


def _far_token() -> bytes:
    """Return a header with a token that no server knows."""
    return b"Bearer " + make_token()[0].encode()


def _far_pair() -> bytes:
    """Return a header with a user who is there and a password that is nobody's."""
    return b"Basic " + base64.b64encode(b"alice:" + secrets.token_urlsafe(24)[:30].encode())


def _one_bit_off(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


class Attempts:
    """The three ways to the server. Each tells whether it let a request in; None: the request never arrived."""

    def __init__(self, site: Site, draw: random.Random) -> None:
        self._site = site
        self._draw = draw
        self._get = kv_pb2_grpc.KVStub(site.server.channel).Get

    def by_grpc(self, fields: Fields) -> bool | None:
        """Make a call with a library."""
        if not all(_PRINTABLE.fullmatch(value) and name.strip() == name for name, value in fields):
            return None  # the library does not send it
        metadata = tuple((name.decode(), value if name.endswith(b"-bin") else value.decode()) for name, value in fields)
        call = self._get.future(kv_pb2.GetRequest(key=_KEY), _WAIT_SECONDS_MAX, metadata)
        if error := call.exception():
            sent = sum(len(base64.b64encode(value) if name.endswith(b"-bin") else value) for name, value in fields)
            if error.code() in _BEYOND and sent > _VALUE_BYTES_MAX - _OTHER_HEADERS_BYTES:
                return False
            assert error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED), error
            return False
        assert call.result().value == self._site.value
        return True

    def by_http2(self, fields: Fields) -> bool | None:
        """Make a call by hand: with headers that no library sends, in frames that some byte may have broken."""
        # Of a nearly right secret the bit may be the one that makes it right, or makes it the path, which is noted.
        is_broken = self._draw.random() < 0.1 and not self._site.has_secret(fields)
        if is_broken:
            fields = [(b"authorization", self._draw.choice([_far_token(), _far_pair()]))]
        headers = call_headers("/gpkvs.v1.KV/Get", fields)
        if is_broken:
            headers = _one_bit_off(headers, self._draw)
        request = message(kv_pb2.GetRequest(key=_KEY).SerializeToString())
        received = self._exchange(self._site.server.target, connection_with(headers, request), is_answered)
        is_in = self._site.value in received
        assert not (is_broken and is_in), "http/2: let in without a secret"
        return is_in

    def by_http1(self, fields: Fields) -> bool | None:
        """Ask for the metrics."""
        lines = [b"GET /metrics HTTP/1.1", b"Host: fuzz", *(name + b": " + value for name, value in fields), b"\r\n"]
        received = self._exchange(self._site.server.metrics_address, b"\r\n".join(lines), lambda _: False)
        assert b" 500 " not in received.partition(b"\r\n")[0]
        return received.startswith(b"HTTP/1.1 200")

    def _exchange(self, address: str, data: bytes, is_whole: Callable[[bytes], bool]) -> bytes:
        """Send bytes, and return what comes until it is whole or the connection ends."""
        host, port = address.rsplit(":", 1)
        # From an address that has not failed before: the next attempt is slowed down else, and not checked.
        source = f"127.{self._draw.randrange(1, 255)}.{self._draw.randrange(256)}.{self._draw.randrange(1, 255)}"
        received = b""
        with (
            suppress(ConnectionError),
            socket.create_connection((host, int(port)), _WAIT_SECONDS_MAX, (source, 0)) as connection,
        ):
            connection.sendall(data)
            while not is_whole(received) and (more := connection.recv(1 << 16)):
                received += more
        return received


@contextmanager
def _serving(folder: Path) -> Iterator[Site]:
    site = Site(folder)
    try:
        yield site
        site.server.stop()
    finally:
        site.server.kill()
    site.check_files()


def fuzz(seconds: float, seed: int, folder: Path) -> Counter[str]:
    """Log in until the time is over; return how often each way let a request in, or refused it."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    with _serving(folder) as site:
        maker, attempts = Maker(site, draw), Attempts(site, draw)
        ways = {"grpc": attempts.by_grpc, "http/2": attempts.by_http2, "http/1": attempts.by_http1}
        right: Fields = [(b"authorization", b"Bearer " + site.token.encode())]
        before, ends = 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            if sum(counts.values()) % _ATTEMPTS_A_LOOK == 0:
                for name, way in ways.items():
                    assert way(right), f"{name}: refused with the right token"
                before = before or site.resident_bytes()
            name, way = draw.choice(list(ways.items()))
            fields = maker.fields()
            is_in = way(fields)
            assert not is_in or site.has_secret(fields), f"{name}: let in with {fields}"
            counts[f"{name} {'not sent' if is_in is None else 'in' if is_in else 'refused'}"] += 1
        give_up = time.monotonic() + _WAIT_SECONDS_MAX
        while (grown := site.resident_bytes() - before) >= GROWN_BYTES_MAX:  # a password may still be verified
            assert time.monotonic() < give_up, f"the server has {grown:,} bytes more than at first"
            time.sleep(0.05)
    return counts


def main() -> None:
    """Fuzz for some seconds; fail at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"fuzzing logins for {options.seconds:.0f} s; repeat with --seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        counts = fuzz(options.seconds, options.seed, Path(folder))
    print(", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
