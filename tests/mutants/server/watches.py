"""Mistakes in watches, of the server and of its clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVER, _CHOSEN, _CLIENT = "server/calls/watch.py", "gpkvs/watch.py", "client/watch.py"
_TESTS, _INSIDE, _MODEL = (
    "server/calls/test_watch.py::",
    "server/calls/test_watches_inside.py::",
    "store/test_watch.py::",
)

MUTANTS = (
    Mutant(
        "half-a-transaction-beside-whole-ones",
        _SERVER,
        "            if size and (size + more > bytes_max or not part.is_whole):\n",
        "            if size and size + more > bytes_max:\n",
        "a backup that stops at the position of a response has half of the next transaction",
        (f"{_MODEL}test_what_is_cut_comes_alone",),
    ),
    Mutant(
        "whoever-is-behind-sleeps-on",
        _SERVER,
        "self._in_store.number > watch.number:",
        "False:",
        "a watch hears of a change up to a second late, if another one began beside it",
        (f"{_INSIDE}test_whoever_stands_behind_the_one_in_the_store_is_told",),
    ),
    Mutant(
        "nobody-waits-in-the-store",
        _SERVER,
        "            waiting.set_result(None)\n        self._have_one_wait()\n",
        "            waiting.set_result(None)\n",
        "when the watch that waited in the store has gone, the others hear of nothing for up to a second",
        (f"{_INSIDE}test_another_one_waits_in_the_store_when_the_first_has_gone",),
    ),
    Mutant(
        "watches-that-ended-follow-on",
        _SERVER,
        "        beginning.result().close()\n",
        "        pass\n",
        "the store holds changes for watches that have ended",
        (f"{_INSIDE}test_whoever_ends_leaves_nothing",),
    ),
    Mutant(
        "a-stop-waits-for-a-reader",
        "server/calls/rpc.py",
        '_ENDLESS = ("gpkvs.v1.KV.Watch",)',
        "_ENDLESS = ()",
        "a server stops half a minute late for a client that does not read",
        (f"{_TESTS}test_a_stop_waits_for_no_reader",),
    ),
    Mutant(
        "a-watch-keeps-its-rights",
        _SERVER,
        "                    require_watch(caller, message)\n",
        "",
        "whose right to read was taken away is told what changes",
        (f"{_TESTS}test_who_may_no_longer_read_hears_no_more",),
    ),
    Mutant(
        "a-part-counts-as-whole",
        _SERVER,
        "            if part.is_whole:\n                told",
        "            if True:\n                told",
        "who goes on amid a long entry is never told the rest",
        (f"{_TESTS}test_a_long_entry_is_cut",),
    ),
    Mutant(
        "a-watch-forgets-where-it-stood",
        _SERVER,
        "since = Position.parse(message.since) if message.since else None",
        "since = None",
        "what changed while a watcher was dead is told to nobody, and nobody hears so",
        ("watched/test_drill.py::test_no_change_is_missing_unless_the_watcher_hears_so",),
    ),
    Mutant(
        "watches-without-end",
        _SERVER,
        "if self._open >= serving.watches_max + (_MORE_OF_ALL_TABLES if message.all_tables else 0):",
        "if False:",
        "a server has any number of watches",
        (f"{_TESTS}test_watches_are_bounded",),
    ),
    Mutant(
        "a-prefix-is-anywhere",
        _CHOSEN,
        "starts[left, None] + place",
        "starts[left, None]",
        "a watch of a prefix leaves out keys that begin with it",
        (f"{_MODEL}test_long_prefixes",),
    ),
    Mutant(
        "every-change-is-behind-its-transaction",
        _CHOSEN,
        "position=behind if number == last else since,",
        "position=behind,",
        "who stops amid a transaction never hears of its other changes",
        (f"{_TESTS}test_transactions_come_whole",),
    ),
    Mutant(
        "a-client-begins-anew",
        _CLIENT,
        "        self._message.since = response.position\n",
        "",
        "what changes while a client connects again is told to nobody",
        (f"{_TESTS}test_a_watch_goes_on_where_its_connection_was_lost",),
    ),
    Mutant(
        "whoever-reads-all-backs-up",
        "server/access/rights.py",
        "(rights.admin_everywhere and rights.read.everywhere)",
        "rights.read.everywhere or rights.admin_everywhere",
        "an administrator who may read no table is told what changes in all of them",
        ("server/access/test_rights.py::test_all_tables_are_told_to_whoever_backs_up",),
    ),
    Mutant(
        "watch-sends-each-transaction-alone",
        _SERVER,
        "            await asyncio.sleep(watch.next_at - time.monotonic())  # at once, if that is past\n",
        "",
        "who writes beside a watch gets half of the rate: each write is a message",
        (f"{_INSIDE}test_changes_that_follow_each_other_closely_are_told_together",),
    ),
    Mutant(
        "watch-waits-though-it-is-behind",
        _CHOSEN,
        "self.has_caught_up = sum(entry.nbytes for entry in entries) < bytes_max",
        "self.has_caught_up = True",
        "a watch falls behind what the server holds where its messages are small",
        (f"{_INSIDE}test_who_is_behind_reads_on_at_once",),
    ),
)
