"""What `gpkvs watch` does: it shows what changes, line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from gpkvs.changes import ChangeKind, Changes, Position
from gpkvs.cli.keys.scan_run import named, printable
from gpkvs.cli.keys.watch import EXIT_OVER
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.options.typed_keys import Form, form_of
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.client import Client
from gpkvs.client.following import Following
from gpkvs.config import DEFAULT_TABLE
from gpkvs.credentials import Access
from gpkvs.errors import ChangesLostError, GpkvsError, UnknownTableError
from gpkvs.watch import POSITION_SECONDS, READ_BYTES, Change, changes_of


def watch_changes(
    access: Access,
    prefix: str,
    target: str,
    table: str,
    since: str,
    limit: int | None,
    timeout: float,
    *,
    all_tables: bool,
    as_json: bool,
) -> None:
    """Show what changes; the parameters are those of the command."""
    with failures_exit(EXIT_FAILED):
        where = Position.parse(since) if since else None
    with (
        failures_exit(EXIT_FAILED),
        Client(target, timeout=timeout, table=table, **access.as_arguments()) as client,
    ):
        if all_tables:
            forms = {found.name: Form(found.name, found.layout) for found in client.list_tables()}
        else:
            with connect(target, access) as channel:
                forms = {table or DEFAULT_TABLE: form_of(channel, table, timeout)}
        with (
            failures_exit(EXIT_OVER, ChangesLostError),
            client.follow(where, table=table, all_tables=all_tables, prefix=prefix.encode()) as following,
        ):
            _Shown(following, forms, limit, names_tables=all_tables, as_json=as_json).run()


class _Shown:
    """The lines of a command.

    Parameters
    ----------
    following
        Brings what changes.
    forms
        How the keys of the tables are written, by name.
    limit
        So many changes.
    names_tables
        Whether each line names its table.
    as_json
        Whether lines are JSON objects.
    """

    def __init__(
        self, following: Following, forms: dict[str, Form], limit: int | None, *, names_tables: bool, as_json: bool
    ) -> None:
        self._following = following
        self._forms = forms
        self._limit = limit
        self._names_tables = names_tables
        self._as_json = as_json
        self._position = following.position  # behind the last change shown

    def run(self) -> None:
        """Show what comes, until nothing more does; then say where to go on, if anywhere."""
        goes_on = True
        try:
            while self._limit is None or self._limit > 0:
                for entry in self._following.read(READ_BYTES, POSITION_SECONDS):
                    self._show(entry)
                sys.stdout.flush()
                if self._limit is None or self._limit > 0:
                    self._position = self._following.position  # also behind what is not shown
        except (ChangesLostError, UnknownTableError) as error:
            goes_on = False
            typer.echo(f"gpkvs: {error}", err=True)
            raise typer.Exit(EXIT_OVER) from error
        except GpkvsError:
            self._position = self._following.position
            raise
        finally:
            if goes_on:
                typer.echo(f"gpkvs: go on with --since {self._position}", err=True)

    def _show(self, entry: Changes) -> None:
        if entry.made:
            self._forms[entry.name] = Form(entry.name, entry.made.layout)
        if entry.made or entry.is_dropped:
            self._show_table(entry, "made" if entry.made else "dropped")
            return
        form = self._forms.get(entry.name) or Form(entry.name)
        for change in changes_of([entry], self._position):
            if self._limit is not None:
                if self._limit <= 0:
                    return
                self._limit -= 1
            line = json.dumps(_as_dict(change, form)) if self._as_json else "\t".join(self._words(change, form))
            sys.stdout.write(f"{line}\n")
            self._position = change.position

    def _show_table(self, entry: Changes, what: str) -> None:
        if self._limit is not None and self._limit <= 0:
            return
        self._position = Position(self._position.timeline, entry.number)
        if self._as_json:
            told = {"kind": f"table_{what}", "table": entry.name, "time_ms": entry.time_ms}
            sys.stdout.write(f"{json.dumps(told | {'position': str(self._position)})}\n")
        else:
            names = [entry.name] if self._names_tables else []
            sys.stdout.write("\t".join([*names, f"table {what}"]) + "\n")

    def _words(self, change: Change, form: Form) -> Iterator[str]:
        if self._names_tables:
            yield change.table
        yield change.kind.name.lower()
        yield printable(form.shown_key(change.key))
        if change.value is not None:
            yield printable(form.shown_value(change.value))


def _as_dict(change: Change, form: Form) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": change.kind.name.lower(), "table": change.table}
    told |= named("key", form.shown_key(change.key))
    if change.kind is ChangeKind.SET and change.value is not None:
        told |= named("value", form.shown_value(change.value))
    if change.version is not None:
        told["version"] = change.version
    if change.expiry_ms:
        told["expiry_ms"] = change.expiry_ms
    return told | {"time_ms": change.time_ms, "position": str(change.position)}
