"""Mistakes in the library beneath the database (gpkvs.gpm)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EXPLORED = "recovery/proof/gpmfail/test_explorer.py::test_no_state_breaks_a_promise"

MUTANTS = (
    Mutant(
        "gpm-insert-without-a-fence",
        "gpkvs/kernels/gpm_log.cuh",
        """((const u64*)entry)[w]);
    pm_persist();
    gpm_log_set_count""",
        """((const u64*)entry)[w]);
    gpm_log_set_count""",
        "a tail counts an entry that is not durable",
        (_EXPLORED,),
    ),
    Mutant(
        "gpm-tail-before-entry",
        "gpkvs/kernels/gpm_log.cuh",
        """
    for (u64 w = 0; w < log->words; w++) pm_store(gpm_log_word(log, thread, count, w)""",
        """
    gpm_log_set_count(log, thread, count + 1);
    for (u64 w = 0; w < log->words; w++) pm_store(gpm_log_word(log, thread, count, w)""",
        "a tail counts an entry that is not there yet",
        (_EXPLORED,),
    ),
    Mutant(
        "gpm-idle-at-the-begin",
        "gpkvs/gpm/log.py",
        "self._next_epoch(State.ACTIVE)",
        "self._next_epoch(State.IDLE)",
        "a transaction that a crash cuts off is not undone",
        (_EXPLORED, "gpm/test_log.py::test_a_transaction_that_fails_is_undone"),
    ),
    Mutant(
        "gpm-copy-switched-early",
        "gpkvs/gpm/checkpoint.py",
        "        new = group.current.next\n",
        "        new = group.current.next\n        store_current(self._file, group.number, new)\n",
        "a copy counts before it is written",
        (_EXPLORED,),
    ),
    Mutant(
        "gpm-version-counts-before-its-data",
        "gpkvs/gpm/versions.py",
        "        flushing, self._flushing = self._flushing, []\n",
        "        store_current(self._file, _WORD, Current(self.number + 1, 1 - self._current.copy))\n"
        "        flushing, self._flushing = self._flushing, []\n",
        "a version counts before it is durable",
        (_EXPLORED,),
    ),
)
