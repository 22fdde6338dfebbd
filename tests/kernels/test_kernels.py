"""The numbers that Python and the kernels must agree on, and the primitives they rest on."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpkvs.kernels
from gpkvs import batch
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import HAS_VALUE, READS, RETURNS_VALUE, Condition, Op, Status
from gpkvs.columns.row_layout import ELEMENTS
from gpkvs.engine.commit.stores import COUNT_LIVE
from gpkvs.engine.seam.write_set import TableWrites
from gpkvs.engine.state.heap import Heap, SegmentCounts, Tail
from gpkvs.engine.state.table import Held, Table
from gpkvs.media import layout
from gpkvs.media.layout import Root
from gpkvs.native import audits, crc32c, library

KERNELS = Path(gpkvs.kernels.__file__).parent


def test_crc32c_of_known_strings() -> None:
    # RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_crc32c_bit_by_bit() -> None:
    """Lanes that are at work side by side, and what is left of them."""
    data = random.Random(1).randbytes(8 * 300)

    def expected(words: int) -> int:
        crc = 0xFFFFFFFF
        for byte in data[: 8 * words]:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    for words in (0, 1, 15, 16, 47, 48, 49, 95, 96, 97, 143, 144, 145, 300):
        assert crc32c(data[: 8 * words]) == expected(words), words


def test_fingerprint_is_siphash_2_4_128() -> None:
    # The reference vectors of SipHash's authors, key 00..0f; made again with OpenSSL's SIPHASH, size 16.
    expected = {
        b"": "a3817f04ba25a8e66df67214c7550293",
        bytes(range(8)): "3b62a9ba6258f5610f83e264f31497b4",
        bytes(range(15)): "5493e99933b0a8117e08ec0f97cfc3d9",
    }
    lengths = np.array([len(key) for key in expected], np.uint32)
    low, high = np.empty(len(expected), np.uint64), np.empty(len(expected), np.uint64)
    backend = CpuBackend(1)
    backend.launch(
        "route_bytes",
        len(expected),
        keys=np.frombuffer(b"".join(expected) + bytes(8), np.uint8),
        key_offsets=np.cumsum(lengths, dtype=np.uint64) - lengths,
        key_lengths=lengths,
        hash_key0=int.from_bytes(bytes(range(8)), "little"),
        hash_key1=int.from_bytes(bytes(range(8, 16)), "little"),
        fingerprint0=low,
        fingerprint1=high,
    )
    backend.close()
    digests = [
        (int(a).to_bytes(8, "little") + int(b).to_bytes(8, "little")).hex() for a, b in zip(low, high, strict=True)
    ]
    assert digests == list(expected.values())


def test_layout_numbers_are_those_of_the_kernels() -> None:
    source = (KERNELS / "base" / "layout.cuh").read_text()
    constants = dict(re.findall(r"static const u32 (\w+) = (\d+);", source))
    assert int(constants["WAYS"]) == layout.WAYS
    assert int(constants["BLOCK_BYTES"]) == layout.BLOCK_BYTES
    assert int(constants["UNIT_BYTES"]) == layout.UNIT_BYTES
    assert int(constants["ENTRY_HEADER_WORDS"]) * 8 == layout.BYTES_LAYOUT.entry_bytes - layout.BYTES_LAYOUT.slot_bytes
    assert int(constants["STRIPE_ENTRIES"]) == layout.STRIPE_ENTRIES
    assert int(constants["RECORD_HEADER_BYTES"]) == layout.RECORD_HEADER_BYTES
    assert int(constants["SHORT_RECORD_HEADER_BYTES"]) == layout.SHORT_RECORD_HEADER_BYTES
    assert f"RECORDS_3 = {layout.FORMAT_3}, RECORDS_4 = {layout.FORMAT_4}" in source
    assert f"sizeof(BytesSlot) == {layout.BYTES_LAYOUT.slot_bytes}" in source
    assert f"sizeof(U64Slot) == {layout.U64_LAYOUT.slot_bytes}" in source


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("distinct", [1, 2, 50, 1 << 62])
@pytest.mark.parametrize("n", [1, 2, 100, 30_000])
def test_order_is_a_stable_sort(distinct: int, n: int, threads: int) -> None:
    rng = np.random.default_rng(n + distinct % 1000)
    fingerprint0 = rng.integers(0, 1 << 63, n, np.uint64) % np.uint64(distinct) * np.uint64(2**64 // distinct - 1)
    fingerprint1 = rng.integers(0, 2, n).astype(np.uint64)  # equal first halves must not join two keys
    ops = rng.integers(1, 4, n).astype(np.uint8)
    backend = CpuBackend(threads)
    order, chain_of, chain_start, last_write = backend.order(fingerprint0, fingerprint1, ops)
    backend.close()
    assert np.array_equal(order, np.lexsort((np.arange(n), fingerprint1, fingerprint0)))
    keys = list(zip(fingerprint0[order].tolist(), fingerprint1[order].tolist(), strict=True))
    starts = [p for p in range(n) if p == 0 or keys[p] != keys[p - 1]]
    assert chain_start.tolist() == [*starts, n]
    assert np.array_equal(chain_of, np.repeat(np.arange(len(starts)), np.diff([*starts, n])))
    # A write before the chain counts for none, whichever it is.
    writes = np.maximum.accumulate(np.where(ops[order] != Op.GET, np.arange(1, n + 1), 0))
    first = chain_start[chain_of]
    assert np.array_equal(np.where(last_write > first, last_write, 0), np.where(writes > first, writes, 0))


def test_launch_refuses_arguments_of_another_type() -> None:
    backend = CpuBackend(1)
    with pytest.raises(AssertionError, match="digest"):
        backend.launch(
            "verify_log_bytes",
            1,
            log=0,
            epoch=0,
            slots=0,
            digest=np.zeros(1, np.uint32),
            wrong=np.zeros(1, np.uint8),
        )
    with pytest.raises(AssertionError, match="takes"):
        backend.launch("verify_log_bytes", 1, log=0)
    backend.close()


def _root() -> Root:
    checkpoint = layout.Checkpoint(*range(13, 22), layout.Growth(23, 24, 25))
    extents = tuple(layout.Extent(at, 1000 + at, 2000 + at) for at in range(layout.EXTENTS_MAX))
    kind = layout.CommitKind.JOURNAL
    return Root(1, 2, b"i" * 16, b"k" * 16, 0, 3, 4, 5, 6, 7, 8, 9, kind, 11, 12, checkpoint, 22, extents)


def test_structures_survive_packing() -> None:
    root = _root()
    assert Root.unpack(root.pack()) == root
    run = layout.LogRun(1, 2, 3, 48, 0, 9)
    descriptor = layout.Descriptor(7, (run,), 1, 2, 3, 4, 5, 6, 2**64 - 1, layout.Growth(7, 8, 9))
    assert layout.Descriptor.unpack(descriptor.pack()) == descriptor
    for state in layout.State:
        epoch = layout.make_epoch(2**22 - 1, 2**24 - 1)
        assert layout.unpack_flag(layout.pack_flag(state, epoch)) == (state, epoch)


def test_every_bit_of_a_structure_is_checked() -> None:
    root = _root().pack()
    flag = layout.pack_flag(layout.State.ACTIVE, 12345)
    for packed, unpack in ((root, Root.unpack), (flag, layout.unpack_flag)):
        for bit in range(8 * len(packed)):
            flipped = bytearray(packed)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(layout.BadBytesError):
                unpack(bytes(flipped))


def test_units_of_references_are_counted_alike_on_host_and_gpu() -> None:
    """A damaged reference, which leaves the heap, counts nowhere."""
    rng = np.random.default_rng(8)
    segment_units = (1 << 20) // layout.UNIT_BYTES
    length = rng.integers(2, 40, 300_000, np.uint64)
    offset = rng.integers(0, 9 * segment_units, len(length), np.uint64)  # two segments are outside
    reference = offset << np.uint64(layout.REFERENCE_LENGTH_BITS) | length
    reference[0] = (1 << 64) - 1 << layout.REFERENCE_LENGTH_BITS & (1 << 64) - 1 | 3
    assert np.array_equal(layout.reference_offset(reference[1:]), offset[1:])
    assert np.array_equal(layout.reference_length(reference[1:]), length[1:])
    expected = [int(length[1:][offset[1:] // np.uint64(segment_units) == segment].sum()) for segment in range(7)]
    backend, units, charged = CpuBackend(3), np.zeros(9, np.uint64), np.zeros(9, np.uint64)
    arguments = {"segment_units": segment_units, "segments": 7}
    backend.launch(
        "count_units", len(reference), reference=reference, live_units=units, charged_units=charged, **arguments
    )
    assert np.array_equal(charged, units)  # they are small
    assert units.tolist() == [*expected, 0, 0]
    heap = Heap(1 << 20, Tail(0, 0), SegmentCounts(units[:7].copy(), charged[:7].copy(), np.zeros(7, np.uint64)))
    writes = TableWrites(SimpleNamespace(heap=SimpleNamespace(address=0)), backend, heap)  # type: ignore[arg-type]
    writes.index = SimpleNamespace(layout=layout.BYTES_LAYOUT)  # type: ignore[assignment]
    writes.keep(freed_reference=reference)
    table = Table(SimpleNamespace(), Held(heap_units=sum(expected)))  # type: ignore[arg-type]
    writes.set(freed=len(reference), held=table.held_address)
    COUNT_LIVE(writes.address, 0, 1)
    assert table.held == Held()
    assert heap.live_units.tolist() == heap.charged_units.tolist() == [0] * 7
    assert heap.charged == 0
    backend.close()


def test_audits_are_named_after_invariants() -> None:
    """The kernels' list of names and that of `gpkvs.media.layout` are one."""
    assert layout.__doc__
    invariants = re.findall(r"^([a-z0-9-]+) {2,}", layout.__doc__, re.MULTILINE)
    assert audits()[0] == ""
    assert set(audits()[1:]) < set(invariants)
    assert len(set(audits())) == 13


