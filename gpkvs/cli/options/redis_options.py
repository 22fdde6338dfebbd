"""The options of `gpkvs import` for a Redis or Valkey server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

_PANEL = "From Redis"

FromRedis = Annotated[
    str | None,
    typer.Option(
        help="The address of a Redis or Valkey whose keys are imported, in the place of FILE.",
        metavar="HOST:PORT",
        rich_help_panel=_PANEL,
    ),
]
RedisDatabase = Annotated[
    int,
    typer.Option(
        help="Its database: 0 goes to the table default, 9 to the table 9, unless --table names another.",
        min=0,
        metavar="N",
        rich_help_panel=_PANEL,
    ),
]
RedisCredentials = Annotated[
    Path | None,
    typer.Option(
        help="A file of TOML with any of user, password, tls, ca, cert, key for it; or the password alone in "
        "GPKVS_REDIS_PASSWORD.",
        envvar="GPKVS_REDIS_CREDENTIALS",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Skip = Annotated[
    bool,
    typer.Option(
        "--skip",
        help="Exit with 0 also if keys were left out that gpkvs cannot hold.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


class Redis(NamedTuple):
    """What these options say."""

    address: str
    database: int
    credentials: Path | None
    skip: bool
