"""The options by which a server lets a command in: which of them wins, what is refused, and who uses them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpkvs.cli.main import app as gpkvs
from gpkvs.cli.options.access import takes_access
from gpkvs.credentials import VARIABLES, Access, TlsCredentials
from gpkvs.errors import InvalidArgumentError
from tests.accounts import Account, Accounts
from tests.certificates import Authority, server_options
from tests.server.access.guarded import Guarded
from tests.server.redis.two_servers import Connection, redis_server
from tests.serving import COMMAND

SECRET = "gpkvs_0123abcd_SECRET"

app = typer.Typer()


@app.command()
@takes_access
def show(access: Access) -> None:
    tls = access.credentials
    shown = [str(tls.ca), str(tls.cert), str(tls.key)] if isinstance(tls, TlsCredentials) else None
    typer.echo(json.dumps([shown, access.token, access.user, access.password]))


def made(*arguments: str, env: dict[str, str] | None = None) -> list[object]:
    result = CliRunner().invoke(app, arguments, env=env)
    assert result.exit_code == 0, result.output
    made: list[object] = json.loads(result.stdout)
    return made


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(app, arguments, env=env)
    assert result.exit_code == 2, result.output
    assert SECRET not in result.output
    return result.output


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run the command line in this process, which starts sooner."""
    result = CliRunner().invoke(gpkvs, arguments, env=env)
    assert result.exit_code == 0, (arguments, result.output)
    return result.stdout


