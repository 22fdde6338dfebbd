"""Judge whether a history is strictly serializable: a pure function of its columns (history.py).

A history is right if its requests could have run one at a time, with exactly the responses that the clients got, in an
order that agrees with real time: if the response to A came before B was sent, A comes before B.

The judge need not search for the order, because versions show it. A SET's version is its number in the one sequence of
operations, so the place of every request that writes is known (it must have a SET). Replaying these requests in that
order gives the state before each. A request that only reads has no number: its results show between which writes it
must have been.

Rules; the tests have histories that break each:

    number      the SETs of one request have consecutive numbers, and no other request has one of them
    phantom     no request reads a value that nobody wrote, that was refused, or that was written to another key
    version     a value is read with the version that it was written with
    replay      the results of a request that writes agree with the writes before it
    snapshot    the results of a request that only reads were true of all its keys at one moment, between two requests
    real time   a request comes after all those whose responses came before it was sent: a lost write breaks this rule
                or one of the two above

A request without a response was done if anybody has read a value that it wrote. If nobody did, all results can be
explained without it, provided that it has no DELETE, and that no DELETE found what it wrote. So the recording clients
give each such request a SET of a key that no later request writes, and read that key at the end; or they delete none
of its keys.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64, Op
from gpkvs.recovery.proof.consistency.history import I64, Flags, History, RequestOutcome

_NUMBER_BITS = 40
_NEVER = np.iinfo(np.int64).max
_SHOWN_MAX = 20


@dataclass(frozen=True)
class Anomaly:
    """One broken rule."""

    rule: str
    request: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: request {self.request}: {self.text}"


@dataclass
class Judgement:
    """What the judge found, and how much it looked at."""

    anomalies: list[Anomaly] = field(default_factory=list)
    writing: int = 0  # requests that wrote, in commit order
    reading: int = 0  # requests that only read
    unknown_done: int = 0  # without a response, but somebody read their values
    unknown_not_done: int = 0
    reads: int = 0  # results of a GET or DELETE

    @property
    def is_serializable(self) -> bool:
        """Whether no rule is broken."""
        return not self.anomalies


def judge(history: History) -> Judgement:
    """Find the results that no serial order explains.

    Raises
    ------
    ValueError
        If it is not a history: a value is written twice, or a request that writes has no SET.
    """
    return _Judge(history).judge()


class _Judge:
    """The steps of `judge`; each uses the findings of the earlier ones."""

    def __init__(self, history: History) -> None:
        self._h = history
        self._found = Judgement()
        lengths = np.diff(history.first_op)
        self._request = np.repeat(np.arange(len(lengths)), lengths)  # of each operation
        self._index = np.arange(len(history.op)) - history.first_op[self._request]
        self._has_response = history.outcome == RequestOutcome.OK
        self._is_set = history.op == Op.SET

    def judge(self) -> Judgement:
        self._check_form()
        self._match_reads()
        self._number_requests()
        self._order_requests()
        self._replay()
        self._place_readers()
        return self._found

    def _say(
        self, rule: str, broken: NDArray[np.int64], requests: I64, text: str, *columns: NDArray[np.generic]
    ) -> None:
        """Report where a rule is broken; `text` is filled with the columns there."""
        for at in broken.tolist():
            if len(self._found.anomalies) < _SHOWN_MAX:
                self._found.anomalies.append(
                    Anomaly(rule, int(requests[at]), text.format(*[column[at] for column in columns]))
                )

    def _check_form(self) -> None:
        h = self._h
        written = h.value[self._is_set]
        if len(np.unique(written)) != len(written) or (written == 0).any():
            raise ValueError("a value is written twice, or is 0")
        self._writes = _any_by_request(h.op != Op.GET, self._request, len(h.outcome))
        has_set = _any_by_request(self._is_set, self._request, len(h.outcome))
        if (self._writes & ~has_set).any():
            raise ValueError("a request that writes has no SET, so nothing says when it was done")

    def _match_reads(self) -> None:
        """Find the SET whose value each GET has read."""
        h = self._h
        sets = np.flatnonzero(self._is_set)
        sets = sets[np.argsort(h.value[sets])]
        self._reads = np.flatnonzero((h.op == Op.GET) & self._has_response[self._request] & h.found)
        if len(sets) == 0:
            self._say(
                "phantom", self._reads, self._request, "key {0}: read value {1:#x}, written by nobody", h.key, h.value
            )
            self._reads = self._reads[:0]
        at = np.minimum(np.searchsorted(h.value[sets], h.value[self._reads]), max(len(sets) - 1, 0))
        writer = sets[at] if len(sets) else at
        real = (h.value[writer] == h.value[self._reads]) & (h.key[writer] == h.key[self._reads])
        refused = h.outcome[self._request[writer]] == RequestOutcome.REFUSED
        text = "key {0}: read value {1:#x}, {2}"
        self._say(
            "phantom", self._reads[~real], self._request, text.replace("{2}", "written by nobody"), h.key, h.value
        )
        self._say("phantom", self._reads[real & refused], self._request, text.replace("{2}", "refused"), h.key, h.value)
        self._reads, self._writer = self._reads[real & ~refused], writer[real & ~refused]

    def _number_requests(self) -> None:
        """Find the number of each request's first operation, and which requests were done."""
        h, request, index = self._h, self._request, self._index
        self._base = np.full(len(h.outcome), -1, np.int64)
        seen = h.version.astype(np.int64) - index  # the number of the first operation, by each result
        own = np.flatnonzero(self._is_set & self._has_response[request])
        self._base[request[own]] = seen[own]
        # The version of a value that somebody read shows it too, for a request without a response.
        unknown = h.outcome[request[self._writer]] == RequestOutcome.UNKNOWN
        reads, writer = self._reads[unknown], self._writer[unknown]
        self._base[request[writer]] = h.version[reads].astype(np.int64) - index[writer]
        self._done = self._base >= 0
        self._found.unknown_done = int((self._done & (h.outcome == RequestOutcome.UNKNOWN)).sum())
        self._found.unknown_not_done = int((~self._done & (h.outcome == RequestOutcome.UNKNOWN) & self._writes).sum())

        self._number = self._base[request] + index  # of each operation, where it was done
        text = "a SET has version {0}, which does not fit the other versions of its request"
        wrong = (h.version[own] != self._number[own]) | ~self._done[request[own]]
        self._say("number", own[wrong], request, text, h.version)
        text = "key {0}: value {1:#x} read with version {2}, not the one it was written with"
        wrong = h.version[self._reads] != self._number[self._writer]
        self._say("version", self._reads[wrong], request, text, h.key, h.value, h.version)

    def _order_requests(self) -> None:
        """Put the requests that wrote in commit order; real time must agree."""
        h = self._h
        order = np.flatnonzero(self._done & self._writes)
        order = order[np.argsort(self._base[order], kind="stable")]
        self._order = order
        self._rank = np.full(len(h.outcome), -1, np.int64)
        self._rank[order] = np.arange(len(order))
        self._found.writing = len(order)

        ends = self._base[order] + np.diff(h.first_op)[order]
        clash = order[1:][ends[:-1] > self._base[order[1:]]]
        self._say("number", clash, np.arange(len(h.outcome)), "it has numbers of the request before it")

        self._response_at = np.where(self._has_response, h.end, _NEVER)
        first_end_after = np.minimum.accumulate(np.append(self._response_at[order], _NEVER)[::-1])[::-1][1:]
        early = order[first_end_after < h.start[order]]
        text = "it was sent after the response to a request that comes later in the commit order (number {0})"
        self._say("real time", early, np.arange(len(h.outcome)), text, self._base)

    def _replay(self) -> None:
        """Compare the results of requests that write with the state that the writes before them left."""
        h, request = self._h, self._request
        writes = np.flatnonzero((h.op != Op.GET) & self._done[request])
        writes = writes[np.argsort(self._place(writes), kind="stable")]
        self._all_writes, places = writes, self._place(writes)
        told = np.flatnonzero((h.op != Op.SET) & (self._done & self._has_response & self._writes)[request])
        self._found.reads = int(((h.op != Op.SET) & self._has_response[request]).sum())
        if len(writes) == 0:
            return
        before = np.searchsorted(places, self._place(told)) - 1
        last = writes[before]
        there = (before >= 0) & (h.key[last] == h.key[told]) & self._is_set[last]
        expected_value = np.where(there & (h.op[told] == Op.GET), h.value[last], np.uint64(0))
        expected_version = np.where(there, self._number[last], 0).astype(np.uint64)
        same = (there == h.found[told]) & (expected_value == h.value[told]) & (expected_version == h.version[told])
        text = "key {0}: the result is value {1:#x}, version {2}, found {3}, which the writes before it did not leave"
        self._say("replay", told[~same], request, text, h.key, h.value, h.version, h.found)

    def _place(self, operations: I64) -> U64:
        """Return key and number joined in one integer: sorted by it, the writes of one key lie together, in order."""
        number = self._number[operations].astype(np.uint64)
        assert len(number) == 0 or int(number.max()) < 1 << _NUMBER_BITS
        place: U64 = self._h.key[operations].astype(np.uint64) << np.uint64(_NUMBER_BITS) | number
        return place

    def _place_readers(self) -> None:
        """Give each request that only read the earliest moment that explains its results: after the first k writers."""
        h = self._h
        readers = np.flatnonzero(self._has_response & ~self._writes)
        readers = readers[np.argsort(h.start[readers], kind="stable")]
        self._found.reading = len(readers)
        low, high = self._bounds(readers)
        absences = self._absences(readers)
        finished = readers[np.argsort(h.end[readers], kind="stable")].tolist()
        moment: dict[int, int] = {}
        reached, next_finished = 0, 0
        starts, ends = h.start.tolist(), h.end.tolist()
        for reader, lowest, highest in zip(readers.tolist(), low.tolist(), high.tolist(), strict=True):
            # No reader may see an older state than a reader whose response came before it was sent.
            while ends[finished[next_finished]] < starts[reader]:
                reached = max(reached, moment[finished[next_finished]])
                next_finished += 1
            at: int | None = max(lowest, reached)
            if reader in absences:
                at = absences[reader].first_from(max(lowest, reached))
            if at is None or at > highest:
                self._found.anomalies.append(
                    Anomaly(
                        "snapshot",
                        reader,
                        f"by its results and the clock it ran after {max(lowest, reached)} writing requests or more "
                        f"and at most {highest}; at no such moment were all its results true",
                    )
                )
                if len(self._found.anomalies) >= _SHOWN_MAX:
                    return
                at = max(lowest, reached)
            moment[reader] = at

    def _bounds(self, readers: I64) -> tuple[I64, I64]:
        """Return the earliest and the latest moment that the values found and the writers' times allow."""
        h, request = self._h, self._request
        low, high = np.zeros(len(h.outcome), np.int64), np.full(len(h.outcome), len(self._order), np.int64)
        mine = ~self._writes[request[self._reads]]
        reads, writer = self._reads[mine], self._writer[mine]
        rank = self._rank[request]
        np.maximum.at(low, request[reads], rank[writer] + 1)
        at = np.searchsorted(self._place(self._all_writes), self._place(writer))
        following = self._all_writes[np.minimum(at + 1, len(self._all_writes) - 1)] if len(reads) else reads
        overwritten = (at + 1 < len(self._all_writes)) & (h.key[following] == h.key[writer])
        np.minimum.at(high, request[reads[overwritten]], rank[following[overwritten]])

        by_end = self._order[np.argsort(self._response_at[self._order], kind="stable")]
        responded_before = np.searchsorted(self._response_at[by_end], h.start[readers], side="left")
        latest = np.maximum.accumulate(np.append(0, self._rank[by_end] + 1))
        by_start = self._order[np.argsort(h.start[self._order], kind="stable")]
        sent_after = np.searchsorted(h.start[by_start], h.end[readers], side="right")
        earliest = np.minimum.accumulate(np.append(self._rank[by_start], len(self._order))[::-1])[::-1]
        return (
            np.maximum(low[readers], latest[responded_before]),
            np.minimum(high[readers], earliest[sent_after]),
        )

    def _absences(self, readers: I64) -> dict[int, _Absence]:
        """Return, for each reader that missed a key, when all the keys that it missed were absent."""
        h, request = self._h, self._request
        is_reader = np.zeros(len(h.outcome), np.bool_)
        is_reader[readers] = True
        missed = np.flatnonzero((h.op == Op.GET) & ~h.found & is_reader[request])
        wanted = np.isin(h.key[self._all_writes], h.key[missed])
        presence: dict[int, _Presence] = {}
        ranks = self._rank[request[self._all_writes[wanted]]].tolist()
        columns = h.key[self._all_writes[wanted]].tolist(), ranks, self._is_set[self._all_writes[wanted]].tolist()
        for key, rank, there in zip(*columns, strict=True):
            presence.setdefault(key, _Presence()).write(rank, there)
        absences: dict[int, _Absence] = {}
        for reader, key in zip(request[missed].tolist(), h.key[missed].tolist(), strict=True):
            if key in presence:
                absences.setdefault(reader, _Absence([])).keys.append(presence[key])
        return absences


class _Presence:
    """At which moments one key is there."""

    def __init__(self) -> None:
        self._moments = [0]
        self._there = [False]

    def write(self, rank: int, there: bool) -> None:
        if self._moments[-1] == rank + 1:
            self._there[-1] = there
        else:
            self._moments.append(rank + 1)
            self._there.append(there)

    def absent_from(self, moment: int) -> int | None:
        """Return the first moment from `moment` on at which the key is absent."""
        at = bisect_right(self._moments, moment) - 1
        if not self._there[at]:
            return moment
        for later in range(at + 1, len(self._moments)):
            if not self._there[later]:
                return self._moments[later]
        return None


@dataclass
class _Absence:
    """Keys that must be absent at the same moment."""

    keys: list[_Presence]

    def first_from(self, moment: int) -> int | None:
        """Return the first moment from `moment` on at which all are absent."""
        while True:
            at = moment
            for key in self.keys:
                found = key.absent_from(at)
                if found is None:
                    return None
                at = found
            if at == moment:
                return at
            moment = at


def _any_by_request(chosen: Flags, request: I64, requests: int) -> Flags:
    """Return which requests have a chosen operation."""
    return np.bincount(request[chosen], minlength=requests).astype(np.bool_)
