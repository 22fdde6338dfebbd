"""YCSB's core workload: keys, records, and the order of operations."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import TypeAlias, cast

import msgpack
import numpy as np

from gpkvs.client.ycsb.generators import Generator, Latest, Numbers, ScrambledZipfian, Uniform, fnv_hash64
from gpkvs.client.ycsb.properties import Properties
from gpkvs.errors import InvalidArgumentError

Record = dict[str, bytes]

_BLOCK = 1024  # draws at a time: one call into NumPy serves that many operations
_RANDOM_BYTES = 1 << 20


class Operation(Enum):
    """Kinds of operations; the values are the names in YCSB's report."""

    READ = "READ"
    UPDATE = "UPDATE"
    INSERT = "INSERT"
    READ_MODIFY_WRITE = "READ-MODIFY-WRITE"


Step: TypeAlias = tuple[Operation, int, bytes]
"""One operation, the number of its record, and that record's key."""


class CoreWorkload:
    """Records and operations as YCSB's core workload makes them.

    A record is one value: a msgpack map from field names to bytes.

    Parameters
    ----------
    properties
        What the user asked for.
    seed
        The same seed makes the same choices.
    """

    def __init__(self, properties: Properties, seed: int) -> None:
        self._properties = properties
        self._rng = np.random.default_rng(seed)
        self._random = random.Random(seed)
        self._noise = self._rng.bytes(_RANDOM_BYTES + properties.fieldlength)
        self._fields = [f"{properties.fieldnameprefix}{i}" for i in range(properties.fieldcount)]
        self._records = properties.insertstart + properties.records_to_insert  # all records below this are there
        self._next_insert = self._records
        self._inserted_ahead: list[int] = []
        self._generator = self._make_generator()

    def _make_generator(self) -> Generator:
        properties = self._properties
        first, count = properties.insertstart, properties.records_to_insert
        match properties.requestdistribution:
            case "uniform":
                return Uniform(self._rng, first, count)
            case "zipfian":
                # As in YCSB: room for twice the records that will be inserted, so that popularity does not shift.
                inserts = int(properties.operationcount * properties.insertproportion * 2)
                return ScrambledZipfian(self._rng, first, count + inserts)
            case _:
                return Latest(self._rng, lambda: self._records)

    def loads(self) -> Iterator[Step]:
        """Return the steps of a load."""
        first = self._properties.insertstart
        end = first + self._properties.records_to_insert
        for start in range(first, end, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, end))
            for number, key in zip(numbers.tolist(), self.keys(numbers), strict=True):
                yield Operation.INSERT, number, key

    def transactions(self) -> Iterator[Step]:
        """Return the steps of a run.

        Raises
        ------
        InvalidArgumentError
            If no operation has a proportion.
        """
        properties = self._properties
        shares = {
            Operation.READ: properties.readproportion,
            Operation.UPDATE: properties.updateproportion,
            Operation.INSERT: properties.insertproportion,
            Operation.READ_MODIFY_WRITE: properties.readmodifywriteproportion,
        }
        total = sum(shares.values())
        if not total:
            raise InvalidArgumentError("all of them are 0: nothing to do", field="proportions")
        operations = list(shares)
        probabilities = [share / total for share in shares.values()]
        return self._draw(operations, probabilities, properties.operationcount)

    def _draw(self, operations: list[Operation], probabilities: list[float], count: int) -> Iterator[Step]:
        insert = operations.index(Operation.INSERT)
        for start in range(0, count, _BLOCK):
            chosen = self._rng.choice(len(operations), min(_BLOCK, count - start), p=probabilities)
            numbers = self._existing(len(chosen))
            inserts = int((chosen == insert).sum())
            numbers[chosen == insert] = np.arange(self._next_insert, self._next_insert + inserts)
            self._next_insert += inserts
            for choice, number, key in zip(chosen.tolist(), numbers.tolist(), self.keys(numbers), strict=True):
                yield operations[choice], number, key

    def _existing(self, count: int) -> Numbers:
        """Draw records that are there; draw again for those that are not inserted yet."""
        numbers = self._generator.draw(count)
        while (missing := numbers >= self._records).any():
            numbers[missing] = self._generator.draw(int(missing.sum()))
        return numbers

    def inserted(self, number: int) -> None:
        """Note that the insert of a record has ended: later draws may take it, if all before it have ended too."""
        if number < self._records:
            return
        heappush(self._inserted_ahead, number)
        while self._inserted_ahead and self._inserted_ahead[0] == self._records:
            heappop(self._inserted_ahead)
            self._records += 1

    def keys(self, numbers: Numbers) -> list[bytes]:
        """Return records' keys: "user" and the number, hashed unless insertorder=ordered, padded with zeros."""
        if self._properties.insertorder == "hashed":
            numbers = fnv_hash64(numbers)
        digits = self._properties.zeropadding
        return [b"user%0*d" % (digits, number) for number in numbers.tolist()]

    def record(self, key: bytes) -> Record:
        """Return a new record."""
        return {field: self._field(key, field) for field in self._fields}

    def changed_fields(self, key: bytes) -> Record:
        """Return the fields that an update writes: all, or one of them (writeallfields=false)."""
        if self._properties.writeallfields:
            return self.record(key)
        field = self._random.choice(self._fields)
        return {field: self._field(key, field)}

    def read_fields(self, record: Record) -> Record:
        """Return the fields that a read looks at: all, or one of them (readallfields=false)."""
        if self._properties.readallfields:
            return record
        field = self._random.choice(self._fields)
        return {field: record[field]} if field in record else {}

    def is_intact(self, key: bytes, fields: Record) -> bool:
        """Whether fields hold the bytes that were written (dataintegrity=true)."""
        return bool(fields) and all(value == self._field(key, field) for field, value in fields.items())

    def _field(self, key: bytes, field: str) -> bytes:
        length = self._properties.fieldlength
        if self._properties.dataintegrity:
            return hashlib.shake_128(key + b":" + field.encode()).digest(length)
        start = int(self._random.random() * _RANDOM_BYTES)
        return self._noise[start : start + length]


def pack(record: Record) -> bytes:
    """Return the bytes that are stored for a record."""
    return cast(bytes, msgpack.packb(record))


def unpack(value: bytes) -> Record:
    """Return the record that was packed into bytes.

    Raises
    ------
    ValueError
        If they are no record.
    """
    record = msgpack.unpackb(value)
    if not isinstance(record, dict):
        raise ValueError("the value is no record: it was not written by a load of this program")
    return cast(Record, record)
