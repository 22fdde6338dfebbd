"""What the log says of connections that the native door refuses or closes."""

from __future__ import annotations

import logging

from gpkvs.server.signs.refused_connections import Reasons

CLOSED: Reasons = {
    "slow": (logging.INFO, "the headers of a call did not come in time"),
    "flood": (
        logging.WARNING,
        "they sent too much that costs and brings nothing: pings, resets, headers, other frames, changes of TLS keys",
    ),
    "unreachable": (logging.INFO, "they did not answer when they were asked whether they are still there"),
    "unread": (logging.INFO, "nobody read the last bytes"),
    "memory_full": (
        logging.WARNING,
        "for what they asked there was no memory: clients have all of theirs (--memory-max), or the process got none",
    ),
    "invalid": (logging.DEBUG, "what they sent breaks the rules of its protocol"),
    "user_gone": (logging.INFO, "whoever has logged in over them may not any more"),
    "behind": (
        logging.ERROR,
        "clients of the Redis protocol have subscribed to keys that change and did not read as fast as these came "
        "(--stream-bytes-max, --memory-max): what they keep of these keys may be old, so they read it anew",
    ),
}
"""Of connections that were of use before."""


def reasons(connections_max: int) -> Reasons:
    """Return it by reason, for a door that has so many places."""
    return {
        "connections_full": (
            logging.WARNING,
            f"clients have all places that --memory-max has room for ({connections_max} in all)",
        ),
        "files_full": (
            logging.WARNING,
            "the process has as many open files as it may: raise that limit (ulimit -n, LimitNOFILE)",
        ),
        "memory_full": (logging.WARNING, "clients take all the memory that they may (--memory-max)"),
        "gave_way": (
            logging.WARNING,
            "nobody had logged in over them, or asked for anything, and newer ones needed their places (--memory-max)",
        ),
        "silent": (
            logging.INFO,
            "nobody finished the handshake of TLS, logged in over them, or asked for anything, in time",
        ),
        "http1": (
            logging.DEBUG,
            "HTTP/1 at a port of gRPC or the Redis protocol; metrics are at the port of --metrics",
        ),
        "foreign": (
            logging.DEBUG,
            "another protocol than that of the port: --listen speaks gRPC, --resp that of Redis",
        ),
        "tls": (logging.DEBUG, "TLS at a port without it (--tls-cert, --tls-key)"),
        "plain": (logging.DEBUG, "no TLS at a port of it: clients need its options, as redis-cli --tls"),
        "handshake": (logging.DEBUG, "the handshake of TLS failed"),
    }