def test_the_protocol_has_one_list_of_numbers() -> None:
    def listed(text: bytes) -> dict[str, tuple[int, str]]:
        lines = (line.split(" ", 2) for line in text.decode().split(";")[:-1])
        return {name: (int(number), more) for name, number, more in lines}

    operations = listed(library.gpkvs_operations())
    inner = ("LENGTH", "REQUIRE", "COPY", "SETRANGE", "INCREMENT_DECIMAL")
    numbers = {op.name: op.value for op in Op} | {name: getattr(batch, name) for name in inner}
    assert {name: number for name, (number, _) in operations.items()} == numbers
    for number, kinds in operations.values():
        assert kinds.split(", ")[:2] == [
            str(bool(is_one)).lower() for is_one in (HAS_VALUE[number], RETURNS_VALUE[number])
        ]
    assert {number for number, kinds in operations.values() if kinds.endswith("true")} == {
        *READS,
        *(batch.LENGTH, batch.REQUIRE),
    }
    conditions = listed(library.gpkvs_conditions())
    assert {condition.name: (condition.value, "") for condition in Condition}.items() <= conditions.items()
    assert {status.name: (status.value, "") for status in Status} == listed(library.gpkvs_statuses())


def test_elements_of_rows_are_numbered_alike() -> None:
    source = (KERNELS / "plan" / "row_elements.hpp").read_text()
    listed = source.partition("#define ROW_ELEMENTS(F)")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"F\((\w+)\)", listed)) == ELEMENTS


def test_kernels_say_what_they_are() -> None:
    said = {name: KernelFields(name) for name in ("route_u64", "find_bytes", "apply_u64", "admit_records")}
    assert [fields.lanes for fields in said.values()] == [1, 8, 1, 1]
    assert [fields.stores_to_pm for fields in said.values()] == [False, False, True, False]
    assert [fields.is_serial for fields in said.values()] == [False, False, False, True]
