"""How a client reaches a server: over TLS or plain, and who it says that it is."""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gpkvs.errors import InvalidArgumentError
from gpkvs.text import quoted

if TYPE_CHECKING:
    import grpc

Pem: TypeAlias = Path | str | bytes
"""The path of a PEM file, or its content as bytes."""

VARIABLES: Final = frozenset(
    {
        "GPKVS_TLS",
        "GPKVS_CLIENT_TLS_CA",
        "GPKVS_CLIENT_TLS_CERT",
        "GPKVS_CLIENT_TLS_KEY",
        "GPKVS_TOKEN",
        "GPKVS_TOKEN_FILE",
        "GPKVS_USER",
        "GPKVS_PASSWORD",
        "GPKVS_PASSWORD_FILE",
        "GPKVS_CREDENTIALS",
    }
)
"""Where commands find in the environment how to reach a server."""

_HEADER: Final = "authorization"
# A proxy would read what a plain connection carries, and "localhost" would be its own machine.
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)
# gRPC takes port 443 where none is named, and hands anything else to DNS. What follows a scheme is its own affair.
_TARGET: Final = re.compile(
    r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):.+|(?:\[[^\[\]\s]+\]|[^\[\]\s:/,]+):[0-9]{1,5}"
)


@dataclass(frozen=True)
class TlsCredentials:
    """TLS: whom the client trusts, and the certificate that it shows.

    Parameters
    ----------
    ca
        The CAs of the server's certificate, PEM: a path, or the content as bytes. None: those of the system
        (OpenSSL's file, or that of ``SSL_CERT_FILE``), and where it has none, those that come with gRPC.
    cert, key
        The client's certificate chain and its private key, PEM, where the server asks for one.

    Raises
    ------
    InvalidArgumentError
        If there is a certificate without its key, or a key without its certificate.

    Notes
    -----
    The files are read when a client is made: after they have changed, make a new one.
    """

    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.cert is not None and self.key is None:
            raise InvalidArgumentError("a certificate needs its private key", field="key")
        if self.key is not None and self.cert is None:
            raise InvalidArgumentError("a private key needs its certificate", field="cert")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what a gRPC channel takes.

        Raises
        ------
        InvalidArgumentError
            If a file cannot be read, or holds no PEM.
        """
        import grpc  # noqa: PLC0415 - it takes longer than most commands, of which some need no channel

        ca = _read("ca", ssl.get_default_verify_paths().cafile if self.ca is None else self.ca)
        return grpc.ssl_channel_credentials(ca, _read("key", self.key), _read("cert", self.cert))

    def context(self) -> ssl.SSLContext:
        """Return the same for HTTPS.

        Raises
        ------
        InvalidArgumentError
            If a file cannot be read, or holds no PEM, or PEM that makes no sense.
        """
        ca = _read("ca", self.ca)
        try:
            context = ssl.create_default_context(cadata=None if ca is None else ca.decode(errors="replace"))
        except ssl.SSLError as error:
            raise InvalidArgumentError("there is no certificate in it that can be read", field="ca") from error
        if self.cert is not None and self.key is not None:
            if isinstance(self.cert, bytes) or isinstance(self.key, bytes):
                raise InvalidArgumentError("HTTPS takes a certificate and its key as files only", field="cert")
            for name, file in (("cert", self.cert), ("key", self.key)):
                _read(name, file)  # its errors name the file
            try:
                context.load_cert_chain(self.cert, self.key, password="")
            except ssl.SSLError as error:
                raise InvalidArgumentError(
                    f"{self.cert} and its key {self.key} do not belong together, or cannot be read: the key must not "
                    "be encrypted",
                    field="cert",
                ) from error
        return context


def _read(name: str, pem: Pem | None) -> bytes | None:
    if pem is None:
        return None
    where = "it"
    if not isinstance(pem, bytes):
        where = str(pem)
        try:
            pem = Path(pem).read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {where}: {error.strerror}", field=name) from error
    if b"-----BEGIN " not in pem:
        raise InvalidArgumentError(f"{where} is no PEM: it has no line -----BEGIN ...", field=name)
    return pem


@dataclass(frozen=True)
class Access:
    """What a client needs to be let in; the parameters are those of `Client`.

    Raises
    ------
    InvalidArgumentError
        If the parameters do not fit each other, or cannot be sent.
    """

    credentials: TlsCredentials | grpc.ChannelCredentials | None = None
    token: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    insecure_secrets: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.credentials, TlsCredentials | None) or _is_of_grpc(self.credentials)):
            raise TypeError(f"credentials are TlsCredentials, not {type(self.credentials).__name__}")
        for name in ("token", "user", "password"):
            _check_text(name, getattr(self, name))
        if self.token is not None and (self.user is not None or self.password is not None):
            raise InvalidArgumentError("give a token, or a user and a password, not both", field="token")
        if self.user is not None and self.password is None:
            raise InvalidArgumentError("a user needs a password", field="password")
        if self.password is not None and self.user is None:
            raise InvalidArgumentError("a password needs a user", field="user")
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            around = ": take off what stands around it, such as the end of its line (strip)"
            raise InvalidArgumentError(
                f"a token has visible ASCII characters only{around if self.token != self.token.strip() else ''}",
                field="token",
            )
        if self.user is not None and (":" in self.user or not self.user.isprintable()):
            raise InvalidArgumentError("a user's name has neither colons nor control characters", field="user")

    @property
    def header(self) -> str | None:
        """The value of the header ``authorization``, or None where no secret is sent."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is not None:
            return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"
        return None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """The header as the metadata of a call of gRPC."""
        return None if self.header is None else ((_HEADER, self.header),)

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of `Client` and `AsyncClient`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def check_target(self, target: str, field: str = "target") -> None:
        """Check that a target can be one, and that no secret leaves this machine in plain.

        Parameters
        ----------
        target
            As gRPC takes it, but never without a port.
        field
            Its name, for the error.

        Raises
        ------
        InvalidArgumentError
            If it is no target, or a secret would.
        """
        if not _TARGET.fullmatch(target):
            raise InvalidArgumentError(f"{quoted(target)} is not HOST:PORT, such as 127.0.0.1:7171", field=field)
        if self.header is not None and self.credentials is None and not self.insecure_secrets:
            require_loopback(target)

    def channel(self, target: str, options: tuple[tuple[str, Any], ...], library: Any) -> Any:
        """Return a channel to a target.

        Parameters
        ----------
        target, options
            As gRPC takes them.
        library
            `grpc`, or `grpc.aio`.

        Raises
        ------
        InvalidArgumentError
            If it is no target, a secret would leave this machine in plain, or a file of the TLS credentials cannot be
            read.
        """
        self.check_target(target)
        credentials = self.credentials
        if isinstance(credentials, TlsCredentials):
            credentials = credentials.channel_credentials()
        if credentials is not None:
            return library.secure_channel(target, credentials, options=options)
        if self.header is not None and not self.insecure_secrets:
            options = (*options, _NO_PROXY)
        return library.insecure_channel(target, options=options)


