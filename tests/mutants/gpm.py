"""Mistakes in the library beneath the store: logs, transactions, checkpoints, versions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DEVICE, _LOG, _FLAG = "gpkvs/kernels/gpm_log.cuh", "gpkvs/gpm/log.py", "gpkvs/gpm/transaction.py"
_CHECKPOINT, _VERSIONS, _FILE = "gpkvs/gpm/checkpoint.py", "gpkvs/gpm/versions.py", "gpkvs/gpm/file.py"
_CRASHES = "recovery/proof/gpmfail/test_explorer.py::test_no_state_breaks_a_promise"
_LOGS, _CHECKPOINTS = "gpm/test_log.py::", "gpm/test_checkpoint.py::"

MUTANTS = (
    Mutant(
        "entry-is-not-durable-before-its-tail",
        _DEVICE,
        "*word++);\n    pm_persist();\n",
        "*word++);\n",
        "after a power loss a log counts entries that are not there, and an undo stores what they hold",
        (_CRASHES,),
    ),
    Mutant(
        "tail-before-entry",
        _DEVICE,
        "    const u64* word = (const u64*)entries;\n",
        "    const u64* word = (const u64*)entries;\n    gpm_log_set_count(log, thread, count + several);\n",
        "a crash leaves an entry that counts and was never stored",
        (_CRASHES,),
    ),
    Mutant(
        "tail-is-not-durable-when-insert-returns",
        _DEVICE,
        "    pm_store(log->tails + thread, gpm_tail(log, count));\n    pm_persist();\n",
        "    pm_store(log->tails + thread, gpm_tail(log, count));\n",
        "a store in place is durable, and what undoes it is not",
        (_CRASHES,),
    ),
    Mutant(
        "entries-of-old-epochs-count",
        _DEVICE,
        "    const u64 tail = log->counts[thread];\n    return tail >> 32 == log->epoch ? (u32)tail : 0;",
        "    return (u32)log->counts[thread];",
        "a transaction that is undone also undoes the one before",
        (f"{_LOGS}test_as_lists",),
    ),
    Mutant(
        "full-log-is-not-told",
        _DEVICE,
        "return gpm_refuse(log->refusal, GPM_FULL);",
        "return false;",
        "a transaction counts, and some of its stores were never made",
        (f"{_LOGS}test_what_does_not_fit_is_not_stored",),
    ),
    Mutant(
        "entries-of-any-size-are-taken",
        _DEVICE,
        "    return sizeof(Entry) == 8 * log->words;",
        "    return true;",
        "an undo stores what lies behind an entry, or in front of it",
        (f"{_LOGS}test_entries_of_another_size_are_refused",),
    ),
    Mutant(
        "a-version-that-counts-can-be-stored-to",
        _VERSIONS,
        "            self._current = new\n        self._protect()\n",
        "            self._current = new\n",
        "a program that keeps an array over a commit stores to the version that counts",
        ("gpm/test_versions.py::test_an_array_kept_over_a_commit_is_refused",),
    ),
    Mutant(
        "part-of-several-entries-fits",
        _DEVICE,
        "several > log->depth - count",
        "count == log->depth",
        "entries go to the places of the next threads",
        (f"{_LOGS}test_several_entries_are_inserted_together_or_not",),
    ),
    Mutant(
        "stores-before-the-flag",
        _LOG,
        "        self._next_epoch(State.ACTIVE)\n",
        "        self._next_epoch(State.IDLE)\n",
        "a crash leaves half of a transaction, and nobody undoes it",
        (f"{_LOGS}test_a_transaction_that_fails_is_undone",),
    ),
    Mutant(
        "idle-before-the-undo",
        _LOG,
        "        undo(self)\n        self.place.settle()\n",
        "        self._flag.set(self._flag.epoch, State.IDLE)\n        undo(self)\n        self.place.settle()\n",
        "a crash in the middle of a recovery leaves half of it, and the next one does nothing",
        (_CRASHES,),
    ),
    Mutant(
        "epochs-come-again-with-their-entries",
        _LOG,
        "        self._tails[:] = 0\n",
        "",
        "after 2^32 transactions the entries of the first ones count again",
        (f"{_LOGS}test_epochs_begin_anew",),
    ),
    Mutant(
        "damaged-tails-are-opened",
        _LOG,
        "(self._tail_count,), file.region)\n        self._require_tails()\n",
        "(self._tail_count,), file.region)\n",
        "kernels read and store entries beyond the end of a log",
        (f"{_LOGS}test_refusals",),
    ),
    Mutant(
        "damaged-flag-is-opened",
        "gpkvs/gpm/state_word.py",
        "    if word != found.pack(place):",
        "    if word and word != found.pack(place):",
        "a state page that was lost passes for that of a new file",
        (f"{_LOGS}test_refusals",),
    ),
    Mutant(
        "a-gpu-stores-where-its-fence-is-not-enough",
        _LOG,
        "            place.require_stores(file.region)\n",
        "",
        "a log on an ordinary disk is durable only when the operating system likes",
        (f"{_LOGS}test_refusals",),
    ),
    Mutant(
        "checkpoint-counts-before-it-is-durable",
        _CHECKPOINT,
        "        if self.place.is_gpu and not self._disk:",
        "        store_current(self._file, group.number, new)\n        if self.place.is_gpu and not self._disk:",
        "a crash leaves a checkpoint that counts and is not whole, and the one before is gone",
        (_CRASHES,),
    ),
    Mutant(
        "checkpoint-over-the-one-that-counts",
        "gpkvs/gpm/current_word.py",
        "1 - self.copy if self.number else 0",
        "self.copy if self.number else 0",
        "a crash while a checkpoint is saved leaves none",
        (_CRASHES,),
    ),
    Mutant(
        "half-a-save-passes-for-what-its-copy-held",
        _CHECKPOINT,
        "        group.known[new.copy] = None\n",
        "",
        "the save after one that failed leaves out blocks that were never written",
        (f"{_CHECKPOINTS}test_what_a_failed_save_wrote_is_not_taken_for_older_blocks",),
    ),
    Mutant(
        "version-counts-before-its-data",
        _VERSIONS,
        "        flushing, self._flushing = self._flushing, []\n",
        "        store_current(self._file, _WORD, Current(self._current.number + 1, 1 - self._current.copy))\n"
        "        flushing, self._flushing = self._flushing, []\n",
        "a crash leaves a version that counts and is not whole",
        (_CRASHES,),
    ),
    Mutant(
        "array-is-not-flushed",
        "gpkvs/gpm/array.py",
        "            library.gpkvs_persist_range(self._file.address + first * row_bytes, (last - first) * row_bytes)\n",
        "",
        "what the host stored stays in the cache, and is lost with the power",
        (_CRASHES,),
    ),
    Mutant(
        "file-has-its-name-before-its-header",
        _FILE,
        "        os.fsync(file)\n        begun.rename(path)\n",
        "        begun.rename(path)\n        os.fsync(file)\n",
        "a crash leaves a file that cannot be opened",
        (_CRASHES,),
    ),
)
