"""Commands that tell of the server."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from gpkvs.info import package_version
from gpkvs.server.calls.running_call import peer_text
from gpkvs.server.redis.commands.slow_log import PROTOCOL
from gpkvs.server.redis.commands.slow_log import shown as shown_entry
from gpkvs.server.redis.execution.columns import RECORD_BYTES
from gpkvs.server.redis.execution.command import COMMANDS, Command, Words, of_session
from gpkvs.server.redis.protocol.pattern import pattern_of, patterns_of
from gpkvs.server.redis.protocol.reply import OK, Error, Reply, Simple, Text, shown
from gpkvs.server.redis.protocol.words import is_flush_option, long_of, syntax_error
from gpkvs.server.redis.sessions.session import Session, databases_of

REDIS_VERSION = "7.0.15"
_SLOW_ENTRIES = 10
_WRONG_COUNT = "ERR count should be greater than or equal to -1"


@of_session("time", 1, in_transactions=True)
async def time_(session: Session, _words: Words) -> Reply:
    """TIME: the time by which keys expire."""
    now_us = session.service.gate.serving().store.now_us
    return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]


@of_session("wait", 3, in_transactions=True)
async def wait(_session: Session, words: Words) -> Reply:
    """WAIT numreplicas timeout: there are no replicas."""
    long_of(words[1])
    if long_of(words[2], "ERR timeout is not an integer or out of range") < 0:
        raise Error("ERR timeout is negative")
    return 0


@of_session("acl", -2, in_transactions=True, subcommands={"whoami": 2})
async def acl(session: Session, _words: Words) -> Reply:
    """ACL WHOAMI."""
    return session.user_name.encode()


@of_session("config", -2, in_transactions=True, subcommands={"get": -3, "resetstat": 2, "set": -4})
async def config(session: Session, words: Words) -> Reply:
    """CONFIG GET pattern [pattern ...]; CONFIG SET parameter value [parameter value ...]; CONFIG RESETSTAT."""
    match words[1].upper(), words[2:]:
        case b"GET", patterns:
            found = {name.encode(): value.encode() for name, value in _settings(session).items()}
            wanted = patterns_of([pattern.lower() for pattern in patterns])
            return {name: value for name, value in found.items() if any(one.fullmatch(name) for one in wanted)}
        case b"RESETSTAT", []:
            return OK
        case b"SET", given if len(given) % 2 == 0:
            names = [shown(name).lower() for name in given[::2]]
            for at, name in enumerate(names):
                if name in names[:at]:
                    raise _no_setting(name, "duplicate parameter")
            for name, value in zip(names, given[1::2], strict=True):
                _require_setting(session, name, value.decode("latin-1"))
            return OK
    raise syntax_error()


# What they would change is not here: encodings, copies of the data.
_MEANINGLESS = re.compile("save|.*-max-(?:listpack|intset|ziplist)-.*|lfu-.*|maxmemory-samples|lazyfree-.*|latency-.*")


def _require_setting(session: Session, name: str, value: str) -> None:
    """Accept a setting that is so already, or means nothing here."""
    if name == "notify-keyspace-events" and _are_told(value):
        return
    if _settings(session).get(name) != value and not _MEANINGLESS.fullmatch(name):
        raise _no_setting(name, "can't set immutable config: settings are given to `gpkvs serve`")


# What is told: DEL, SET, and keys that expired, by key and by event. There are no other types, and nothing is evicted.
_EVENTS, _EVENTS_OF_NOTHING = "g$xKE", "lshztdeA"


def _are_told(events: str) -> bool:
    """Return whether clients that subscribe are told of these events."""
    return not set(events) - set(_EVENTS + _EVENTS_OF_NOTHING) and not set("KE").isdisjoint(events)


def _no_setting(name: str, reason: str) -> Error:
    return Error(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")


@of_session("function", -2, in_transactions=True, subcommands={"flush": -2})
async def function(_session: Session, words: Words) -> Reply:
    """Answer FUNCTION FLUSH [ASYNC|SYNC]."""
    if not is_flush_option(words[2:]):
        raise Error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK  # there are none


def _settings(session: Session) -> dict[str, str]:
    """Return what clients ask for; every write is durable, nothing is evicted."""
    limits, slow_log = session.table.limits, session.service.slow_log
    return {
        "appendfsync": "always",
        "appendonly": "yes",
        "databases": "16",
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "notify-keyspace-events": _EVENTS,
        "proto-max-bulk-len": str(limits.value_bytes_max),
        "save": "",
        "slowlog-log-slower-than": str(int(1000 * slow_log.over_ms)),
        "slowlog-max-len": str(slow_log.entries_max),
        "timeout": "0",
    }


@of_session("slowlog", -2, in_transactions=True, subcommands={"get": -2, "len": 2, "reset": 2})
async def slowlog(session: Session, words: Words) -> Reply:
    """SLOWLOG GET [count]; SLOWLOG LEN; SLOWLOG RESET: the commands of this protocol that took long."""
    session.require_administrator()
    slow_log = session.service.slow_log
    match words[1].upper():
        case b"GET" if len(words) <= 3:
            entries = long_of(words[2], _WRONG_COUNT) if len(words) == 3 else _SLOW_ENTRIES
            if entries < -1:
                raise Error(_WRONG_COUNT)
            names = {peer_text(f"ip:{one.peer}").encode(): one.name for one in session.service.sessions.values()}
            found = slow_log.last(min(entries, slow_log.entries_max) if entries >= 0 else None, PROTOCOL)
            return [shown_entry(entry, names) for entry in found]
        case b"LEN":
            return len(slow_log.last(protocol=PROTOCOL))
        case b"RESET":
            slow_log.clear(PROTOCOL)
            return OK
    raise Error(f"ERR unknown subcommand or wrong number of arguments for '{shown(words[1])}'. Try SLOWLOG HELP.")


_COMMAND = {"count": 2, "docs": -2, "getkeys": -4, "info": -2, "list": -2}


@of_session("command", -1, in_transactions=True, subcommands=_COMMAND)
async def command(_session: Session, words: Words) -> Reply:
    """COMMAND [COUNT|INFO [name ...]|DOCS [name ...]|LIST [FILTERBY ...]|GETKEYS command ...]."""
    if len(words) == 1:
        return [_described(found) for found in COMMANDS.values()]
    match words[1].upper(), words[2:]:
        case b"COUNT", []:
            return len(COMMANDS)
        case b"LIST", options:
            return _listed(options)
        case b"INFO", names:
            wanted = names or list(COMMANDS)
            return [_described(COMMANDS[name.lower()]) if name.lower() in COMMANDS else None for name in wanted]
        case b"DOCS", names:
            wanted = names or list(COMMANDS)
            return {name.lower(): _documented(COMMANDS[name.lower()]) for name in wanted if name.lower() in COMMANDS}
        case b"GETKEYS", [name, *_] as asked:
            found = COMMANDS.get(name.lower())
            if found is None:
                raise Error("ERR Invalid command specified")
            if not found.keys.exist:
                raise Error("ERR The command has no key arguments")
            try:
                found.require_arity(asked)
            except Error:
                raise Error("ERR Invalid number of arguments specified for command") from None
            return found.keys.of(asked)
    raise syntax_error()


def _listed(options: Words) -> list[bytes]:
    """Return the names of the commands and their subcommands; there are no modules, and no categories."""
    names = [name for found in COMMANDS.values() for name in found.names()]
    match [word.upper() for word in options[:-1]], options[-1:]:
        case [], []:
            return names
        case [b"FILTERBY", b"PATTERN"], [pattern]:
            fits = pattern_of(pattern.lower()).fullmatch
            return [name for name in names if fits(name)]
        case [b"FILTERBY", b"MODULE" | b"ACLCAT"], _:
            return []
    raise syntax_error()


def _described(found: Command) -> Reply:
    keys = found.keys
    flags = [Simple("write" if found.writes else "readonly")] if keys.exist or found.writes else []
    flags += [Simple("movablekeys")] * (keys.exist and not keys.first)
    return [found.name.encode(), found.arity, flags, keys.first, keys.last, keys.step, [], [], [], []]


def _documented(found: Command) -> Reply:
    run = found.run or found.run_session
    text = (run.__doc__ or "").strip() if run else ""
    return {b"summary": text.encode()}


@of_session("memory", -2, subcommands={"usage": -3})
async def memory(session: Session, words: Words) -> Reply:
    """MEMORY USAGE key [SAMPLES count]."""
    if len(words) != 3 and (len(words) != 5 or words[3].upper() != b"SAMPLES"):
        raise syntax_error()
    session.require_read()
    found = await session.read(words[2])
    return None if found.value is None else RECORD_BYTES + len(words[2]) + len(found.value)


@of_session("info", -1, in_transactions=True)
async def info(session: Session, words: Words) -> Reply:
    """INFO [section ...]."""
    wanted = {word.decode("utf-8", "surrogateescape").lower() for word in words[1:]}
    if not wanted or wanted & {"all", "default", "everything"}:
        wanted = set(_SECTIONS)
    parts = []
    for name, section in _SECTIONS.items():
        if name in wanted:
            lines = [f"{field}:{value}\r\n" for field, value in section(session).items()]
            parts.append(f"# {name.capitalize()}\r\n{''.join(lines)}")
    return Text("\r\n".join(parts).encode())


def _server(session: Session) -> dict[str, object]:
    uptime = int(time.monotonic() - session.service.began)
    return {
        "redis_version": REDIS_VERSION,
        "server_name": "gpkvs",
        "gpkvs_version": package_version(),
        "redis_mode": "standalone",
        "arch_bits": 64,
        "process_id": os.getpid(),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // 86400,
    }


def _keyspace(session: Session) -> dict[str, object]:
    store = session.service.gate.serving().store
    fields: dict[str, object] = {}
    for number, table in sorted(databases_of(store.open_tables()).items()):
        if not session.may_read(table.name):
            continue
        expires = store.table_expiry(table.id).keys
        records = store.records(table.name)  # last: what was counted is durable then
        if records:
            fields[f"db{number}"] = f"keys={records},expires={expires},avg_ttl=0"
    return fields


_SECTIONS: dict[str, Callable[[Session], dict[str, object]]] = {
    "server": _server,
    "clients": lambda session: {
        "connected_clients": session.service.stats.connections(),
        "blocked_clients": 0,
        "pubsub_clients": len(session.service.stats.subscribers),
    },
    "persistence": lambda _: {"loading": 0, "aof_enabled": 1, "rdb_bgsave_in_progress": 0},
    "stats": lambda session: {
        "total_connections_received": session.service.stats.connections_opened(),
        "total_commands_processed": session.service.stats.commands(),
    },
    "replication": lambda _: {"role": "master", "connected_slaves": 0},
    "cluster": lambda _: {"cluster_enabled": 0},
    "keyspace": _keyspace,
}
