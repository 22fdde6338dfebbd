"""What each RPC needs: every method of every service has its entry here, and one without is not served.

A right is looked for by the name of a table, before anybody looks whether there is such a table: who has no right
cannot tell tables that exist from others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from gpkvs.batch import Op
from gpkvs.config import DEFAULT_TABLE
from gpkvs.errors import GpkvsError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.access.caller import Caller
from gpkvs.text import quoted

Check = Callable[[Caller, Any], None]
"""Takes a caller and a message; raises RightsError, or LoginError for a login that no longer counts."""

# An operation that is in neither needs both rights: so does INCREMENT, and any that nobody knows.
_READS: Final = bytes([Op.GET, Op.EXISTS, Op.CHECK, Op.EXPIRY])
_WRITES: Final = bytes([Op.SET, Op.DELETE, Op.APPEND, Op.EXPIRE, Op.ADD])


class RightsError(GpkvsError):
    """A user asks for what the user has no right to; nothing was executed.

    Parameters
    ----------
    caller
        The user.
    right
        What the user may not do, such as ``write``.
    table
        To which table; None: to the server.
    """

    def __init__(self, caller: Caller, right: str, table: str | None) -> None:
        what = "the server" if table is None else f"table {quoted(table)}"
        super().__init__(
            f"user {caller.name} may not {right} {what}: an administrator gives rights with `gpkvs user rights`"
        )
        self.reason = f"may not {right}{' the server' if table is None else ''}"  # the table is a field of its own
        self.user, self.method, self.table = caller.name, caller.method, table


def require_read(caller: Caller, table: str) -> None:
    """Refuse a caller who may not read a table.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not caller.rights.may_read(table):
        _refuse(caller, "read", table)


def require_scan(caller: Caller, table: str) -> None:
    """Refuse a caller who may neither read a table nor make backups of all.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not (caller.rights.backup or caller.rights.may_read(table)):
        _refuse(caller, "read", table)


def require_watch(caller: Caller, message: kv_pb2.WatchRequest) -> None:
    """Refuse a caller who may not follow what a message asks for.

    Raises
    ------
    RightsError, LoginError
    """
    if not message.all_tables:
        require_scan(caller, message.table)
        return
    _backs_up(caller, message)


def require_write(caller: Caller, table: str) -> None:
    """Refuse a caller who may not write a table.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not caller.rights.may_write(table):
        _refuse(caller, "write", table)


def require_any(caller: Caller, table: str) -> None:
    """Refuse a caller who may neither read nor write a table.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not (caller.rights.may_read(table) or caller.rights.may_write(table)):
        _refuse(caller, "read or write", table)


def require_read_everywhere(caller: Caller) -> None:
    """Refuse a caller who may not read all tables.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not caller.rights.read.everywhere:
        _refuse(caller, "read all tables of", None)


def require_write_everywhere(caller: Caller) -> None:
    """Refuse a caller who may not write all tables.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not caller.rights.write.everywhere:
        _refuse(caller, "write all tables of", None)


def require_batch(caller: Caller, message: kv_pb2.BatchRequest) -> None:
    """Refuse a caller who may not do all operations of a message.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    table, rights = message.table, caller.rights
    may_read, may_write = rights.may_read(table), rights.may_write(table)
    if may_read and may_write:
        return
    missing = []
    if not may_read and (message.ops.translate(None, _WRITES) or message.conditions.strip(b"\0")):
        missing.append("read")
    if not may_write and message.ops.translate(None, _READS):
        missing.append("write")
    if missing or not (may_read or may_write):  # without operations, one of the two is enough
        _refuse(caller, " and ".join(missing) or "read or write", table)


def require_all_tables(caller: Caller) -> None:
    """Refuse a caller who is no administrator of the server.

    Raises
    ------
    RightsError, LoginError
    """
    caller.require()
    if not caller.rights.admin_everywhere:
        _refuse(caller, "administer", None)


def _refuse(caller: Caller, right: str, table: str | None) -> NoReturn:
    raise RightsError(caller, right, None if table is None else table or DEFAULT_TABLE)


def _reads(caller: Caller, message: kv_pb2.GetRequest) -> None:
    require_read(caller, message.table)


def _writes(caller: Caller, message: kv_pb2.SetRequest | kv_pb2.DeleteRequest) -> None:
    require_write(caller, message.table)
    if message.condition:  # what becomes of it tells what is there
        require_read(caller, message.table)


def _increments(caller: Caller, message: kv_pb2.IncrementRequest) -> None:
    require_read(caller, message.table)
    require_write(caller, message.table)


def _changes_tables(caller: Caller, message: admin_pb2.CreateTableRequest | admin_pb2.DropTableRequest) -> None:
    caller.require()
    if not caller.rights.may_admin(message.name):
        _refuse(caller, "administer", message.name)


def _scans(caller: Caller, message: kv_pb2.ScanRequest) -> None:
    require_scan(caller, message.table)


def _lists_tables(caller: Caller, _message: object) -> None:
    caller.require()
    if not (caller.rights.admin.texts or caller.rights.backup):
        _refuse(caller, "administer", None)


def _describes(caller: Caller, _message: object) -> None:
    caller.require()
    if not caller.rights.backup:
        require_all_tables(caller)


def _administers(caller: Caller, _message: object) -> None:
    require_all_tables(caller)


def _backs_up(caller: Caller, _message: object) -> None:
    caller.require()
    rights = caller.rights
    if not (rights.backup or (rights.admin_everywhere and rights.read.everywhere)):
        _refuse(caller, "back up", None)


def _logged_in(caller: Caller, _message: object) -> None:
    caller.require()


def open_to_all(_caller: Caller, _message: object) -> None:
    """Check nothing: a method with this entry asks for no login."""


CHECKS: Final[Mapping[str, Check]] = {
    "gpkvs.v1.KV.Get": _reads,
    "gpkvs.v1.KV.Set": _writes,
    "gpkvs.v1.KV.Delete": _writes,
    "gpkvs.v1.KV.Batch": require_batch,
    "gpkvs.v1.KV.Pipeline": require_batch,  # each message
    "gpkvs.v1.KV.Increment": _increments,
    "gpkvs.v1.KV.MultiGet": _reads,
    "gpkvs.v1.KV.Scan": _scans,  # again before each piece
    "gpkvs.v1.KV.Count": _reads,  # again before each piece
    "gpkvs.v1.KV.Watch": require_watch,  # again before each response
    "gpkvs.v1.Admin.Info": _describes,
    "gpkvs.v1.Admin.SlowLog": _administers,
    "gpkvs.v1.Admin.CreateTable": _changes_tables,
    "gpkvs.v1.Admin.ListTables": _lists_tables,  # it lists those that the caller administers, or backs up
    "gpkvs.v1.Admin.DropTable": _changes_tables,
    "gpkvs.v1.Admin.NoteBackup": _backs_up,
    "gpkvs.v1.Admin.NoteArchive": _backs_up,
    "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo": _logged_in,
    "grpc.health.v1.Health.Check": open_to_all,
    "grpc.health.v1.Health.List": open_to_all,  # newer versions of grpcio-health-checking have it
    "grpc.health.v1.Health.Watch": open_to_all,
}
"""What to check of each message of a method, by its full name."""


def check_of(method: str) -> Check:
    """Return what to check of each message of a method.

    Raises
    ------
    LookupError
        If nobody has said what it needs.
    """
    try:
        return CHECKS[method]
    except KeyError:
        raise LookupError(f"{method} has no entry in gpkvs.server.access.rights: say what it needs") from None
