"""The slow log as SLOWLOG shows it: the commands of the Redis protocol, whoever executed them."""

from __future__ import annotations

from collections.abc import Mapping

from gpkvs.server.calls.running_call import RunningCall
from gpkvs.server.redis.execution.command import COMMANDS, Words
from gpkvs.server.redis.protocol.reply import Reply
from gpkvs.server.signs.slow_log import KEY_BYTES_MAX, Entry, SlowCall

PROTOCOL = "redis"

# Passwords may be among their words.
_NEVER_NOTED = frozenset((b"auth", b"hello", b"config"))


def end_command(call: RunningCall, words: Words) -> None:
    """Note a command if it took long; none with a password, and none that was refused for its words."""
    name = words[0].lower()
    found = COMMANDS.get(name)
    if found is None or name in _NEVER_NOTED or not found.fits(words):
        return
    call.command = found.full_name(words).replace("|", " ").upper()
    call.words = len(words)
    keys = found.keys.of(words)
    call.key, call.key_bytes = (keys[0][:KEY_BYTES_MAX], len(keys[0])) if keys else (b"", 0)
    call.end()


def shown(entry: Entry, names: Mapping[bytes, bytes]) -> list[Reply]:
    """Return an entry as Redis has it.

    Parameters
    ----------
    entry
        Of the slow log.
    names
        Of the clients that gave themselves one, by their addresses.
    """
    call, peer = entry.call, entry.call.peer.encode()
    return [
        entry.number,
        call.ended_us // 1_000_000,
        call.total_ns // 1000,
        list(words_of(call)),
        peer,
        names.get(peer, b""),
    ]


def words_of(call: SlowCall) -> list[bytes]:
    """Return the words of a command: its name, the beginning of its first key, and how many more there are."""
    words = call.command.encode().split()
    if call.key_bytes:
        more = call.key_bytes - len(call.key)
        words.append(call.key + b"... (%d more bytes)" % more if more > 0 else call.key)
    more = call.words - len(words)
    return [*words, b"... (%d more arguments)" % more] if more > 0 else words
