"""Fuzzing of who is let in: broken, near and hostile headers, by hand over HTTP/2, to a real server with users.

``python -m tests.server.access.fuzz_headers --seconds 60 --seed 7``. Nobody is let in without the whole secret; the
server stays up and small, and neither its log nor its audit log holds a traceback or a part of a secret.
"""

from __future__ import annotations

import argparse
import base64
import random
import secrets
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpkvs.bench.server.process_usage import resident
from gpkvs.proto.v1 import kv_pb2
from tests.accounts import Account, Accounts
from tests.server.access.guarded import Guarded
from tests.server.hostile import connection_with_call, is_answered

PATH = "/gpkvs.v1.KV/Get"
MESSAGE = kv_pb2.GetRequest(key=b"k").SerializeToString()
NAME = "authorization"
PASSWORD = "correct horse, battery: staple"
GROWTH_BYTES_MAX = 96 << 20
PART = slice(20, 40)  # of a token: so much of a secret must not be seen anywhere

Headers = list[tuple[str, str | bytes]]


class Fuzzer:
    """Makes headers; all of them follow from the seed and the secrets."""

    def __init__(self, choose: random.Random, tokens: list[str]) -> None:
        self._choose = choose
        self._tokens = tokens
        # A password takes the server a hundred times as long as a token.
        self._kinds: dict[Callable[[], Headers], int] = {
            self._near_token: 50,
            self._mixed_tokens: 20,
            self._mutated: 50,
            self._scheme: 20,
            self._twice: 20,
            self._other_name: 4,
            self._huge: 10,
            self._noise: 20,
            self._basic: 2,
        }

    def headers(self) -> tuple[str, Headers]:
        """Return headers that may let nobody in but by the whole secret, and what kind they are."""
        (kind,) = self._choose.choices(list(self._kinds), list(self._kinds.values()))
        return kind.__name__, kind()

    def _token(self) -> str:
        return self._choose.choice(self._tokens)

    def _near_token(self) -> Headers:
        """Return the header of a token of which one bit, one letter's case or one character is another."""
        token = bytearray(self._token().encode())
        at = self._choose.randrange(len(token))
        match self._choose.randrange(4):
            case 0:
                token[at] ^= 1 << self._choose.randrange(7)
            case 1:
                token[at:at] = self._choose.choice([b"\t", b" ", b"=", b"A", b"\x00"])
            case 2:
                del token[at : self._choose.choice([at + 1, len(token)])]
            case _:
                token = bytearray(self._choose.choice([bytes.upper, bytes.swapcase, bytes.lower])(bytes(token)))
        return [(NAME, b"Bearer " + bytes(token))]

    def _mixed_tokens(self) -> Headers:
        """Return the id of one token with the secret of another, or with a new one."""
        one, other = self._choose.sample(self._tokens, 2)
        new = base64.urlsafe_b64encode(self._choose.randbytes(32)).rstrip(b"=").decode()
        return [(NAME, f"Bearer {one[:15]}{self._choose.choice([other[15:], new])}")]

    def _mutated(self) -> Headers:
        value = bytearray(f"Bearer {self._token()}".encode())
        for _ in range(self._choose.randint(1, 6)):
            at = self._choose.randrange(len(value) + 1)
            value[at : at + self._choose.randrange(4)] = self._choose.randbytes(self._choose.randrange(4))
        return [(NAME, bytes(value))]

    def _scheme(self) -> Headers:
        schemes = ("", "Bearer", "Bearer:", "BASIC ", "Token ", "Bearer Bearer ", "bearer\t", "\u00a0Bearer ")
        return [(NAME, self._choose.choice(schemes) + self._token())]

    def _twice(self) -> Headers:
        value = f"Bearer {self._token()}"
        return [(NAME, value)] * self._choose.choice([2, 2, 3, 100])

    def _other_name(self) -> Headers:
        names = ("Authorization", "authorization-bin", "proxy-authorization", "authorization ", "cookie")
        return [(self._choose.choice(names), f"Bearer {self._token()}")]

    def _huge(self) -> Headers:
        size = self._choose.choice([1_000, 8_000, 16_000, 70_000])
        filler = self._choose.choice(["A", "\u00e9", ".", " "])
        return [(NAME, f"{self._choose.choice(['Bearer ', 'Basic ', ''])}{filler * size}{self._token()}")]

    def _noise(self) -> Headers:
        return [(NAME, self._choose.randbytes(self._choose.randrange(200)))]

    def _basic(self) -> Headers:
        text = self._choose.choice(
            [
                f"alice:{PASSWORD[: self._choose.randrange(len(PASSWORD))]}",
                f"alice:{PASSWORD}\0",
                f"Alice:{PASSWORD}",
                f"nobody:{PASSWORD}",
                f"alice{PASSWORD}",
                f"alice:{self._token()}",
                ":" * self._choose.randrange(9),
                f"{'a' * self._choose.choice([65, 5_000])}:x",
                "\n\r\udcff:\x00\u2028",
            ]
        )
        value = base64.b64encode(text.encode(errors="surrogateescape"))
        return [(NAME, b"Basic " + value[: len(value) - self._choose.choice([0, 0, 1, 2, 5])])]


