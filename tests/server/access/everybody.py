"""A server without users, for tests of what stands behind the login."""

from __future__ import annotations

from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.login import Logins
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.exporter import Metrics


def open_to_everybody() -> Logins:
    return Logins(None, Sessions(lambda _: False, lambda _: None), Metrics(), NO_AUDIT)
