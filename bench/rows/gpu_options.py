"""What the benchmark of rows on a GPU measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpkvs.bench.rows.options import RowsOptions, RowsPeer
from gpkvs.config import GIB


@dataclass(frozen=True)
class GpuRowsOptions(RowsOptions):
    """As `RowsOptions`, with what a GPU needs to be busy.

    Parameters
    ----------
    hkv
        A checkout of HierarchicalKV, to compare with; None: it is left out.
    """

    dims: tuple[int, ...] = (8, 32, 128)
    table_bytes: int = GIB
    rows_max: int = 1 << 22
    batch: int = 1 << 20
    peers: tuple[RowsPeer, ...] = ()
    hkv: Path | None = None
