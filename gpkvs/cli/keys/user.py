"""gpkvs user: the users of a server, in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.cli.keys.users_file import edit_users
from gpkvs.cli.options.access import read_private
from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.terminal.exit_status import EVERY, exits
from gpkvs.cli.terminal.output import AsJson, confirm, failures_exit, print_json
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access.passwords import PASSWORD_BYTES_MAX, hash_password
from gpkvs.server.access.users import (
    CERTIFICATE_NAME_RULE,
    USER_NAME,
    USER_NAME_RULE,
    Token,
    User,
    UsersError,
    certificate_name,
    load_users,
    make_token,
)
from gpkvs.text import no_such, quoted

app = typer.Typer(
    help="Make, change and remove the users of a server, in the file that `gpkvs serve --users` reads.\n\n"
    "A running server reads it again within a second. Nothing in it lets anybody log in: of passwords and tokens it "
    "holds hashes.\n\n"
    "Example: `export GPKVS_USERS=users.toml; gpkvs user add alice --create --read '*' --write 'orders.*'; "
    "gpkvs user token alice --note ci`",
    epilog=EVERY,
    no_args_is_help=True,
)

DAYS_USUAL = 90

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"The user: {USER_NAME_RULE}.")]
File = Annotated[Path, typer.Option("--users", help="The file of users.", envvar="GPKVS_USERS", metavar="FILE")]
_PATTERNS = "Tables, as a pattern: * stands for any characters. May be repeated"
Read = Annotated[list[str] | None, typer.Option(help=f"What the user may read. {_PATTERNS}.", metavar="PATTERN")]
Write = Annotated[list[str] | None, typer.Option(help=f"What the user may write. {_PATTERNS}.", metavar="PATTERN")]
Admin = Annotated[
    list[str] | None,
    typer.Option(help=f"What the user may make and drop; '*' is also the server. {_PATTERNS}.", metavar="PATTERN"),
]
Metrics = Annotated[bool | None, typer.Option(help="Whether the user may read the metrics.", show_default=False)]
Backup = Annotated[
    bool | None,
    typer.Option(help="Whether the user may read all tables, to back them up or to follow them.", show_default=False),
]


@app.command("add")
@exits({0: "made", EXIT_FAILED: "failed; the file is as it was"})
def add_command(
    name: Name,
    read: Read = None,
    write: Write = None,
    admin: Admin = None,
    metrics: Metrics = None,
    backup: Backup = None,
    create: Annotated[bool, typer.Option("--create", help="Make the file too, if it is missing.")] = False,
    *,
    file: File,
) -> None:
    """Make a user. Without a pattern, the user may do nothing.

    The user cannot log in before one of `gpkvs user token`, `password` and `certificate`.

    Example: `gpkvs user add alice --create --read '*' --write orders --write 'orders.*'`
    """
    rights = _given(read=read, write=write, admin=admin, metrics=metrics, backup=backup)

    def add(users: dict[str, Any]) -> None:
        if name in users:
            raise UsersError(f"there is a user {quoted(name)} already: `gpkvs user rights` changes what it may do")
        users[name] = rights

    with failures_exit(EXIT_FAILED):
        if not USER_NAME.fullmatch(name):
            raise InvalidArgumentError(f"{quoted(name)}: allowed are {USER_NAME_RULE}", field="name")
        edit_users(file, add, create=create)
    typer.echo(f"{name} cannot log in yet: gpkvs user token {name}, or password, or certificate", err=True)


@app.command("rights")
@exits({0: "changed", EXIT_FAILED: "failed; the file is as it was"})
def rights_command(
    name: Name,
    read: Read = None,
    write: Write = None,
    admin: Admin = None,
    metrics: Metrics = None,
    backup: Backup = None,
    *,
    file: File,
) -> None:
    """Change what a user may do. An option that is given replaces all of its kind; '' takes them away.

    Example: `gpkvs user rights alice --write 'orders.*' --admin ''`
    """
    rights = _given(read=read, write=write, admin=admin, metrics=metrics, backup=backup)
    with failures_exit(EXIT_FAILED):
        if not rights:
            raise InvalidArgumentError(
                "say what the user may do: --read, --write, --admin, --metrics, --backup", field="rights"
            )
        _edit(file, name, lambda user: user.update(rights))


def _given(*, metrics: bool | None, backup: bool | None, **patterns: list[str] | None) -> dict[str, object]:
    """Return the rights that are given, as they stand in the file."""
    rights: dict[str, object] = {
        kind: [] if texts == [""] else list(dict.fromkeys(texts)) for kind, texts in patterns.items() if texts
    }
    switches = {"metrics": metrics, "backup": backup}
    return rights | {name: given for name, given in switches.items() if given is not None}


@app.command("token")
@exits({0: "printed, or removed", EXIT_FAILED: "failed; the file is as it was"})
def token_command(
    name: Name,
    days: Annotated[int, typer.Option(help="Days until it ends.", min=1, max=3650)] = DAYS_USUAL,
    note: Annotated[str, typer.Option(help="What it is for.", metavar="TEXT")] = "",
    remove: Annotated[
        str, typer.Option(help="Remove the token of this id instead; `gpkvs user list` shows it.", metavar="ID")
    ] = "",
    *,
    file: File,
) -> None:
    """Make a token for a user and print it: once, it is nowhere else. Or remove one.

    Example: gpkvs user token alice --days 30 --note ci > token
    """
    with failures_exit(EXIT_FAILED):
        if remove:
            _edit(file, name, lambda user: _remove_token(user, name, remove))
            return
        text, token_id, sha256 = make_token()
        now = datetime.now(UTC).replace(microsecond=0)
        ends = now + timedelta(days=days)
        token = {"sha256": sha256.hex(), "created": now, "ends": ends, **({"note": note} if note else {})}
        _edit(file, name, lambda user: _add_token(user, token_id, token))
    typer.echo(text)
    typer.echo(f"this is token {token_id} of {name} until {ends:%Y-%m-%d}; it is not shown again", err=True)


def _add_token(user: dict[str, Any], token_id: str, token: dict[str, object]) -> None:
    if "tokens" in user:
        user["tokens"][token_id] = token
    else:
        user["tokens"] = {token_id: token}


def _remove_token(user: dict[str, Any], name: str, token_id: str) -> None:
    tokens = user.get("tokens", {})
    if token_id not in tokens:
        raise UsersError(_no_such(f"token of {name}", token_id, list(tokens)))
    del tokens[token_id]
    if not tokens:
        del user["tokens"]


@app.command("password")
@exits({0: "set, or removed", 1: "you typed none", EXIT_FAILED: "failed; the file is as it was"})
def password_command(
    name: Name,
    password_file: Annotated[
        Path | None,
        typer.Option(help="Take the password from a file, without the line's end.", metavar="FILE", dir_okay=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the password instead.")] = False,
    *,
    file: File,
) -> None:
    """Set a user's password. It is asked for twice; without a terminal, it is what stdin brings.

    Example: gpkvs user password alice --password-file secret
    """
    with failures_exit(EXIT_FAILED):
        if remove:
            _edit(file, name, lambda user: user.pop("password", None))
            return
        _find(file, name)  # before anybody types a password
        hashed = hash_password(_password(name, password_file))
        _edit(file, name, lambda user: user.update(password=hashed))


def _password(name: str, file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    size = PASSWORD_BYTES_MAX + len("\r\n") + 1
    data = sys.stdin.buffer.read(size) if file is None else read_private(file, size)
    return data.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")


@app.command("certificate")
@exits({0: "given, or taken away", EXIT_FAILED: "failed; the file is as it was"})
def certificate_command(
    name: Name,
    certificates: Annotated[list[str], typer.Argument(metavar="SAN...", help=f"{CERTIFICATE_NAME_RULE}.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take them away instead.")] = False,
    *,
    file: File,
) -> None:
    """Let who shows a certificate of such a name log in as a user, without a password.

    The server must know the CA of the certificate: `gpkvs serve --tls-client-ca`.

    Example: gpkvs user certificate alice DNS:alice.example URI:spiffe://example/alice
    """
    with failures_exit(EXIT_FAILED):
        names = dict.fromkeys(map(_certificate_name, certificates))

        def change(user: dict[str, Any]) -> None:
            there = dict.fromkeys(map(_certificate_name, user.get("certificates", [])))
            if remove:
                for missing in names.keys() - there:
                    raise UsersError(_no_such(f"certificate of {name}", missing, list(there)))
                there = {each: None for each in there if each not in names}
            user["certificates"] = list(there | ({} if remove else names))

        _edit(file, name, change)


def _certificate_name(text: str) -> str:
    name = certificate_name(text)
    if name is None:
        raise InvalidArgumentError(f"{quoted(text)}: it has to be {CERTIFICATE_NAME_RULE}", field="certificate")
    return name


@app.command("remove")
@exits({0: "removed", 1: "you said no", EXIT_FAILED: "failed; the file is as it was"})
def remove_command(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    *,
    file: File,
) -> None:
    """Remove a user; a server ends the user's calls and connections within a second."""
    with failures_exit(EXIT_FAILED):
        _find(file, name)
        if not yes:
            confirm(f"Remove user {name} of {file}?")
        edit_users(file, lambda users: users.pop(_there(users, name)))


