"""What lives went through, as their recordings show it: whether the explorer visits what it is meant to."""

from __future__ import annotations

import re
import struct
from collections import Counter

from gpkvs.media.layout import PAGE_BYTES
from gpkvs.recovery.proof.diskfail.disk import Disk, Write
from gpkvs.recovery.proof.diskfail.expected import Progress
from gpkvs.recovery.proof.diskfail.recorder import Event, Kind, Mark

_FRAME, _HEAD = b"GPKVSBL\0", b"GPKVSJS\0"
_PAGES_AT, _SERIAL_AT = 32, 16  # in a frame's header, and in a segment's head
_BLOB = re.compile(rb"(\d+\.)\1")  # how its value begins (`blob_value`)
_SEGMENTS = 16  # of the journal of every store here


def reached(events: list[Event]) -> Counter[str]:
    """Count what a life did to its files."""
    counts: Counter[str] = Counter()
    for event in events:
        if event.kind is Kind.WRITE:
            counts[_what(event)] += 1
        elif event.kind is Kind.CREATE and event.names[0].startswith("index-"):
            counts["tables made"] += 1
        elif event.kind is Kind.UNLINK and event.names[0].startswith("index-"):
            counts["tables dropped"] += 1
        elif event.kind is Kind.MARK and event.at == Mark.EXECUTED:
            counts["batches of the native engine" if event.amount else "batches by phases"] += 1
        elif event.kind is Kind.MARK and event.at in (Mark.TOLD, Mark.SCHEMA_TOLD):
            counts["entries told"] += 1
    return counts


def _what(event: Event) -> str:
    data = event.data
    if data.startswith(_FRAME):
        pages = struct.unpack_from("<Q", data, _PAGES_AT)[0]
        if len(data) < pages * PAGE_BYTES:
            return "frames over the end of a segment"
        return "frames of many pages" if pages > 1 else "frames of one page"
    if data.startswith(_HEAD):
        is_again = struct.unpack_from("<Q", data, _SERIAL_AT)[0] >= _SEGMENTS
        return "segments of the journal used again" if is_again else "segments of the journal used first"
    if _BLOB.match(data):
        return "blobs"
    return "root copies" if len(data) == 512 else "other writes"


def kind_of_kill(disk: Disk, progress: Progress) -> str:
    """Return what was under way when a process was killed."""
    if not progress.is_open:
        return "kills in an opening"
    largest = max(disk.files, key=lambda number: disk.files[number].size)
    if any(isinstance(unit, Write) and unit.file != largest for unit in disk.pending):
        return "kills in a checkpoint"
    return "other kills"
