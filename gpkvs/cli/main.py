"""The gpkvs command and its subcommands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpkvs.cli.bench import app as bench_app
from gpkvs.cli.bitflip import bitflip_command
from gpkvs.cli.check import check_command, recover_command
from gpkvs.cli.crash import crash_command
from gpkvs.cli.demo import demo_command
from gpkvs.cli.drill import drill_command
from gpkvs.cli.exit_status import EVERY
from gpkvs.cli.info import info_command
from gpkvs.cli.kv import delete_command, get_command, set_command
from gpkvs.cli.linear import linear_command
from gpkvs.cli.serve import serve_command
from gpkvs.cli.table import app as table_app
from gpkvs.cli.top import top_command
from gpkvs.cli.ycsb import app as ycsb_app
from gpkvs.info import package_version
from gpkvs.text import quoted

app = typer.Typer(
    name="gpkvs",
    help="A persistent key-value database server: each batch of requests is one durable transaction.",
    epilog=EVERY,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpkvs {package_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    del version  # its callback has printed it


# One line for each subcommand, in the order of the help text.
app.command("serve")(serve_command)
app.command("get")(get_command)
app.command("set")(set_command)
app.command("delete")(delete_command)
app.command("info")(info_command)
app.add_typer(table_app, name="table")
app.command("top")(top_command)
app.add_typer(ycsb_app, name="ycsb")
app.command("check")(check_command)
app.command("recover")(recover_command)
app.command("drill")(drill_command)
app.command("linear")(linear_command)
app.command("bitflip")(bitflip_command)
app.add_typer(bench_app, name="bench")
app.command("crash")(crash_command)
app.command("demo")(demo_command)


def main() -> None:
    """Run the command line."""
    for argument in sys.argv[1:]:
        if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that Python could not decode
            sys.stderr.write(f"gpkvs: the argument {quoted(argument)} is not UTF-8: names, keys and paths have to be\n")
            sys.exit(2)
    app()


if __name__ == "__main__":
    main()
