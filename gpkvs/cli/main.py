"""The gpkvs command and its subcommands."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="gpkvs",
    help="A persistent key-value database server: each batch of requests is one durable transaction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# One line for each subcommand, in the order of the help text.


def main() -> None:
    """Run the command line."""
    app()
