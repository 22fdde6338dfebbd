"""Mistakes in format 4, its drafts, and copies between formats."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORD, _LAYOUT, _COPY = "gpkvs/kernels/record.cuh", "gpkvs/kernels/layout.cuh", "gpkvs/kernels/copy.cu"
_FORMAT4, _FORMATS = "engine/test_format4.py::", "recovery/copy/test_formats.py::"

MUTANTS = (
    Mutant(
        "format4-has-no-room-for-an-expiry",
        _LAYOUT,
        "    const bool expires = a.expiries && a.expiries[op];\n",
        "    const bool expires = false;\n",
        "a record that expires ends eight bytes behind its place",
        (f"{_FORMAT4}test_each_length",),
    ),
    Mutant(
        "format4-walks-over-zeros",
        "gpkvs/kernels/compact.hpp",
        "if (units < RECORD_UNITS_MIN || !is_inside) {",
        "if (!is_inside) {",
        "compaction never passes a header of zeros",
        (f"{_FORMAT4}test_a_header_of_zeros_is_walked_past",),
    ),
    Mutant(
        "format4-compares-other-lengths",
        "gpkvs/kernels/resolve.hpp",
        "        const bool expires = slot_kind(a.old_meta[chain]) == KIND_EXPIRING;\n",
        "        const bool expires = false;\n",
        "a script takes the value of a key that expires for another one, and a lock stays",
        ("server/redis/test_redis_format4.py::test_a_lock_is_released_whatever_its_value_s_length",),
    ),
    Mutant(
        "copy-forgets-expiries",
        _COPY,
        "record.table_id, record.version, record.expiry_ms, record.key,",
        "record.table_id, record.version, 0, record.key,",
        "keys that expired stay for ever after a copy into another format",
        (f"{_FORMATS}test_between_formats",),
    ),
    Mutant(
        "copy-believes-damaged-lengths",
        _COPY,
        "if (record.units != units || record.table_id != a.table_id) a.units[i] = units;",
        "if (record.table_id != a.table_id) a.units[i] = units;",
        "a damaged record has a copy say that the heap is too small",
        (f"{_FORMATS}test_a_damaged_record_is_not_converted",),
    ),
    Mutant(
        "root-opens-any-draft",
        "gpkvs/media/layout.py",
        "if version == DRAFT_FORMAT_VERSION and draft != DRAFT:",
        "if version == DRAFT_FORMAT_VERSION and not draft:",
        "a store of a later draft is read as if it were of this one",
        (f"{_FORMATS}test_another_draft_is_refused_untouched",),
    ),
)