def failed(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(gpkvs, arguments, env=env)
    assert result.exit_code == 2, (arguments, result.output)
    return " ".join(result.output.split())


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_nothing_is_nothing() -> None:
    assert made() == [None, None, None, None]


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = private(tmp_path / "c.toml", 'ca = "file.pem"\nuser = "of-file"\npassword = "file"\n')
    ca = str(tmp_path / "file.pem")  # beside the file that names it
    tls = [ca, "None", "None"]
    assert made("--credentials", file) == [tls, None, "of-file", "file"]
    env = {"GPKVS_CREDENTIALS": file, "GPKVS_PASSWORD": "env", "GPKVS_CLIENT_TLS_CA": "env.pem"}
    assert made(env=env) == [["env.pem", "None", "None"], None, "of-file", "env"]
    assert made("--user", "typed", "--tls-ca", "typed.pem", env=env) == [
        ["typed.pem", "None", "None"], None, "typed", "env"
    ]  # fmt: skip
    token = private(tmp_path / "token", f"{SECRET}\n")
    assert made("--token-file", token, env=env | {"GPKVS_TOKEN": "other"})[1:] == [SECRET, None, None]
    assert made(env=env | {"GPKVS_USER": "env"})[2:] == ["env", "env"]


def test_the_environment_of_a_server_is_not_that_of_its_clients() -> None:
    assert (
        made(env={"GPKVS_TLS_CERT": "server.pem", "GPKVS_TLS_KEY": "server.key", "GPKVS_USERS": "users.toml"})[0]
        is None
    )


def test_all_variables_are_known_to_those_that_must_not_inherit_them() -> None:
    options = typer.main.get_command(app).params
    variables = {option.envvar for option in options if option.envvar}  # type: ignore[attr-defined]
    assert variables | {"GPKVS_TOKEN", "GPKVS_PASSWORD"} == VARIABLES


def test_a_token_from_a_pipe_is_taken() -> None:
    reading, writing = os.pipe()
    os.write(writing, SECRET.encode())
    os.close(writing)
    assert made("--token-file", f"/dev/fd/{reading}")[1] == SECRET
    os.close(reading)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", " \n"])
def test_a_token_ends_before_the_end_of_its_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_bytes((SECRET + end).encode())
    assert made("--token-file", str(file))[1] == SECRET


def test_a_token_with_the_end_of_its_line_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^token: .* such as the end of its line \(strip\)$"):
        Access(token=f"{SECRET}\n")
    with pytest.raises(InvalidArgumentError, match=r"characters only$"):
        Access(token="two words")


@pytest.mark.parametrize("option", ["--credentials", "--token-file", "--password-file"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, option: str, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(f'token = "{SECRET}"')
    file.chmod(mode)
    assert "chmod 600" in refused(option, str(file), "--user=a") if "pass" in option else refused(option, str(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'tokens = "{SECRET}"', "no key 'tokens'"),
        (f'token = ["{SECRET}"]', "token is no text"),
        ('tls = "yes"', "tls is no true or false"),
        (f'token = "{SECRET}', "no TOML"),
        (f'token = "{SECRET}"\nuser = "a"', "not both"),
        (f'password = "{SECRET}"', "a password needs a user"),
        ('cert = "a.pem"', "needs its private key"),
        ("\udc80", "not UTF-8"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    file.chmod(0o600)
    assert words in refused("--credentials", str(file))


def test_options_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    token = private(tmp_path / "token", SECRET)
    assert "not both" in refused("--token-file", token, "--user", "a")
    assert "one of them only" in refused(env={"GPKVS_TOKEN": SECRET, "GPKVS_TOKEN_FILE": token})
    assert "needs a password" in refused("--user", "a")
    assert "cannot read" in refused("--token-file", str(tmp_path / "missing"))


@dataclass
class Place:
    """A server with TLS and users, and the options of a command that may do everything."""

    guarded: Guarded
    options: list[str]
    reader: list[str]
    writer: list[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("options")
    authority = Authority(folder)
    accounts = Accounts(
        folder / "users.toml",
        root=Account(admin=("*",), read=("*",), write=("*",), metrics=True),
        reader=Account(read=("*",), password="pass:wörd"),
        writer=Account(write=("*",)),
    )
    server = authority.issue("server", "DNS:localhost", "IP:127.0.0.1")
    guarded = Guarded(accounts, folder, *server_options(server), authority=authority)
    tokens = {
        name: private(folder / name, guarded.headers[name][0][1].removeprefix("Bearer ")) for name in ("root", "writer")
    }
    password = private(folder / "password", "pass:wörd\n")
    ca = f"--tls-ca={authority.path}"
    root, writer = ([ca, f"--token-file={token}"] for token in tokens.values())
    yield Place(guarded, root, [ca, "--user=reader", f"--password-file={password}"], writer)
    guarded.close()


def test_every_command_gets_in(place: Place, tmp_path: Path) -> None:
    target = ["--target", place.guarded.server.target]
    exported = str(tmp_path / "export")
    for command in (
        ["table", "create", "t", "--layout=u64"],
        ["set", "7", "8", "--table=t"],
        ["set", "k", "v"],
        ["append", "k", "w"],
        ["incr", "n"],
        ["expire", "n", "1000"],
        ["ttl", "n"],
        ["exists", "k"],
        ["scan"],
        ["count"],
        ["info"],
        ["table", "list"],
        ["export", "--out", exported],
        ["import", exported],
        ["ycsb", "load", "--workload=a", "-p", "recordcount=2"],
        ["table", "drop", "t", "--yes"],
    ):
        run(*command, *target, *place.options)
    metrics = ["--metrics", place.guarded.server.metrics_address]
    assert "serving" in run("top", "--once", "--interval=0.05", *metrics, *place.options)


def test_who_may_read_needs_no_more_for_a_table_of_numbers(place: Place) -> None:
    target = ["--target", place.guarded.server.target]
    run("table", "create", "numbers", "--layout=u64", *target, *place.options)
    run("set", "7", "8", "--table=numbers", *target, *place.options)
    assert run("get", "7", "--table=numbers", *target, *place.reader) == "8"
    assert "may not write table 'numbers'" in failed("set", "7", "9", "--table=numbers", *target, *place.reader)


def test_who_may_write_needs_no_more_for_a_table_of_numbers(place: Place) -> None:
    target = ["--target", place.guarded.server.target]
    run("table", "create", "written", "--layout=u64", *target, *place.options)
    run("set", "7", "8", "--table=written", *target, *place.writer)
    assert run("get", "7", "--table=written", *target, *place.reader) == "8"


@pytest.mark.parametrize("layout", ["u64", "bytes", "int16[2]"])
def test_who_may_read_exports_and_who_may_write_imports(place: Place, tmp_path: Path, layout: str) -> None:
    target, out = ["--target", place.guarded.server.target], str(tmp_path / "out")
    table, value = f"backup-{layout[:5]}", "[1, -2]" if layout == "int16[2]" else "87654321"
    run("table", "create", table, f"--layout={layout}", *target, *place.options)
    run("set", "12345678", value, f"--table={table}", *target, *place.writer)
    assert "may not read" in failed("export", "--out", out, f"--table={table}", *target, *place.writer)
    run("export", "--out", out, f"--table={table}", *target, *place.reader)
    assert "may not write" in failed("import", out, *target, *place.reader)
    assert "may not administer" in failed("import", out, "--create", *target, *place.writer)
    run("delete", "12345678", f"--table={table}", *target, *place.writer)
    assert "1 record stored" in run("import", out, *target, *place.writer)
    assert run("get", "12345678", f"--table={table}", *target, *place.reader) == value
    other_layout = {"u64": "bytes", "bytes": "u64", "int16[2]": "int16[1,2]"}[layout]
    other = f"{table}-as-another"
    run("table", "create", other, f"--layout={other_layout}", *target, *place.options)
    assert f"of the layout {layout}, table '{other}' has {other_layout}" in failed(
        "import", out, f"--table={other}", *target, *place.writer
    )


def test_who_may_write_imports_from_redis(place: Place, tmp_path: Path) -> None:
    with redis_server(tmp_path) as port, Connection(port) as redis:
        redis.call(b"SET", b"from redis", b"v")
        words = ["import", f"--from-redis=127.0.0.1:{port}", "--target", place.guarded.server.target]
        assert "may not write" in failed(*words, *place.reader)
        assert "1 record stored" in run(*words, *place.writer)


def test_what_those_hear_who_do_not_get_in(place: Place) -> None:
    target, metrics = place.guarded.server.target, place.guarded.server.metrics_address
    ca = place.options[0]
    assert "UNAUTHENTICATED: log in" in failed("get", "k", "--target", target, ca)
    assert "wants TLS" in failed("get", "k", "--target", target, "--timeout=1")
    assert "not trusted" in failed("get", "k", "--target", target, "--tls")
    assert "log in: send a token" in (said := failed("top", "--metrics", metrics, ca))
    assert "--token-file" in said
    assert "user reader may not read the metrics" in failed("top", "--metrics", metrics, *place.reader)
    assert "With TLS: --tls" in failed("top", "--metrics", metrics)
    assert "unencrypted" in failed("top", "--metrics", "db.example:1", env={"GPKVS_TOKEN": SECRET})


@pytest.mark.parametrize(("more", "is_loud"), [({}, False), ({"GRPC_VERBOSITY": "INFO"}, True)])
def test_grpc_prints_no_line_of_its_own_unless_asked(place: Place, more: dict[str, str], is_loud: bool) -> None:
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | more
    command = [*COMMAND, "get", "k", "--target", place.guarded.server.target, "--tls"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "not trusted" in done.stderr
    assert ("Handshake failed" in done.stderr) == is_loud


def test_an_export_is_of_a_server_or_of_a_directory(tmp_path: Path) -> None:
    assert "give one" in failed("export", f"--out={tmp_path / 'e'}", f"--data={tmp_path}", "--target=127.0.0.1:1")