@app.command("list")
@exits({0: "shown", EXIT_FAILED: "the file cannot be used"})
def list_command(*, file: File, as_json: AsJson = False) -> None:
    """Show all users: how they log in, and what they may do."""
    with failures_exit(EXIT_FAILED):
        users = load_users(file).by_name.values()
    now = datetime.now(UTC)
    if as_json:
        print_json([_as_dict(user, now) for user in users])
        return
    for user in users:
        typer.echo("\n".join([user.name, *_lines(user, now)]))


def _lines(user: User, now: datetime) -> Iterator[str]:
    """Yield a line for each way to log in and each right."""
    rights = user.rights
    shown = {
        "password": ["yes"] if user.password else [],
        "certificate": user.certificates,
        "token": [_token_line(token, now) for token in user.tokens.values()],
        "read": rights.read.texts,
        "write": rights.write.texts,
        "admin": rights.admin.texts,
        "metrics": ["yes"] if rights.metrics or rights.admin_everywhere else [],
        "backup": ["yes"] if rights.backup else [],
    }
    for kind, texts in shown.items():
        for text in texts:
            yield f"  {kind:<12}{text}"


def _token_line(token: Token, now: datetime) -> str:
    note = f": {token.note}" if token.note else ""
    return f"{token.id} {'ended' if token.ends <= now else 'until'} {token.ends:%Y-%m-%d}{note}"


def _as_dict(user: User, now: datetime) -> dict[str, object]:
    rights = user.rights
    return {
        "name": user.name,
        "password": user.password is not None,
        "certificates": user.certificates,
        "tokens": [
            {
                "id": token.id,
                "created": token.created.isoformat(),
                "ends": token.ends.isoformat(),
                "has_ended": token.ends <= now,
                "note": token.note,
            }
            for token in user.tokens.values()
        ],
        "read": rights.read.texts,
        "write": rights.write.texts,
        "admin": rights.admin.texts,
        "metrics": rights.metrics,
        "backup": rights.backup,
    }


def _edit(file: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a user of the file."""
    edit_users(file, lambda users: change(users[_there(users, name)]))


def _find(file: Path, name: str) -> None:
    _there(load_users(file).by_name, name)


def _there(users: Any, name: str) -> str:
    """Return the name of a user that is there."""
    if name not in users:
        raise UsersError(_no_such("user", name, list(users)))
    return name


def _no_such(noun: str, name: str, names: list[str]) -> str:
    return no_such(noun, name, names) if names else f"there is no {noun} {quoted(name)}; there are none"
