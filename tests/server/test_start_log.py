"""The log of a start says who may come in."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpkvs.config import ServerConfig
from gpkvs.server.access.users import Rights, User, Users
from gpkvs.server.start_log import log_access

FILES = {"users": Path("users.toml"), "audit_log": Path("audit.log")}
BILLING = User("billing", None, ("DNS:a", "DNS:b"), {}, Rights())
ALICE = User("alice", None, (), {}, Rights())


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpkvs.server")


def test_who_may_come_in(caplog: pytest.LogCaptureFixture) -> None:
    log_access(ServerConfig(), None)
    log_access(ServerConfig(**FILES, tls_client_ca=Path("ca.pem")), Users([ALICE, BILLING]))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "logins: not asked for; client certificates: not asked for; audit log: none"),
        ("INFO", "logins: 2 users of users.toml; client certificates: of ca.pem; audit log: audit.log"),
    ]


def test_certificates_that_nobody_can_show(caplog: pytest.LogCaptureFixture) -> None:
    log_access(ServerConfig(**FILES), Users([ALICE, BILLING]))
    assert caplog.records[-1].levelname == "WARNING"
    assert "1 user of users.toml cannot log in with certificates" in caplog.text
    caplog.clear()
    log_access(ServerConfig(**FILES), Users([ALICE]))
    assert [record.levelname for record in caplog.records] == ["INFO"]
