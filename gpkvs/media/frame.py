"""Frames of the journal: one for each batch, a header and the new contents of slots (``kernels/commit/frames.hpp``).

A frame begins at a page. Its header names the frame before by its digest, so that frames are a chain. The digest of a
header is keyed with the store's key: no bytes of a user pass for a frame.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gpkvs.media.layout import PAGE_BYTES, STRUCTURE_BYTES, BadBytesError, Descriptor
from gpkvs.native import keyed_digest

HEADER_BYTES: Final = 1024  # the entries follow
_DIGEST_AT: Final = HEADER_BYTES - 16
_MAGIC: Final = b"GPKVSBL\0"
_FIELDS = struct.Struct("<8sQQQQQ")


class FrameHeader(NamedTuple):
    """What a frame says of its batch.

    Attributes
    ----------
    incarnation
        Of the opening that wrote it.
    previous
        The digest of the frame before.
    durable_upto
        The newest epoch that was durable when the batch began.
    pages
        What the frame takes.
    records_digest
        Of the records that the batch wrote (``kernels/cu/redo.cu``).
    descriptor
        Of the batch, as the undo log has it.
    """

    incarnation: int
    previous: int
    durable_upto: int
    pages: int
    records_digest: int
    descriptor: Descriptor

    @property
    def epoch(self) -> int:
        """Of the batch."""
        return self.descriptor.epoch

    @staticmethod
    def unpack(data: bytes, key: tuple[int, int]) -> tuple[FrameHeader, int]:
        """Return the header that some bytes begin with, and its digest; raises `BadBytesError` if they are none."""
        body, digest = data[:_DIGEST_AT], data[_DIGEST_AT:HEADER_BYTES]
        if body[:8] != _MAGIC or len(digest) < 16 or keyed_digest(key, body) != digest:
            raise BadBytesError("there is no frame here")
        descriptor = Descriptor.unpack(body[_FIELDS.size : _FIELDS.size + STRUCTURE_BYTES])
        _, *fields = _FIELDS.unpack_from(body)
        return FrameHeader(*(*fields, descriptor)), int.from_bytes(digest[:8], "little")


def frame_pages(words: int) -> int:
    """Return the pages of a frame with so many words of entries."""
    return -(-(HEADER_BYTES + 8 * words) // PAGE_BYTES)


_HEAD_MAGIC: Final = b"GPKVSJS\0"
_HEAD = struct.Struct("<8sQQQ")


class SegmentHead(NamedTuple):
    """The first page of a segment of the journal (`SegmentHead` in ``kernels/commit/journal.hpp``)."""

    incarnation: int
    serial: int
    first_epoch: int

    @staticmethod
    def unpack(data: bytes, key: tuple[int, int]) -> SegmentHead:
        """Read a head; raises `BadBytesError` if there is none."""
        if data[:8] != _HEAD_MAGIC or keyed_digest(key, data[: _HEAD.size]) != data[_HEAD.size : _HEAD.size + 16]:
            raise BadBytesError("no segment of the journal begins here")
        return SegmentHead(*_HEAD.unpack_from(data)[1:])
