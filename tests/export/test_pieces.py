"""What becomes a Parquet file: pieces come back as they were, and a file that was cut or changed is refused."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from gpkvs.export.file_format import PIECES_FORMAT, End, ExportError, Header
from gpkvs.export.pieces import PieceReader, encode_piece
from gpkvs.scan import ScanPiece


def piece_of(records: list[tuple[bytes, bytes, int, int]], *, expire: bool = True) -> ScanPiece:
    keys, values = [record[0] for record in records], [record[1] for record in records]
    return ScanPiece(
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_lengths=np.array([len(key) for key in keys], np.uint32),
        values=np.frombuffer(b"".join(values), np.uint8),
        value_lengths=np.array([len(value) for value in values], np.uint32),
        versions=np.array([record[2] for record in records], np.uint64),
        expiries=np.array([record[3] for record in records], np.uint64) if expire else np.empty(0, np.uint64),
        damaged=0,
        cursor=b"",
    )


PIECES = [
    piece_of([(b"a", b"", 1, 0), (b"bcd", b"12345", 1 << 63, 77)]),
    piece_of([]),
    piece_of([(b"odd", b"x" * 7, 3, 0)], expire=False),
    piece_of([(b"e", b"\xff", 4, 1)]),
]


def write(path: Path, pieces: list[ScanPiece]) -> bytes:
    data = Header("t", "bytes", format=PIECES_FORMAT).encode() + b"".join(map(encode_piece, pieces))
    whole = data + End(sum(map(len, pieces)), 3).encode(zlib.crc32(data))
    path.write_bytes(whole)
    return whole


def rows(pieces: list[ScanPiece]) -> list[tuple[bytes, bytes, int, int]]:
    return [
        (*pair, version, expiry)
        for piece in pieces
        for pair, version, expiry in zip(piece.pairs(), piece.versions.tolist(), piece.expiry_list(), strict=True)
    ]


def test_pieces_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "p", PIECES)
    reader = PieceReader(tmp_path / "p")
    found = list(reader.pieces())
    assert rows(found) == rows(PIECES)
    assert len(found) == 3  # nothing is written of a piece without records
    assert (reader.header.table, reader.end) == ("t", End(4, 3))
    # Arrow takes the numbers where they lie.
    assert all(column.flags.aligned for piece in found for column in (piece.versions, piece.expiries))
    write(tmp_path / "p", [])
    assert list(PieceReader(tmp_path / "p").pieces()) == []


def require_lengths(reader: PieceReader) -> None:
    """Read pieces whose lengths Arrow can trust: else it would read behind their end, before the checksum is known."""
    for piece in reader.pieces():
        assert piece.key_lengths.sum() == len(piece.keys)
        assert piece.value_lengths.sum() == len(piece.values)
        assert len(piece.value_lengths) == len(piece)
        assert {len(piece.versions), len(piece.expiries)} <= {0, len(piece)}


def test_a_file_that_was_cut_or_changed_anywhere_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p"
    whole = write(file, PIECES)
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        with pytest.raises(ExportError):
            list(PieceReader(file).pieces())
    for at in range(len(whole)):
        for bit in (0x01, 0x80):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with pytest.raises(ExportError):
                require_lengths(PieceReader(file))


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "p", PIECES)
    for end in range(len(whole)):
        (tmp_path / "p").write_bytes(whole)
        reader = PieceReader(tmp_path / "p")
        (tmp_path / "p").write_bytes(whole[:end])
        with pytest.raises(ExportError):
            list(reader.pieces())