def is_let_in(target: str, headers: Headers, source: str) -> bool:
    """Make one call on a connection of its own, from an address of this machine."""
    host, port = target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0)) as connection:
        try:
            connection.sendall(connection_with_call(PATH, headers, MESSAGE))
            return is_answered(connection)
        except ConnectionError:
            return False


def has_whole_secret(headers: Headers, tokens: list[str]) -> bool:
    """Whether headers show what lets in, however they are written."""
    shown = [value if isinstance(value, bytes) else value.encode() for name, value in headers if name == NAME]
    scheme, _, text = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
    return scheme.lower() == b"bearer" and text.strip().decode("latin-1") in tokens


def fuzz(seconds: float, seed: int, folder: Path) -> Counter[str]:
    """Try headers until the time is over; return how many of each kind there were."""
    choose, tried = random.Random(seed), Counter[str]()
    users = {"alice": Account(password=PASSWORD, read=("*",)), "root": Account(admin=("*",))}
    accounts = Accounts(folder / "users.toml", **users)
    tokens = [accounts.token("alice")[0][1].removeprefix("Bearer ") for _ in range(3)]
    audit = folder / "audit.log"
    guarded = Guarded(accounts, folder, "--audit-log", str(audit))
    guarded.secrets += tokens
    try:
        server = guarded.server
        right: Headers = [(NAME, f"Bearer {tokens[0]}")]
        fuzzer = Fuzzer(choose, tokens)
        assert is_let_in(server.target, right, "127.0.0.1")
        before = resident(server.process.pid, server.data).other_bytes
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            kind, headers = fuzzer.headers()
            tried[kind] += 1
            # Failures slow an address down: each attempt comes from another one, so that each is looked at.
            source = f"127.{choose.randrange(1, 255)}.{choose.randrange(256)}.{choose.randrange(1, 255)}"
            if is_let_in(server.target, headers, source):
                assert has_whole_secret(headers, tokens), f"let in: {headers!r}"
                tried["let in"] += 1
        assert is_let_in(server.target, right, "127.0.0.1")
        growth = resident(server.process.pid, server.data).other_bytes - before
        assert growth < GROWTH_BYTES_MAX, f"the server grew by {growth >> 20} MiB"
    finally:
        guarded.close()
    noted = server.log.read_text() + audit.read_text()
    assert not [token for token in tokens if token[PART] in noted], "a part of a secret was written down"
    assert PASSWORD not in noted
    return tried


def main() -> None:
    """Fuzz for some seconds; exit 1 at the first header that does what it must not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"fuzzing for {options.seconds:.0f} s; repeat with --seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tried = fuzz(options.seconds, options.seed, Path(folder))
    print(f"{tried.total() - tried['let in']:,} headers, {tried['let in']:,} of them right after all: {dict(tried)}")


if __name__ == "__main__":
    main()
