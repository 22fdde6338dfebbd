"""Errors that Redis does not have.

Clients compare what Redis says word for word, so that stays as it is. What gpkvs alone says ends with the id by which
the log and the slow log name the call: the protocol has no other place for it.
"""

from __future__ import annotations

from gpkvs.server.calls.running_call import new_request_id, running
from gpkvs.server.redis.protocol.reply import Error


def own_error(code: str, text: str) -> Error:
    """Return an error with a text of gpkvs, and with the id of the call that a task serves."""
    return Error(f"{code} {' '.join(text.splitlines())} (request {request_id_now()})")


def request_id_now() -> str:
    """Return the id of the call that a task serves, or a new one where it serves none."""
    call = running.get()
    return call.request_id if call else new_request_id()
