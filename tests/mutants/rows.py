"""Mistakes in tables of rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "client/test_rows.py::"
_ELEMENTS = "gpkvs/kernels/row_elements.hpp"
_RESOLVE = "gpkvs/kernels/resolve.hpp"

MUTANTS = (
    Mutant(
        "row-sum-of-nothing",
        _RESOLVE,
        "        if (!is_present(op)) memset(to, 0, bytes);",
        "        if (true) memset(to, 0, bytes);",
        "a sum forgets the row that was there",
        (f"{_TESTS}test_a_sum_sees_what_its_request_has_done",),
    ),
    Mutant(
        "row-sum-over-what-was-read",
        _RESOLVE,
        "        if (is_made(writer) && is_present(op) && !a.is_seen[writer]) {",
        "        if (is_made(writer) && is_present(op)) {",
        "a GET between two sums of one request reads the second one",
        (f"{_TESTS}test_a_sum_sees_what_its_request_has_done",),
    ),
    Mutant(
        "row-sum-keeps-no-expiry",
        _RESOLVE,
        "held != bytes)) return STATUS_CORRUPT;\n        keep_expiry(op, record);",
        "held != bytes)) return STATUS_CORRUPT;",
        "a row that is added to stays for ever",
        (f"{_TESTS}test_rows_expire[store]",),
    ),
    Mutant(
        "row-sum-of-any-length",
        _RESOLVE,
        " || (is_present(op) && held != bytes)) return",
        ") return",
        "a sum reads beyond a damaged row",
        (f"{_TESTS}test_a_row_of_another_length_is_found",),
    ),
    Mutant(
        "row-sums-cut",
        _ELEMENTS,
        "return {(u16)((given + 0x7fff + (given >> 16 & 1)) >> 16)};",
        "return {(u16)(given >> 16)};",
        "sums of bfloat16 drift towards zero",
        (f"{_TESTS}test_halves_are_rounded_as_numpy_rounds_them[16257-bfloat16]",),
    ),
    Mutant(
        "row-sums-half-up",
        _ELEMENTS,
        "(rest - 0x38000000 + 0xfff + (rest >> 13 & 1))",
        "(rest - 0x38000000 + 0x1000)",
        "sums of float16 are not those of NumPy",
        (f"{_TESTS}test_halves_are_rounded_as_numpy_rounds_them[48129-float16]",),
    ),
    Mutant(
        "row-sums-lose-small-numbers",
        _ELEMENTS,
        "        if (rest < 0x38800000) return {",
        "        if (rest < 0x38800000) return {(u16)sign};\n        if (false) return {",
        "the smallest numbers of float16 are lost in sums",
        (f"{_TESTS}test_halves_are_rounded_as_numpy_rounds_them[1-float16]",),
    ),
    Mutant(
        "rows-appended-to",
        "gpkvs/kernels/native_resolve.hpp",
        "    if (has_records) return kind != OP_INCREMENT && kind != OP_APPEND && kind < OP_SETRANGE;",
        "    if (has_records) return true;",
        "a row becomes longer than a row, and nobody can read it",
        (f"{_TESTS}test_rows_keep_their_length[store-append]",),
    ),
    Mutant(
        "bytes-added-as-rows",
        "gpkvs/kernels/native_resolve.hpp",
        "    if (has_records && !row_element) return kind != OP_ADD;",
        "    if (has_records && !row_element) return true;",
        "a sum of rows writes zeros over a value of a table of bytes",
        (f"{_TESTS}test_only_rows_are_added[store]",),
    ),
    Mutant(
        "rows-of-any-layout",
        "server/codec.py",
        "store.open_table(message.table).require_layout(message.layout)",
        "store.open_table(message.table)",
        "a program reads rows of another type as its own",
        (f"{_TESTS}test_a_table_of_another_layout_is_refused[client]",),
    ),
    Mutant(
        "rows-of-any-layout-at-the-door",
        "door/messages.cpp",
        "    if (!said.layout.empty() && said.layout != table.layout) return false;\n",
        "",
        "a program reads rows of another type as its own",
        (f"{_TESTS}test_a_table_of_another_layout_is_refused[client]",),
    ),
    Mutant(
        "rows-of-any-length",
        "door/messages.cpp",
        "                       table.value_bytes_min, table.value_bytes_max);",
        "                       0, table.value_bytes_max);",
        "a value that is no row is stored among rows",
        (f"{_TESTS}test_rows_keep_their_length[client-append]",),
    ),
    Mutant(
        "row-size-unchecked",
        "gpkvs/kernels/audit.cu",
        "    if (a.row_bytes && (",
        "    if (false && (",
        "`gpkvs check` finds nothing wrong with a value that is no row",
        (f"{_TESTS}test_a_row_of_another_length_is_found",),
    ),
    Mutant(
        "rows-read-in-place-of-others",
        "gpkvs/rows.py",
        "        rows[... if is_whole else found] = held",
        "        rows[: len(held)] = held",
        "where a row is missing, the next one is read for it",
        (f"{_TESTS}test_what_is_not_there_and_memory_of_the_callers[store]",),
    ),
    Mutant(
        "rows-of-a-response-shared",
        "gpkvs/rows.py",
        "held if held.flags.writeable else held.copy()",
        "held",
        "rows that a client has read cannot be written to",
        (f"{_TESTS}test_what_is_not_there_and_memory_of_the_callers[client]",),
    ),
    Mutant(
        "rows-of-another-order",
        "gpkvs/rows.py",
        "np.ascontiguousarray(array).astype(_plain(layout, array), copy=False)",
        "np.ascontiguousarray(array)",
        "rows of a big-endian array are stored byte for byte",
        (f"{_TESTS}test_rows_come_in_many_forms[store-other order of bytes]",),
    ),
)
