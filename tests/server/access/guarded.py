"""A server with users, for the tests of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpkvs.proto.v1 import kv_pb2
from tests.accounts import Accounts, Header
from tests.serving import Server


class Guarded:
    """A server with users, and the header of a token for each of them."""

    def __init__(self, accounts: Accounts, folder: Path, *options: str, **how: Any) -> None:
        self.accounts = accounts
        self.headers: dict[str, Header] = {name: accounts.token(name) for name in accounts.users}
        accounts.save()
        self.server = Server(folder / "store", folder, "--users", str(accounts.path), *options, **how)
        self.server.metrics_headers = {"Authorization": self.headers["root"][0][1]}
        self.secrets = [header[0][1].removeprefix("Bearer ") for header in self.headers.values()]
        self.secrets += [user.password for user in accounts.users.values() if user.password]

    def get(self, *header: tuple[str, str]) -> kv_pb2.GetResponse:
        return self.server.kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header)

    def close(self) -> None:
        """Stop the server; its log must hold no traceback and no secret."""
        try:
            self.server.stop()
        finally:
            self.server.kill()
        log = self.server.log.read_text()
        assert "Traceback" not in log
        assert not [secret for secret in self.secrets if secret in log]
