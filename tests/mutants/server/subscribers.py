"""Mutants of what clients of the Redis protocol are told of keys that change."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EVENTS, _SESSION = "server/redis/sessions/key_events.py", "server/redis/sessions/session.py"
_DOOR, _SUBSCRIBER, _SUBSCRIPTIONS = "door/resp/resp.cpp", "door/resp/subscriber.cpp", "door/resp/subscriptions.cpp"
_TESTS, _ACCESS = "server/redis/sessions/test_subscribe.py::", "server/redis/test_redis_access.py::"

MUTANTS = (
    Mutant(
        "a-subscriber-keeps-its-rights",
        _EVENTS,
        "            if not session.may_be_told():\n",
        "            if False:\n",
        "whose right to read was taken away is told which keys change",
        (f"{_ACCESS}test_who_may_not_read_any_more_is_not_told",),
    ),
    Mutant(
        "a-follower-for-nobody",
        _EVENTS,
        "            self._task.cancel()\n",
        "",
        "the store holds changes for clients that have gone",
        (f"{_TESTS}test_nothing_is_held_for_nobody",),
    ),
    Mutant(
        "subscribers-of-a-lost-follower-stay",
        _EVENTS,
        "        for session in ended:\n            session.end()\n",
        "",
        "a client waits for ever for what nobody tells it, and its cache stays old",
        (f"{_TESTS}test_the_follower_falls_behind_and_all_end",),
    ),
    Mutant(
        "subscribers-of-a-dropped-table-stay",
        _EVENTS,
        "        for session in told:\n            session.end()\n",
        "",
        "a client keeps values of keys that are gone",
        (f"{_TESTS}test_a_dropped_database_ends_who_was_told_of_it",),
    ),
    Mutant(
        "a-subscriber-of-resp2-calls-anything",
        _SESSION,
        "            if self.is_only_told and name not in _SUBSCRIBED:\n",
        "            if False:\n",
        "a client takes a message for the reply to its command",
        (f"{_TESTS}test_a_session_is_that_of_redis",),
    ),
    Mutant(
        "door-messages-behind-their-subscription",
        _DOOR,
        "        if (first_->told_before && !subscriber_->take(output, first_->told_before)) return true;\n",
        "",
        "a client takes a message for the reply to its next command",
        (f"{_TESTS}test_messages_that_wait_come_before_the_end_of_their_subscription",),
    ),
    Mutant(
        "door-joins-commands-behind-subscribe",
        _DOOR,
        "    takes_more_ = !subscribes(parser_.words);",
        "    takes_more_ = true;",
        "a client is not told of what it changes right behind SUBSCRIBE",
        (f"{_TESTS}test_a_client_of_resp3_hears_of_its_own_commands_behind_subscribe",),
    ),
    Mutant(
        "door-messages-have-no-bound",
        _SUBSCRIBER,
        "    if (counted_ + bytes > bytes_max_) return cut_off(STATS_BEHIND), false;\n",
        "",
        "a client that does not read takes half of all memory",
        (f"{_TESTS}test_who_does_not_read_is_cut_off_and_nobody_waits",),
    ),
    Mutant(
        "door-messages-are-not-counted",
        _SUBSCRIBER,
        "account_.change(ANSWERS, (i64)bytes);",
        "account_.clients_bytes();",
        "messages that wait are taken for free memory",
        (f"{_TESTS}test_messages_count_before_they_are_made",),
    ),
    Mutant(
        "door-patterns-negate-nothing",
        _SUBSCRIPTIONS,
        "    return is_in != is_negated;\n",
        "    return is_in;\n",
        "a client hears of other keys than it has asked for",
        (f"{_TESTS}test_patterns_are_those_of_redis",),
    ),
)
