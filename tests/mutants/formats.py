"""Mistakes in format 4, its drafts, and copies between formats."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORD, _LAYOUT, _COPY = "gpkvs/kernels/record.cuh", "gpkvs/kernels/layout.cuh", "gpkvs/kernels/copy.cu"
_FORMAT4, _FORMATS = "engine/test_format4.py::", "recovery/copy/test_formats.py::"
_BLOBS, _BITFLIP = "engine/test_blobs.py::", "recovery/proof/damage/test_bitflip.py::"
_DISKFAIL = "recovery/proof/diskfail/test_explorer.py::"

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
        "        const bool expires = has_expiry(a.old_meta[chain]);\n",
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
        "if version == DRAFT_FORMAT_VERSION and draft not in drafts:",
        "if version == DRAFT_FORMAT_VERSION and not draft:",
        "a store of a later draft is read as if it were of this one",
        (f"{_FORMATS}test_another_draft_is_refused_untouched",),
    ),
    Mutant(
        "blob-is-not-checked",
        "gpkvs/kernels/record.cuh",
        "        if (piece_crc(value + at, left < BLOB_PIECE_BYTES ? left : BLOB_PIECE_BYTES) != *expected++) "
        "return false;\n",
        "        expected++;\n",
        "rot at the end of a large value is served",
        (f"{_BLOBS}test_rot_is_damage_of_one_key",),
    ),
    Mutant(
        "blob-of-three-pieces-is-not-checked",
        "gpkvs/kernels/record.cuh",
        "        if (crcs[0] != expected[0] || crcs[1] != expected[1] || crcs[2] != expected[2]) return false;\n",
        "        if (crcs[0] != expected[0] || crcs[2] != expected[2]) return false;\n",
        "rot in the middle of a large value is served",
        (f"{_BLOBS}test_rot_in_each_piece",),
    ),
    Mutant(
        "check-does-not-look-at-blobs",
        "gpkvs/kernels/audit.cu",
        "    if (!is_blob_sound(record, blob_file_of(a))) return AUDIT_BLOB_CHECKSUM;\n",
        "",
        "`gpkvs check` calls a store clean whose large values rotted",
        (f"{_BITFLIP}test_damaged_values_in_blobs",),
    ),
    Mutant(
        "blob-of-any-record-is-freed",
        "gpkvs/kernels/native_planner.hpp",
        "    if (!record.blob || record.table_id != a.table_id || record.version != slot_version(a.old_meta[chain])) "
        "return;\n"
        "    if (record.key_bytes != a.key_lengths[op] || !same_bytes(record.key, a.keys + a.key_offsets[op], "
        "record.key_bytes)) return;\n",
        "    (void)op;\n    if (!record.blob) return;\n",
        "a slot that rotted frees the value of another key",
        (f"{_BLOBS}test_a_damaged_record_frees_no_blob_of_another_key",),
    ),
    Mutant(
        "blobs-of-a-plan-stay-taken",
        "gpkvs/kernels/blobs.hpp",
        "        for (const u64 reference : taken_) space_.give_back(reference_offset(reference), "
        "reference_length(reference));\n",
        "",
        "a request that is refused keeps the space of its values",
        (f"{_BLOBS}test_what_nobody_committed_is_given_back",),
    ),
    Mutant(
        "blobs-are-free-at-once",
        "gpkvs/kernels/commit_journal.hpp",
        "    free_blobs(c, epoch);\n",
        "    free_blobs(c, 0);\n",
        "W6: a value is stored over one that a frame which may be lost has removed",
        (f"{_BLOBS}test_what_a_frame_frees_waits_for_the_next",),
    ),
    Mutant(
        "blobs-are-free-when-durable",
        "gpkvs/kernels/commit_journal.hpp",
        "blobs->release(frames.covered_by(durable));",
        "blobs->release(durable);",
        "W6: a value is stored over one that an opening may verify, and batches are cut that were acknowledged",
        (f"{_DISKFAIL}test_scripts_of_blobs_show_no_violation",),
    ),
    Mutant(
        "blobs-are-not-flushed",
        "gpkvs/kernels/commit_journal.hpp",
        "frames.writer().flush_too(blobs->file());",
        "(void)blobs;",
        "a power failure takes a large value that was acknowledged",
        (f"{_DISKFAIL}test_scripts_of_blobs_show_no_violation",),
    ),
    Mutant(
        "blob-is-not-verified-at-an-opening",
        "gpkvs/kernels/redo.cu",
        "    if (record.words && (is_blob_kept(a, entry, record) || is_blob_sound(record, blob_file_of(a))))\n",
        "    if (record.words)\n",
        "a crash that lost the pages of a large value leaves a damaged key, although nobody was told of it",
        (f"{_BLOBS}test_a_frame_whose_blob_was_lost_is_cut",),
    ),
    Mutant(
        "dropped-blobs-stay",
        "gpkvs/engine/undo_committer.py",
        "            self._heap.blobs.free_later(0, blobs)\n",
        "            pass\n",
        "a dropped table keeps the space of its large values",
        (f"{_BLOBS}test_a_dropped_table_gives_its_blobs_back",),
    ),
    Mutant(
        "room-of-a-batch-looks-spare",
        "gpkvs/engine/crew.py",
        "is_again=reason in asked)",
        "is_again=False)",
        "a batch of several large values asks for room for ever, and nobody is served any more",
        (f"{_BLOBS}test_a_batch_of_several_large_values_finds_room",),
    ),
    Mutant(
        "blobs-have-no-limit",
        "gpkvs/engine/blobs.py",
        "            self._space.make_room(lacking, self._bytes_max, is_again=is_again)\n",
        "            self._space.make_room(lacking, 1 << 60, is_again=is_again)\n",
        "large values fill the disk, whatever heap_bytes_max says",
        (f"{_BLOBS}test_a_limit_of_the_heap_is_one_of_blobs_too",),
    ),
    Mutant(
        "copy-keeps-kinds",
        "gpkvs/recovery/copy/copy.py",
        "                image.words[place[order], _META] = with_kinds(rows.words[order, _META], has_blob)\n",
        "",
        "slots of a copy say that a record has a blob which has none, or the other way",
        (f"{_FORMATS}test_between_formats",),
    ),
)
