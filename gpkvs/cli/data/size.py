"""gpkvs size: how much disk and memory a store takes, before there is one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gpkvs.cli.options.layout import Layout
from gpkvs.cli.options.sizes import format_bytes, parse_bytes, parse_count
from gpkvs.cli.terminal.exit_status import WRONG_OPTIONS, exits
from gpkvs.cli.terminal.output import AsJson, failures_exit, print_json
from gpkvs.columns.row_layout import KEY_BYTES, row_layout_of
from gpkvs.config import MIB, VALUE_BYTES_MOST, CommitName, FormatName, Limits, ServerConfig
from gpkvs.engine.estimate import Estimate, Load, Part, estimate
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.directory import round_up
from gpkvs.media.layout import BYTES_LAYOUT, FORMAT_3, FORMAT_4, U64_LAYOUT
from gpkvs.server.account.bounds import memory_limit_bytes, transaction_bytes
from gpkvs.text import readable_bytes

_LIMIT_STEP_BYTES = 64 * MIB


@exits({0: "shown", WRONG_OPTIONS: "there can be no such store"})
def size_command(
    records: Annotated[
        int, typer.Option(parser=parse_count, metavar="N", help="The records that are expected: 10M, or 10000000.")
    ],
    value: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of a value, on average. Those of u64 and of rows have one size: leave it out.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes, metavar="SIZE", help="Size of a key, on average.", show_default="16; u64 and rows: 8"
        ),
    ] = None,
    layout: Layout = BYTES_LAYOUT.name,
    store_format: Annotated[
        FormatName,
        typer.Option("--format", help="Format of the files. auto: 4. An older gpkvs opens 3 alone."),
    ] = "auto",
    commit: Annotated[
        CommitName, typer.Option(help="How batches become durable. auto: a journal on disks, undo in memory.")
    ] = "auto",
    expiring: Annotated[bool, typer.Option("--expiring", help="The keys expire.")] = False,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="The store lies in memory (tmpfs).")] = False,
    ops_per_transaction: Annotated[
        int,
        typer.Option(
            parser=parse_count,
            metavar="N",
            help="Keys that the largest transaction changes. A server makes one of the requests that wait.",
            show_default="10K",
        ),
    ] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Say how much disk and memory a store takes, part by part, before there is one.

    The figures are those of a new store, as soon as the records are in it, with the index for which the options below
    the table ask. They follow from the formulas by which a store is laid out and grows.

    Example: gpkvs size --records 10M --value 200
    """
    with failures_exit(WRONG_OPTIONS):
        load = Load(
            records=records,
            key_bytes=_length(key, 16, layout, "key"),
            value_bytes=_length(value, None, layout, "value"),
            layout=layout,
            store_format=FORMAT_3 if store_format == "3" else FORMAT_4,
            has_journal=commit == "journal" or (commit == "auto" and not in_memory),
            is_expiring=expiring,
            transaction_ops=ops_per_transaction,
            is_in_memory=in_memory,
        )
        _require_possible(load)
        found = estimate(load)
    parts = [*found.parts, _transaction(found.load)]
    if as_json:
        print_json(
            {
                "load": asdict(found.load),
                "parts": [part._asdict() for part in parts],
                "all": _sum(parts)._asdict(),
                "record_bytes": found.record_bytes,
                "index_bytes": found.index_bytes,
                "heap_off_by_bytes": found.heap_off_by_bytes,
                "memory_limit_bytes": _memory_limit(found, parts),
                "options": list(_options(found)),
            }
        )
    else:
        _print(found, parts)


def _length(given: int | None, usual: int | None, layout: str, name: str) -> int:
    """Return the length of keys or values."""
    if layout != BYTES_LAYOUT.name:
        rows = row_layout_of(layout)
        own = rows.row_bytes if rows and name == "value" else KEY_BYTES
        if given not in (None, own):
            raise InvalidArgumentError(f"a {name} of the layout {layout} has {own:,} bytes: leave it out", field=name)
        return own
    length = usual if given is None else given
    if length is None:
        raise InvalidArgumentError("say how long a value is, on average", field=name)
    return length


