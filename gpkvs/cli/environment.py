"""The variables of the environment that gpkvs reads. One that nobody reads is a slip, and is said.

It is never refused: Kubernetes, for one, gives a container variables of the services beside it.
"""

from __future__ import annotations

import os
import re
from typing import Final

from gpkvs.cli.removed_settings import no_such_setting

_PREFIX: Final = "GPKVS_"

HANDED_OVER: Final = "_GPKVS_HANDED_OVER"
"""With it `gpkvs serve` executes itself again (`gpkvs.cli.hand_over`). It begins with the id of the process."""

_SAID_MAX: Final = 20  # of variables that nobody reads: more are hardly slips

# The options of `gpkvs serve` that come from a config are not here: their names follow from it.
_NAMES: Final = (
    *("DATA", "CONFIG", "READY_FILE", "LOG_FORMAT", "LOG_LEVEL"),  # of `gpkvs serve`, too
    *("TARGET", "METRICS_TARGET", "REDIS_CREDENTIALS", "REDIS_PASSWORD"),
    *("TLS", "CLIENT_TLS_CA", "CLIENT_TLS_CERT", "CLIENT_TLS_KEY", "CREDENTIALS"),
    *("USER", "PASSWORD", "PASSWORD_FILE", "TOKEN", "TOKEN_FILE"),
    *("HOST_OPS_MAX", "CACHE_DIR"),  # of the library
)
_INTERNAL: Final = (  # for tests and benchmarks
    *("KERNELS", "TRACE", "FAILPOINT", "SEED", "REVISION", "SHIM", "SHIM_PATH", "DOOR_LIBRARY"),
    *("ALL_KILLS", "ALL_ALLOCATIONS", "ALL_HEAPS"),
)
_OF_KUBERNETES: Final = re.compile(
    r"(.*_)?SERVICE_(HOST|PORT\w*)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)


def known_variables() -> frozenset[str]:
    """Return the names of all variables that users set."""
    from gpkvs.cli.config_options import setting_names  # noqa: PLC0415 - only who has set some pays for it
    from gpkvs.config import ServerConfig, StoreConfig  # noqa: PLC0415

    settings = (name.upper() for config in (StoreConfig, ServerConfig) for name in setting_names(config))
    return frozenset(_PREFIX + name for name in (*settings, *_NAMES))


def is_handed_over() -> bool:
    """Whether this process has executed itself again: a variable that somebody else set names another one, or none."""
    return os.environ.get(HANDED_OVER, "").startswith(f"{os.getpid()}:")


def unread_variables() -> list[str]:
    """Return a line for each variable that looks as if it were for gpkvs, and that nothing reads; for some of many."""
    given = [name for name in os.environ if name.startswith(_PREFIX)]
    if not given:
        return []
    known = known_variables()
    read = known | {_PREFIX + name for name in _INTERNAL}
    unread = [
        name for name in sorted(given) if name not in read and not _OF_KUBERNETES.fullmatch(name.removeprefix(_PREFIX))
    ]
    lines = [
        f"{no_such_setting('environment variable', name, known, _PREFIX)}; it has no effect"
        for name in unread[:_SAID_MAX]
    ]
    more = len(unread) - len(lines)
    return [*lines, f"{more:,} more environment variables begin with {_PREFIX} and have no effect"] if more else lines
