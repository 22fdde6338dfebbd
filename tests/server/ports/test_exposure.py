"""Beyond this machine the server serves nothing plain, and nobody unknown, unless it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpkvs.config import ServerConfig
from gpkvs.server.ports.address import Address
from gpkvs.server.ports.exposure import exposure_faults, warn_of_exposure
from tests.serving import error_line, run_gpkvs

HERE = (Address("127.0.0.1", 1), Address("localhost", 1), Address("::1", 1))
BEYOND = (Address("0.0.0.0", 1), Address("::", 1), Address("192.0.2.1", 1), Address("host.example", 1))
CERT, CA, USERS = {"tls_cert": Path("cert")}, {"tls_client_ca": Path("ca")}, {"users": Path("users")}
UNPROTECTED: list[tuple[dict[str, Any], str]] = [
    ({}, "no TLS, and no login by users or client certificates"),
    (USERS, "no TLS"),
    (CERT, "no login by users or client certificates"),
]


@pytest.mark.parametrize("address", BEYOND)
@pytest.mark.parametrize(("settings", "missing"), UNPROTECTED)
def test_refused_beyond_this_machine(address: Address, settings: dict[str, Any], missing: str) -> None:
    for option in ("listen", "metrics", "resp"):
        (fault,) = exposure_faults(ServerConfig(**settings), option, address)
        assert f"{option}: other machines reach {address}, and there is {missing}: " in str(fault)
        for way_out in ("--tls-cert", "--tls-key", "--users", "--tls-client-ca", "--insecure-listen"):
            assert way_out in str(fault)


@pytest.mark.parametrize("address", BEYOND)
@pytest.mark.parametrize("settings", [CERT | CA, CERT | USERS, CERT | CA | USERS])
def test_protected(address: Address, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert not list(exposure_faults(ServerConfig(**settings), "listen", address))
    warn_of_exposure(ServerConfig(**settings), address, address, address)
    assert not caplog.records


@pytest.mark.parametrize("address", HERE)
def test_this_machine_needs_nothing(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    assert not list(exposure_faults(ServerConfig(), "listen", address))
    warn_of_exposure(ServerConfig(), address, address)
    assert not caplog.records


@pytest.mark.parametrize(("settings", "missing"), UNPROTECTED)
def test_allowed_with_a_warning(settings: dict[str, Any], missing: str, caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(**settings, insecure_listen=True)
    assert not [fault for address in BEYOND for fault in exposure_faults(config, "listen", address)]
    warn_of_exposure(config, *BEYOND[:3])
    assert [record.getMessage() for record in caplog.records] == [
        f"gRPC on 0.0.0.0:1: there is {missing} (--insecure-listen): trust everybody on that network",
        f"metrics on [::]:1: there is {missing} (--insecure-listen): trust everybody on that network",
        f"Redis protocol on 192.0.2.1:1: there is {missing} (--insecure-listen): trust everybody on that network",
    ]


def test_the_server_refuses_to_start(tmp_path: Path) -> None:
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--listen", "0.0.0.0:0")
    assert "listen: other machines reach 0.0.0.0:0" in error_line(result, 2)
    assert not (tmp_path / "store").exists()