def _require_possible(load: Load) -> None:
    if load.is_expiring and load.layout == U64_LAYOUT.name:
        raise InvalidArgumentError("a table of the layout u64 has no expiry: leave it out", field="expiring")
    if load.value_bytes > VALUE_BYTES_MOST:
        raise InvalidArgumentError(
            f"{load.value_bytes:,} bytes, a value has at most {VALUE_BYTES_MOST:,}", field="value"
        )
    if not 1 <= load.transaction_ops <= Limits.request_ops_max:
        raise InvalidArgumentError(
            f"{load.transaction_ops:,}, allowed are 1 to {Limits.request_ops_max:,}", field="ops_per_transaction"
        )


def _transaction(load: Load) -> Part:
    """Return what the largest transaction takes of the process while it runs."""
    payload_bytes = min(load.transaction_ops * (load.key_bytes + load.value_bytes), ServerConfig.batch_bytes_max)
    return Part("a transaction", 0, transaction_bytes(payload_bytes, load.transaction_ops))


def _sum(parts: list[Part]) -> Part:
    columns = zip(
        *((part.disk_bytes, part.memory_bytes, part.cache_bytes, part.more_bytes) for part in parts), strict=True
    )
    return Part("all", *(sum(column) for column in columns))


def _memory_limit(found: Estimate, parts: list[Part]) -> int:
    """Return the least limit of memory to give a server, in whole steps; a fifth is how sure the estimate is."""
    whole = _sum(parts)
    files = whole.disk_bytes + whole.more_bytes if found.load.is_in_memory else 0
    return round_up(memory_limit_bytes(int(1.2 * whole.memory_bytes) + files), _LIMIT_STEP_BYTES)


def _options(found: Estimate) -> Iterator[str]:
    """Return the commands that make such a store."""
    load = found.load
    words = ["gpkvs serve --data DIR", f"--commit {'journal' if load.has_journal else 'undo'}"]
    if load.store_format == FORMAT_3:
        words.append("--format 3")
    if load.layout == BYTES_LAYOUT.name:
        words.append(f"--index-bytes {format_bytes(found.index_bytes)}")
    for name, given, usual in (
        ("key", load.key_bytes, Limits.key_bytes_max),
        ("value", load.value_bytes, Limits.value_bytes_max),
    ):
        if given > usual:
            words.append(f"--{name}-bytes-max {format_bytes(given)}")
    yield " ".join(words)
    if load.layout != BYTES_LAYOUT.name:
        yield f"gpkvs table create NAME --layout {shlex.quote(load.layout)} --records {load.records}"


def _print(found: Estimate, parts: list[Part]) -> None:
    console, load = Console(soft_wrap=True, highlight=False), found.load
    commit = "journal" if load.has_journal else "undo log"
    where = "in memory" if load.is_in_memory else "on a disk"
    console.print(
        f"{load.records:,} records, keys of {load.key_bytes:,} and values of {load.value_bytes:,} bytes, layout "
        f"{load.layout}, format {load.store_format}, {commit}, {where}"
    )
    view = Table("part", box=None, pad_edge=False)
    for heading in ("files", "own memory", "page cache"):
        view.add_column(heading, justify="right")
    whole = _sum(parts)
    for part in (*parts, whole):
        sizes = (part.disk_bytes, part.memory_bytes, part.cache_bytes)
        view.add_row(part.name, *(readable_bytes(size) if size else "-" for size in sizes))
    console.print(view)
    for line in _notes(found, whole):
        console.print(line, markup=False)
    limit = _memory_limit(found, parts)
    console.print(
        f"Memory limit (systemd's MemoryMax, a container's): {format_bytes(limit)} or more. A quarter of it is "
        f"--memory-max by default, here {format_bytes(limit // 4)}: clients may make the server take that. With users "
        "who log in by password, 130MiB more.",
        markup=False,
    )
    console.print("Options:", *_options(found), sep="\n  ", markup=False)


def _notes(found: Estimate, whole: Part) -> Iterator[str]:
    """Say how sure the figures are."""
    load = found.load
    if load.is_in_memory:
        yield f"The files are memory, too: {readable_bytes(whole.disk_bytes + whole.memory_bytes)} in all."
    if found.record_bytes:
        yield (
            f"Files: the heap may have {readable_bytes(found.heap_off_by_bytes)} more or less, a step of its growth "
            "and one transaction. The others are computed as the store does it."
        )
    else:
        yield "Files: computed as the store does it; the records lie in the index."
    if whole.more_bytes:
        yield f"While records are overwritten: about {readable_bytes(whole.more_bytes)} more of files."
    yield (
        "Memory: an estimate, within a fifth, without what clients make the server take (--memory-max). The kernel "
        "can take the page cache back."
    )
