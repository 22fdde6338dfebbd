"""What a backup says of itself: BACKUP.json, beside the files of its store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpkvs.changes import Position
from gpkvs.errors import StoreError
from gpkvs.info import package_version
from gpkvs.media.directory import write_file
from gpkvs.native import crc32c

MANIFEST_FILE = "BACKUP.json"
FORMAT, VERSION = "gpkvs-backup", 1


@dataclass(frozen=True)
class BackedUpTable:
    """A table of a backup."""

    name: str
    layout: str
    keys: int
    digest: str  # of a table of numbers, whose slots have no checksum: of all keys and values, in any order


def digest_text(digest: int) -> str:
    """Return a digest as a manifest has it."""
    return f"{digest:016x}"


@dataclass(frozen=True)
class BackupReport:
    """What a backup holds.

    Parameters
    ----------
    directory
        Of the backup, which is a store.
    source
        What was backed up: the directory of a store, or the address of a server.
    position
        The last of the source's transactions that is in the backup.
    time_ms
        When that was the last one, in milliseconds since 1970, by the clock of whoever made the backup.
    tables
        With the keys that each has; those that had expired and were not removed yet count.
    keys
        Of all tables.
    next_version
        That the backup gives next: another one says that it was written to since.
    changes
        Of keys, that came while the source was scanned, and are in the backup.
    seconds
        That the backup took.
    """

    directory: Path
    source: str
    position: Position
    time_ms: int
    tables: tuple[BackedUpTable, ...]
    keys: int
    next_version: int
    changes: int
    seconds: float


def manifest_of(report: BackupReport) -> dict[str, Any]:
    """Return the object that is in the file; it says nothing of the directory, which may be moved."""
    described = {"format": FORMAT, "version": VERSION, "gpkvs": package_version(), **asdict(report)}
    del described["directory"]
    described["position"] = str(report.position)
    return {**described, "crc32c": _crc_of(described)}


def _crc_of(described: dict[str, Any]) -> int:
    """Return the checksum of what a manifest says, in whatever form the file has."""
    text = json.dumps(described, sort_keys=True).encode()
    return crc32c(text + bytes(-len(text) % 8))


def write_manifest(report: BackupReport, store: Path) -> None:
    """Write the manifest into the directory of a store, durably."""
    write_file(store / MANIFEST_FILE, json.dumps(manifest_of(report), indent=1).encode() + b"\n")


def read_manifest(store: Path) -> BackupReport:
    """Return what the manifest in the directory of a store says.

    Raises
    ------
    StoreError
        If it is not what was written there.
    OSError
        If the operating system refuses.
    """
    path = store / MANIFEST_FILE
    try:
        described = json.loads(path.read_bytes())
        if described.pop("crc32c") != _crc_of(described) or described["format"] != FORMAT:
            raise ValueError("it was changed")
        if described["version"] != VERSION:
            raise StoreError(f"{path} is of version {described['version']}: take the gpkvs that made it")
        known = {name: described[name] for name in ("source", "time_ms", "keys", "next_version", "changes")}
        tables = tuple(BackedUpTable(**table) for table in described["tables"])
        position, seconds = Position.parse(described["position"]), described["seconds"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} at byte 0: it is not what was written there ({error})") from error
    return BackupReport(directory=store, tables=tables, position=position, seconds=seconds, **known)
