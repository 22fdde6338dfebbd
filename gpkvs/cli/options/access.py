"""The options by which a server lets a command in: TLS, and a token or a user; also from environment and a file."""

from __future__ import annotations

import inspect
import os
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.cli.terminal.exit_status import WRONG_OPTIONS
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.credentials import Access, TlsCredentials
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import no_such

_PANEL = "Access"
_ANNOTATED: Any = Annotated  # mypy refuses a type that is known only at run time


@dataclass(frozen=True)
class _Kind:
    """An option: what its value is, and where else it comes from."""

    type: Any
    help: str
    variable: str | None = None
    metavar: str | None = None


# The variables of `gpkvs serve` have other names: a server and a client may share an environment.
_OPTIONS: Mapping[str, _Kind] = {
    "tls": _Kind(
        bool, "Use TLS, and trust the CAs of the system; --tls-ca and --tls-cert turn it on too.", "GPKVS_TLS"
    ),
    "tls_ca": _Kind(Path | None, "The CAs to trust instead, PEM.", "GPKVS_CLIENT_TLS_CA", "FILE"),
    "tls_cert": _Kind(Path | None, "The certificate to show, PEM.", "GPKVS_CLIENT_TLS_CERT", "FILE"),
    "tls_key": _Kind(Path | None, "Its private key, PEM.", "GPKVS_CLIENT_TLS_KEY", "FILE"),
    "token_file": _Kind(
        Path | None, "A file with a token; or the token itself in GPKVS_TOKEN.", "GPKVS_TOKEN_FILE", "FILE"
    ),
    "user": _Kind(str | None, "The user, if there is no token.", "GPKVS_USER", "NAME"),
    "password_file": _Kind(
        Path | None,
        "A file with the password; or the password itself in GPKVS_PASSWORD.",
        "GPKVS_PASSWORD_FILE",
        "FILE",
    ),
    "credentials": _Kind(
        Path | None,
        "A file of TOML with any of ca, cert, key, tls, token, user, password; options and environment go before it.",
        "GPKVS_CREDENTIALS",
        "FILE",
    ),
    "insecure_secrets": _Kind(bool, "Send a token or password without TLS to another machine."),
}
_SECRETS = {"token": "GPKVS_TOKEN", "password": "GPKVS_PASSWORD"}
_IN_FILE: Mapping[str, str] = {
    "ca": "tls_ca",
    "cert": "tls_cert",
    "key": "tls_key",
    "tls": "tls",
    "token": "token",
    "user": "user",
    "password": "password",
}


def takes_access(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of this file in the place of its parameter `access`, an `Access`."""
    takes_context = "context" in inspect.signature(command).parameters
    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name not in ("access", "context")
    ]
    parameters += [_parameter(name, kind) for name, kind in _OPTIONS.items()]

    @wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        options = {name: given.pop(name) for name in _OPTIONS}
        with failures_exit(WRONG_OPTIONS):
            access = _access(context, options)
        if takes_context:
            given["context"] = context
        command(**given, access=access)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, and not by the environment or its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"  # typer brings an enumeration of its own


def _parameter(name: str, kind: _Kind) -> Parameter:
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=kind.help,
        envvar=kind.variable,
        metavar=kind.metavar,
        rich_help_panel=_PANEL,
        show_default=False,
    )
    default = False if kind.type is bool else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_ANNOTATED[kind.type, option])


def _access(context: typer.Context, options: dict[str, Any]) -> Access:
    """Return what options, environment and file say together: of each the first that says something."""
    typed: dict[str, Any] = {}
    environment: dict[str, Any] = {
        name: os.environ[variable] for name, variable in _SECRETS.items() if os.environ.get(variable)
    }
    for name, value in options.items():
        if value not in (None, False):
            (typed if is_typed(context, name) else environment)[name] = value
    credentials = options["credentials"]
    layers = [typed, environment, {} if credentials is None else read_credentials(credentials)]
    return Access(_tls(layers), **_login(layers), insecure_secrets=options["insecure_secrets"])


def _first(layers: Sequence[Mapping[str, Any]], *names: str) -> Any:
    """Return the value of the first layer that has one of some names, which exclude each other."""
    for layer in layers:
        found = [name for name in names if name in layer]
        if len(found) > 1:
            raise InvalidArgumentError(f"give one of them only: {' or '.join(found)}", field=found[0])
        if found:
            value = layer[found[0]]
            return read_secret(value) if found[0].endswith("_file") else value
    return None


def _tls(layers: Sequence[Mapping[str, Any]]) -> TlsCredentials | None:
    ca, cert, key = (_first(layers, name) for name in ("tls_ca", "tls_cert", "tls_key"))
    if ca is None and cert is None and key is None and not _first(layers, "tls"):
        return None
    return TlsCredentials(ca, cert, key)


_TOKEN, _PASSWORD = ("token", "token_file"), ("password", "password_file")


def _login(layers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a token, or a user and a password: whichever comes first."""
    for layer in layers:
        has_token = any(name in layer for name in _TOKEN)
        has_user = any(name in layer for name in ("user", *_PASSWORD))
        if has_token and has_user:
            raise InvalidArgumentError("give a token, or a user and a password, not both", field="token")
        if has_token:
            return {"token": _first(layers, *_TOKEN).strip()}  # a file may end with empty lines, or be of Windows
        if has_user:
            return {"user": _first(layers, "user"), "password": _first(layers, *_PASSWORD)}
    return {}


def read_credentials(path: Path) -> dict[str, Any]:
    """Return what a file of credentials says, by the names of the options; paths in it begin at its folder.

    Raises
    ------
    InvalidArgumentError
        If others may read it, or it says what nobody knows.
    """
    try:
        given: dict[str, Any] = tomllib.loads(_private_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{path} is no TOML: {error}", field="credentials") from None
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _IN_FILE:
            raise InvalidArgumentError(f"{path}: {no_such('key', name, list(_IN_FILE))}", field="credentials")
        if not isinstance(value, bool if name == "tls" else str):
            wanted = "true or false" if name == "tls" else "text"
            raise InvalidArgumentError(f"{path}: {name} is no {wanted}", field="credentials")
        found[_IN_FILE[name]] = path.parent / str(value) if name in ("ca", "cert", "key") else value
    return found


def read_secret(path: Path) -> str:
    """Return the text of a file that holds one secret, without the end of its line.

    Raises
    ------
    InvalidArgumentError
        If others may read it, or it cannot be read.
    """
    return _private_text(path).removesuffix("\n").removesuffix("\r")


def _private_text(path: Path) -> str:
    try:
        return read_private(path).decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{path} is not UTF-8") from None


def read_private(path: Path, size: int = -1) -> bytes:
    """Return the first bytes of a file that only its owner may use; a pipe is as private as the process that made it.

    Raises
    ------
    InvalidArgumentError
        If others may use it, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise InvalidArgumentError(
                    f"others than its owner may use {path}, which holds a secret: chmod 600 {path}"
                )
            return file.read(size)
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from error
