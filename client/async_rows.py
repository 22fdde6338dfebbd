"""Rows of a table as arrays, for asyncio: `gpkvs.rows` with ``await``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64, Condition, Op
from gpkvs.columns.row_layout import RowLayout
from gpkvs.operations import Ttl, ttl_ms
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout
from gpkvs.rows import Array, RowRequests, default_of, scanned
from gpkvs.scan import require_none_damaged

if TYPE_CHECKING:
    from gpkvs.client.async_face import AsyncKeyValues
    from gpkvs.face import Numbers


class AsyncRows:
    """The rows of a table; made by ``rows`` of an `AsyncClient` or a table's handle. All is as in `gpkvs.rows.Rows`.

    Attributes
    ----------
    layout
        Of the table.
    """

    def __init__(self, db: AsyncKeyValues, layout: RowLayout, table: str | None) -> None:
        self.layout = layout
        self._db, self._table = db, table

    def __repr__(self) -> str:
        return f"<rows {self.layout.name} of {self._db!r}>"

    async def get(
        self,
        keys: Numbers,
        *,
        out: Any = None,
        default: Any = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read rows; return them (n, ...), and which are there (n,) bool; as `Rows.get`."""
        row = default_of(self.layout, default)
        return (await self._run(Op.GET, keys, None, atomic=atomic, out=out, timeout=timeout)).rows(row)

    async def set(
        self, keys: Numbers, rows: Array, *, ttl: Ttl = None, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT
    ) -> None:
        """Store rows; the last of equal keys wins; as `Rows.set`."""
        await self._run(Op.SET, keys, rows, ttl=ttl, atomic=atomic, timeout=timeout)

    async def set_if_absent(
        self, keys: Numbers, rows: Array, *, ttl: Ttl = None, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT
    ) -> NDArray[np.bool_]:
        """Store the rows of those keys that are not there; return which (n,) bool; as `Rows.set_if_absent`."""
        condition = Condition.ABSENT
        run = await self._run(Op.SET, keys, rows, ttl=ttl, atomic=atomic, timeout=timeout, condition=condition)
        return run.found()

    async def add(self, keys: Numbers, deltas: Array, *, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT) -> None:
        """Add to rows, element by element; one that is not there is zeros; as `Rows.add`."""
        await self._run(Op.ADD, keys, deltas, atomic=atomic, timeout=timeout)

    async def delete(self, keys: Numbers, *, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT) -> NDArray[np.bool_]:
        """Remove rows; return which were there, (n,) bool."""
        return (await self._run(Op.DELETE, keys, None, atomic=atomic, timeout=timeout)).found()

    async def scan(self, *, timeout: Timeout = OWN_TIMEOUT) -> AsyncIterator[tuple[U64, NDArray[Any]]]:
        """Return all keys with their rows, in pieces and in no order that means anything; as `Rows.scan`."""
        damaged = 0
        async for piece in self._db.scan_pieces(table=self._table, timeout=timeout):
            damaged += piece.damaged
            if len(piece):
                yield scanned(self.layout, piece)
        require_none_damaged(damaged)

    async def count(self, *, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many rows there are."""
        return await self._db.count(table=self._table, timeout=timeout)

    async def _run(
        self,
        op: Op,
        keys: Any,
        rows: Any,
        *,
        ttl: Ttl = None,
        atomic: bool,
        condition: Condition = Condition.NONE,
        out: Any = None,
        timeout: Timeout,
    ) -> RowRequests:
        db = self._db
        db._require_open()
        bounds = db._request_bounds(self._table)
        requests = RowRequests(op, self.layout, keys, rows, bounds, atomic=atomic, condition=condition, out=out)
        await db._run_requests(requests, ttl_ms(ttl), self._table, timeout, self.layout.name)
        return requests
