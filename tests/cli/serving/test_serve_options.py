"""The options of `gpkvs serve`, as far as they are read before anything is opened."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpkvs.cli.main import app
from gpkvs.cli.options.config_options import options_from_configs
from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.config import Limits, ServerConfig, StoreConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.account.message_limits import message_limits
from gpkvs.server.ports.address import Address, parse_address
from gpkvs.server.setting_checks import setting_faults
from gpkvs.text import readable_bytes

# Nothing of the suite's own choice of a backend.
ENVIRONMENT = {"COLUMNS": "1000", "GPKVS_BACKEND": None}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen = 'x'", ["there is no setting 'lisen'", "the nearest names are listen"]),
        ("tls-cert = 'x'", ["there is no setting 'tls-cert'", "the nearest names are tls_cert"]),
        ("config = 'x'", ["there is no setting 'config'"]),
        ("listen = [", ["cannot read"]),
        ("[server]\nlisten = 'x'", ["there is no setting 'server'"]),
        ("listen = ['x']", ["listen takes one value"]),
        ("index_bytes = '64 parsecs'", ["'64 parsecs' is no size"]),
        ("request_ops_max = 0", ["--request-ops-max"]),
        ("backend = 'abacus'", ["abacus", "cuda"]),
    ],
)
def test_bad_settings_file(tmp_path: Path, text: str, words: list[str]) -> None:
    file, data = tmp_path / "gpkvs.toml", tmp_path / "store"
    file.write_text(text)
    result = CliRunner().invoke(
        app, ["serve", "--config", str(file), "--data", str(data)], env={"COLUMNS": "1000", "GPKVS_BACKEND": None}
    )
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr
    assert not data.exists()


def test_missing_settings_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["serve", "--config", str(tmp_path / "none.toml")], env={"COLUMNS": "1000", "GPKVS_BACKEND": None}
    )
    assert result.exit_code == 2
    assert "No such file" in result.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), (4096, 4096), ("1KiB", 1024), ("64 MiB", 64 << 20), ("1.5gib", 3 << 29), ("7B", 7)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1MB", "1 2", "1e6", "64MiBB"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7171", Address("127.0.0.1", 7171)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text, "listen") == address
    assert str(address) == text
    assert address.is_loopback


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "127.0.0.1", ":7171", "127.0.0.1:65536", "127.0.0.1:x", "::1:7171", "[]:1", "[127.0.0.1]:1"],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"metrics: .* is not HOST:PORT"):
        parse_address(text, "metrics")


@pytest.mark.parametrize("message_bytes_max", [64 << 10, 1 << 20, 64 << 20, 1 << 30])
def test_every_response_fits_one_message(message_bytes_max: int) -> None:
    limits = message_limits(Limits(), message_bytes_max)
    largest = limits.result_bytes_max + (1 + 8 + 4) * limits.request_ops_max + 64
    assert largest <= message_bytes_max
    assert limits.value_bytes_max <= limits.result_bytes_max


@pytest.mark.parametrize("size", [65_535, 1 << 31])
def test_a_message_must_hold_something_and_grpc_must_take_it(size: int) -> None:
    (fault,) = setting_faults(StoreConfig(), ServerConfig(message_bytes_max=size))
    assert str(fault) == f"message_bytes_max: {size:,} bytes, allowed are 65,536 to 2,147,483,647"


def test_default_limits_are_those_of_the_protocol() -> None:
    limits = message_limits(Limits(), 64 << 20)
    assert (limits.key_bytes_max, limits.request_ops_max) == (4096, 1 << 20)
    assert limits.value_bytes_max == limits.result_bytes_max > 16 << 20  # a store of format 3 has less


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 3 << 29, 64 << 20, 5 << 40])
def test_a_size_that_is_shown_can_be_given(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


def test_a_default_is_shown_in_the_largest_unit() -> None:
    assert [format_bytes(size) for size in (1000, 4096, 64 << 20, 3 << 29)] == ["1000", "4KiB", "64MiB", "1536MiB"]


def test_a_size_is_read_in_the_largest_unit_of_which_it_has_one() -> None:
    sizes = (1023, 1024, 3 << 29, (1 << 30) - (1 << 20), 5 << 40, 2500 << 40)
    shown = ["1,023 B", "1.0 KiB", "1.5 GiB", "1,023.0 MiB", "5.0 TiB", "2,500.0 TiB"]
    assert [readable_bytes(size) for size in sizes] == shown


def test_options_make_the_configs_that_are_their_source() -> None:
    made: list[object] = []

    @options_from_configs
    def command(before: int, store: StoreConfig, server: ServerConfig, after: int = 3) -> None:
        made.extend((before, store, server, after))

    options = inspect.signature(command).parameters
    given = {name: option.default for name, option in options.items()} | {"before": 1}
    command(**given)
    assert made == [1, StoreConfig(), ServerConfig(), 3]
    command(**given | {"memory_max": 5, "value_bytes_max": 6, "threads": 7})
    assert made[4:] == [
        1,
        StoreConfig(threads=7, limits=Limits(value_bytes_max=6)),
        ServerConfig(memory_bytes_max=5),
        3,
    ]
    assert not options.keys() & {"store", "server", "limits", "memory_bytes_max", "key_bytes_min"}
