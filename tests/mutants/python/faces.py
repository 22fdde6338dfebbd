"""Mistakes in the face of the store and the clients: transactions, times, numbers, scans."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TRANSACTION, _TESTS = "gpkvs/transaction.py", "client/test_face.py::"
_STRINGS = "client/test_byte_strings.py::"
_BUFFERS = "client/test_buffers.py::"
_CHANGED = (f"{_TESTS}test_a_transaction_whose_reads_changed_writes_nothing[store]",)

MUTANTS = (
    Mutant(
        "transaction-without-guards",
        _TRANSACTION,
        "        self._add_checks(operations)\n        for key",
        "        for key",
        "a transaction writes what it decided from values that have changed",
        _CHANGED,
    ),
    Mutant(
        "a-commit-without-its-checks",
        _TRANSACTION,
        "operations.check(key, absent=True)",
        "pass",
        "a transaction does not notice a key that was made after it had looked for it",
        _CHANGED,
    ),
    Mutant(
        "zombies-raise",
        _TRANSACTION,
        "                self.require_unchanged()",
        "                pass",
        "a transaction fails because of two values that were never there together",
        (f"{_TESTS}test_an_exception_of_what_does_not_fit_together_is_not_raised[store]",),
    ),
    Mutant(
        "transaction-blind-to-itself",
        _TRANSACTION,
        "        if key in self._written:\n            written",
        "        if False:\n            written",
        "a transaction does not see what it has written",
        (f"{_TESTS}test_a_transaction_sees_what_it_wrote_and_reads_once[store]",),
    ),
    Mutant(
        "ttl-without-a-clock",
        "gpkvs/operations.py",
        "option.ttl_ms and option.ttl_ms + now for",
        "option.ttl_ms for",
        "a store takes a time to live for a time since 1970",
        (f"{_TESTS}test_keys_expire[store]",),
    ),
    Mutant(
        "numbers-lost-at-cuts",
        "gpkvs/columns/numbers.py",
        "slice(first, first + count_max)",
        "slice(first, first + count_max - 1)",
        "numbers between two requests are left out",
        (f"{_TESTS}test_more_numbers_than_a_request_takes[store]",),
    ),
    Mutant(
        "buffers-filled-before-all-are-measured",
        "gpkvs/kernels/engine/native_engine.hpp",
        "        if (length_of(a, get) > room.place_bytes[get]) return false;\n",
        "",
        "a value that is too long is written over what is behind its buffer",
        (f"{_BUFFERS}test_a_buffer_that_is_too_small_changes_nothing[store-8]",),
    ),
    Mutant(
        "buffers-filled-beside-a-damaged-value",
        "gpkvs/kernels/engine/native_engine.hpp",
        "    return !memchr(a.status, STATUS_CORRUPT, a.n);\n",
        "    return true;\n",
        "a call that fails has changed some of the buffers",
        (f"{_BUFFERS}test_a_damaged_value_changes_nothing[store]",),
    ),
    Mutant(
        "buffers-of-a-result-filled-before-all-are-measured",
        "gpkvs/columns/buffers.py",
        "        if length > len(buffer):\n",
        "        if False:\n",
        "a client writes what it has of a value that is too long, or nothing",
        (f"{_BUFFERS}test_a_buffer_that_is_too_small_changes_nothing[client-8]",),
    ),
    Mutant(
        "buffers-overlap",
        "gpkvs/columns/buffers.py",
        "        if before + size > begin:\n",
        "        if False:\n",
        "one value is written over a part of another one",
        (f"{_BUFFERS}test_buffers_that_overlap_are_refused[store]",),
    ),
    Mutant(
        "a-buffer-is-read-only",
        "gpkvs/columns/buffers.py",
        "    if writable and not memory.flags.writeable:\n",
        "    if False:\n",
        "bytes, which never change, are changed",
        (f"{_BUFFERS}test_a_bad_buffer_changes_nothing[store-True-frozen]",),
    ),
    Mutant(
        "numbers-in-any-table",
        "client/operations.py",
        "    if layout == NUMBERS:\n        message.numbers = True\n    else:",
        "    if layout != NUMBERS:",
        "numbers are stored in a table of bytes, where nobody reads them as numbers",
        (f"{_TESTS}test_numbers[client]",),
    ),
    *(
        Mutant(
            f"ints-in-any-table-{number}",
            file,
            old,
            "if False:",
            "an int is stored in a table of bytes, where it is 8 bytes that nobody looks for",
            (f"{_TESTS}test_ints_are_refused_where_they_are_none[{face}]",),
        )
        for number, (file, old, face) in enumerate(
            [
                ("gpkvs/store.py", "if operations.is_of_numbers:", "store"),
                ("client/operations.py", "if operations.is_of_numbers:", "client"),
                ("client/gather.py", "if self._is_of_numbers:", "async"),
                ("client/several.py", "if self._is_of_numbers:", "async"),
            ]
        )
    ),
    Mutant(
        "negative-numbers-wrap",
        "gpkvs/columns/numbers.py",
        "if int(low) < limits.min or int(high) > limits.max:",
        "if int(high) > limits.max:",
        "-1 becomes 2**64 - 1",
        (f"{_TESTS}test_numbers[store]",),
    ),
    Mutant(
        "damage-left-out-silently",
        "gpkvs/scan.py",
        "    if records:",
        "    if False:",
        "a scan leaves out damaged records and says nothing",
        (f"{_TESTS}test_a_scan_tells_of_damaged_records_at_its_end",),
    ),
    Mutant(
        "embedded-lengths-unchecked",
        "gpkvs/operations.py",
        "        self._check(limits)\n",
        "",
        "the embedded store takes an empty key",
        (f"{_TESTS}test_what_is_like_bytes_and_what_is_not[store]",),
    ),
    Mutant(
        "halved-requests-stay-small",
        "gpkvs/columns/string_requests.py",
        "        self._count_max = min(2 * self._count_max, self._ops_max)\n",
        "",
        "a few long values make each later key a request of its own",
        (f"{_STRINGS}test_requests_become_large_again",),
    ),
    Mutant(
        "byte-strings-checked-part-by-part",
        "gpkvs/columns/string_requests.py",
        '        _check_lengths("keys", keys, limits.key_bytes_min, limits.key_bytes_max)\n',
        "",
        "half of the values are stored before the empty key is refused",
        (f"{_STRINGS}test_indexes_of_errors_are_those_of_all_keys",),
    ),
    Mutant(
        "masked-byte-strings-are-taken",
        "gpkvs/columns/byte_strings.py",
        "if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):",
        "if False:",
        "what an array hides is stored",
        (f"{_STRINGS}test_wrong_keys",),
    ),
    Mutant(
        "small-heaps-are-compacted",
        "gpkvs/engine/space/heap_growth.py",
        "        share = min(share, _SMALL_GROWS_SHARE)\n",
        "        pass\n",
        "compaction moves most of a small store, again and again",
        ("engine/space/test_heap_growth.py::test_a_small_heap_grows_earlier",),
    ),
)
