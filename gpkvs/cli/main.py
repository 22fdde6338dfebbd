"""The gpkvs command and its subcommands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, ClassVar, NoReturn

import typer

from gpkvs.cli.lazy_commands import LazyGroup
from gpkvs.cli.options.environment import unread_variables
from gpkvs.cli.terminal.exit_status import EVERY, WRONG_OPTIONS
from gpkvs.cli.terminal.program import end_unexpectedly, run_program
from gpkvs.text import quoted


class Gpkvs(LazyGroup):
    """One line for each subcommand, in the order of the help text."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except (EOFError, OSError):  # typer would end with 1 for some of them, without a word
            end_unexpectedly()

    panels: ClassVar = {
        "Serve": ("serve", "config", "size", "doctor"),
        "Keys and values": (
            *("get", "set", "delete", "incr", "append", "expire", "ttl", "exists"),
            *("scan", "count", "watch", "export", "import"),
        ),
        "A server that runs": ("info", "table", "user", "top", "slowlog", "backup", "archive"),
        "A store that no server has open": ("check", "recover", "copy", "restore"),
        "Try, measure, prove": ("demo", "bench", "ycsb", "drill", "consistency", "soak", "bitflip", "crash"),
    }
    subcommands: ClassVar = {
        "serve": ("gpkvs.cli.serving.serve:serve_command", "Serve a store over gRPC until SIGTERM or Ctrl-C."),
        "config": ("gpkvs.cli.serving.config_show:app", "Show the settings of a server, and where each comes from."),
        "size": (
            "gpkvs.cli.data.size:size_command",
            "Say how much disk and memory a store takes, part by part, before there is one.",
        ),
        "get": ("gpkvs.cli.keys.kv:get_command", "Print the value of a key, byte for byte."),
        "set": ("gpkvs.cli.keys.kv:set_command", "Store a value under a key; it is durable when this returns."),
        "delete": (
            "gpkvs.cli.keys.kv:delete_command",
            "Remove a key, if it is there; that is durable when this returns.",
        ),
        "incr": (
            "gpkvs.cli.keys.updates:incr_command",
            "Add to the number that a key holds, and print the sum; it is durable when this returns.",
        ),
        "append": (
            "gpkvs.cli.keys.updates:append_command",
            "Add text to the end of a key's value; it is durable when this returns. A key that is not there is made.",
        ),
        "expire": (
            "gpkvs.cli.keys.updates:expire_command",
            "Change when a key expires; that is durable when this returns.",
        ),
        "ttl": (
            "gpkvs.cli.keys.updates:ttl_command",
            'Print how many seconds a key will still be there, or "never" if it does not expire.',
        ),
        "exists": (
            "gpkvs.cli.keys.kv:exists_command",
            "Say by the exit status whether a key is there, without reading its value.",
        ),
        "scan": (
            "gpkvs.cli.keys.scan:scan_command",
            "Show the keys of a table with their values, in no order that means anything.",
        ),
        "count": (
            "gpkvs.cli.keys.scan:count_command",
            "Print how many keys a table has.",
        ),
        "watch": (
            "gpkvs.cli.keys.watch:watch_command",
            "Show what changes in a table, in order, until Ctrl-C.",
        ),
        "export": (
            "gpkvs.cli.data.export:export_command",
            "Write all records of a table to a file: keys, values and when they expire; as parquet with versions, too.",
        ),
        "import": (
            "gpkvs.cli.data.export:import_command",
            "Store the records of a file, or of a Redis, in a table: keys that are there get the values of the source.",
        ),
        "info": (
            "gpkvs.cli.keys.info:info_command",
            "Show a server's store: durability, sizes, tables, limits, the last recovery.",
        ),
        "table": ("gpkvs.cli.keys.table:app", "Make, list and drop the tables of a running server."),
        "user": (
            "gpkvs.cli.keys.user:app",
            "Make, change and remove the users of a server, in the file that `gpkvs serve --users` reads.",
        ),
        "top": ("gpkvs.cli.keys.top:top_command", "Watch a server: throughput, time by phase, batches, queue, space."),
        "slowlog": (
            "gpkvs.cli.keys.slowlog:slowlog_command",
            "Show the last calls that took long, and what their time went into.",
        ),
        "backup": (
            "gpkvs.cli.data.backup:backup_command",
            "Back up the store of a server while it serves: all tables, as they were at one moment.",
        ),
        "archive": (
            "gpkvs.cli.data.archive:archive_command",
            "Archive all that changes on a server, so that any moment can be restored, until SIGTERM or Ctrl-C.",
        ),
        "restore": (
            "gpkvs.cli.data.restore:restore_command",
            "Make a store as it was at a moment, of an archive or a backup.",
        ),
        "ycsb": ("gpkvs.cli.keys.ycsb:app", "Load a running server with records and measure it, in YCSB's words."),
        "doctor": (
            "gpkvs.cli.serving.doctor:doctor_command",
            "Say what this machine gives a store, what is wrong, and the command that mends it.",
        ),
        "check": (
            "gpkvs.cli.data.check:check_command",
            "Verify every structure and every record's checksum, read-only.",
        ),
        "recover": (
            "gpkvs.cli.data.check:recover_command",
            "Roll back the batch that a crash interrupted, if any, and say what was done.",
        ),
        "copy": (
            "gpkvs.cli.data.copy:copy_command",
            "Copy a store that no process has open into a new one: of other sizes, or of an older format into today's.",
        ),
        "drill": (
            "gpkvs.cli.proof.drill:drill_command",
            "Kill a real server under load, restart it, and check its store, again and again.",
        ),
        "consistency": (
            "gpkvs.cli.proof.consistency:consistency_command",
            "Prove that the responses to clients are strictly serializable, while the server is killed under them.",
        ),
        "soak": (
            "gpkvs.cli.proof.soak:soak_command",
            "Keep a real server nearly full for a long time, and see that it loses, leaks and refuses nothing.",
        ),
        "bitflip": (
            "gpkvs.cli.proof.bitflip:bitflip_command",
            "Invert bits of a store's files, one store after the other, and open, read, write and check each.",
        ),
        "bench": (
            "gpkvs.cli.bench:app",
            "Measure the engine and the server beside other stores, and keep the figures.",
        ),
        "crash": (
            "gpkvs.cli.proof.crash:crash_command",
            "Visit the states that a power failure can leave behind, and recover every one of them.",
        ),
        "demo": (
            "gpkvs.cli.proof.demo:demo_command",
            "Kill a server with SIGKILL under full load, start it again, and show that it has lost nothing.",
        ),
    }


app = typer.Typer(
    name="gpkvs",
    cls=Gpkvs,
    help="A persistent key-value database server: each batch of requests is one durable transaction.",
    epilog=EVERY,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gpkvs.info import package_version  # noqa: PLC0415 - it takes longer than the imports of most commands
        from gpkvs.server.door_library import versions  # noqa: PLC0415 - the same

        typer.echo(f"gpkvs {package_version()}")
        typer.echo(f"native door: {versions() or 'not built'}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    del version  # the callback has printed it
    if context.invoked_subcommand not in ("serve", "config"):  # which say it themselves
        for line in unread_variables():
            typer.echo(f"gpkvs: warning: {line}", err=True)


def run() -> NoReturn:
    """Run the command line, and end the process with an exit status."""
    run_program(_run)


def _run() -> NoReturn:
    # gRPC would print a line of its own for a TLS handshake that fails, beside the command's.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for argument in sys.argv[1:]:
        if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that Python could not decode
            sys.stderr.write(f"gpkvs: the argument {quoted(argument)} is not UTF-8: names, keys and paths have to be\n")
            sys.exit(WRONG_OPTIONS)
    app()
    raise AssertionError("typer ends the process")