def _is_of_grpc(credentials: object) -> bool:
    import grpc  # noqa: PLC0415 - whoever has made such credentials has loaded it

    return isinstance(credentials, grpc.ChannelCredentials)


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise TypeError(f"{name} is str, not {type(text).__name__}")
    if not text:
        raise InvalidArgumentError("it is empty", field=name)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidArgumentError("it is no text that UTF-8 can hold", field=name)


def require_loopback(target: str) -> None:
    """Check that a target is on this machine, so that a secret may go there in plain.

    Raises
    ------
    InvalidArgumentError
        If it is not.
    """
    if not is_loopback(target):
        raise InvalidArgumentError(
            f"a token or password would go to {target} unencrypted: use TLS (credentials=TlsCredentials(...), --tls), "
            "or allow it (insecure_secrets, --insecure-secrets)",
            field="credentials",
        )


def is_loopback(target: str) -> bool:
    """Whether a target of gRPC is on this machine for sure: what is not known is not."""
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    if scheme in ("ipv4", "ipv6"):
        return all(map(_is_loopback_address, rest.split(",")))
    if scheme != "dns":
        return _is_loopback_address(target)
    return _is_loopback_address(rest.removeprefix("///"))  # with an authority it asks another machine for the name


_ADDRESS = re.compile(r"\[(?P<bracketed>[^\[\]]+)\](:\d+)?|(?P<host>[^:]+)(:\d+)?|(?P<bare>[0-9a-fA-F:.]+)")


def _is_loopback_address(address: str) -> bool:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    if found["host"] == "localhost":
        return True
    try:
        return ipaddress.ip_address(found["bracketed"] or found["host"] or found["bare"]).is_loopback
    except ValueError:
        return False


PLAIN: Final = Access()
"""No TLS, and no login."""
