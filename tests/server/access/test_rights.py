"""What each method needs, and that a refusal does not tell which tables there are."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc_health
import grpc_reflection
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st

from gpkvs.batch import Op
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.access.patterns import Patterns
from gpkvs.server.access.rights import CHECKS, RightsError, open_to_all, require_batch
from gpkvs.server.access.users import Rights, User, Users
from gpkvs.server.calls.rpc import add_service
from tests.accounts import Account, Accounts, Header
from tests.server.access.guarded import Guarded
from tests.server.wire import (
    ABSENT,
    ADD,
    APPEND,
    CHECK,
    DELETE,
    EXISTS,
    EXPIRE,
    EXPIRY,
    GET,
    INCREMENT,
    SET,
    Refused,
    batch,
    i64,
    trailing_of,
    u32,
)

DENIED, INVALID = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT
THERE, MISSING = "orders", "orders.old"
MODULES = (kv_pb2, admin_pb2, health_pb2, reflection_pb2)
OF_NEWER_PACKAGES = {"grpc.health.v1.Health.List"}


def test_every_method_says_what_it_needs() -> None:
    services = [service for module in MODULES for service in module.DESCRIPTOR.services_by_name.values()]
    methods = {method.full_name for service in services for method in service.methods}
    assert methods | OF_NEWER_PACKAGES == set(CHECKS)
    assert {name for name, check in CHECKS.items() if check is open_to_all} == {
        "grpc.health.v1.Health.Check",
        "grpc.health.v1.Health.List",
        "grpc.health.v1.Health.Watch",
    }


def test_all_services_of_the_packages_are_known() -> None:
    """A newer package may bring a service beside those that the server has, such as reflection v1."""
    modules = [
        importlib.import_module(found.name)
        for package in (grpc_health, grpc_reflection)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if found.name.endswith("_pb2")
    ]
    assert {module.DESCRIPTOR.name for module in modules} == {module.DESCRIPTOR.name for module in MODULES[2:]}


def test_a_method_without_an_entry_is_not_served() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="made_up.proto", package="made.up")
    file.message_type.add(name="Nothing")
    service = file.service.add(name="KV")
    service.method.add(name="Get", input_type=".made.up.Nothing", output_type=".made.up.Nothing")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]

    class Servicer:
        Get = None

    with pytest.raises(LookupError, match=r"made\.up\.KV\.Get has no entry in gpkvs\.server\.access\.rights"):
        add_service(None, pool.FindServiceByName("made.up.KV"), Servicer(), None)  # type: ignore[arg-type, no-untyped-call]


READ, WRITE, BOTH = {"read"}, {"write"}, {"read", "write"}
NEEDS = {
    GET: READ,
    SET: WRITE,
    DELETE: WRITE,
    EXISTS: READ,
    INCREMENT: BOTH,
    APPEND: WRITE,
    CHECK: READ,
    EXPIRE: WRITE,
    EXPIRY: READ,
    ADD: WRITE,
}


def test_the_model_knows_all_operations() -> None:
    assert set(NEEDS) == set(Op)


def caller_with(rights: set[str]) -> Caller:
    patterns = {name: Patterns((THERE,)) for name in rights}
    return Caller(User("alice", None, (), {}, Rights(**patterns)), "password")  # type: ignore[arg-type]


def is_allowed(check: Callable[[Caller, Any], None], rights: set[str], message: Any) -> bool:
    try:
        check(caller_with(rights), message)
    except RightsError:
        return False
    return True


@given(
    ops=st.binary(max_size=6) | st.lists(st.sampled_from(sorted(NEEDS)), max_size=6).map(bytes),
    conditions=st.just(b"") | st.binary(max_size=6) | st.integers(0, 6).map(bytes),
    rights=st.sets(st.sampled_from(["read", "write"])),
    table=st.sampled_from([THERE, THERE, THERE, MISSING]),
)
def test_columns_against_a_plain_model(ops: bytes, conditions: bytes, rights: set[str], table: str) -> None:
    needed: set[str] = set().union(*(NEEDS.get(op, BOTH) for op in ops), READ if any(conditions) else ())
    has = rights if table == THERE else set()
    message = kv_pb2.BatchRequest(table=table, ops=ops, conditions=conditions)
    assert is_allowed(require_batch, rights, message) == (needed <= has and bool(has))


@pytest.mark.parametrize(
    ("ops", "conditions", "missing"),
    [
        ([SET, DELETE], b"", "write"),
        ([GET, EXISTS], b"", "read"),
        ([SET], bytes([ABSENT]), "read and write"),
        ([INCREMENT], b"", "read and write"),
        ([], b"", "read or write"),
    ],
)
def test_a_refusal_names_the_rights_that_the_operations_need(ops: list[int], conditions: bytes, missing: str) -> None:
    with pytest.raises(RightsError, match=f"user alice may not {missing} table 'orders'"):
        require_batch(caller_with(set()), kv_pb2.BatchRequest(table="orders", ops=bytes(ops), conditions=conditions))


@pytest.mark.parametrize(
    ("right", "table", "reason"),
    [("write", "t", "may not write"), ("read the metrics of", None, "may not read the metrics of the server")],
)
def test_the_reason_for_the_audit_log_is_whole(right: str, table: str | None, reason: str) -> None:
    assert RightsError(caller_with(set()), right, table).reason == reason


def test_who_is_gone_may_do_nothing() -> None:
    caller = caller_with(BOTH)
    caller.follow(Users([]), 0)
    for name, check in CHECKS.items():
        if check is not open_to_all:
            with pytest.raises(LoginError, match="no longer counts"):
                check(caller, _message_of(name))


def test_anyone_may_do_everything() -> None:
    for name, check in CHECKS.items():
        check(ANYONE, _message_of(name))


def _message_of(method: str) -> Any:
    return {
        "Set": kv_pb2.SetRequest(condition=ABSENT),
        "Delete": kv_pb2.DeleteRequest(),
        "Batch": kv_pb2.BatchRequest(ops=bytes(range(256))),
        "Pipeline": kv_pb2.BatchRequest(ops=bytes(range(256))),
        "CreateTable": admin_pb2.CreateTableRequest(name="t"),
        "DropTable": admin_pb2.DropTableRequest(name="t"),
        "Watch": kv_pb2.WatchRequest(all_tables=True),
    }.get(method.rpartition(".")[2], kv_pb2.GetRequest())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Return a server with a table, and users with each combination of rights to it and another one."""
    folder = tmp_path_factory.mktemp("rights")
    tables = ("orders*",)
    accounts = Accounts(
        folder / "users.toml",
        root=Account(admin=("*",)),
        nothing=Account(),
        reads=Account(read=tables),
        writes=Account(write=tables),
        both=Account(read=tables, write=tables),
        owner=Account(admin=tables),
        visitor=Account(read=("default",)),
        backup=Account(backup=True),
        reads_all=Account(read=("*",)),
        root_reads=Account(read=("*",), admin=("*",)),
    )
    guarded = Guarded(accounts, folder)
    for name in (THERE, "other"):
        guarded.server.admin.CreateTable(
            admin_pb2.CreateTableRequest(name=name, index_bytes=1 << 20), metadata=guarded.headers["root"]
        )
    yield guarded
    guarded.close()


COLUMNS: list[tuple[set[str], dict[str, Any]]] = [
    (READ, {"operations": [(GET, b"k"), (EXISTS, b"k"), (EXPIRY, b"k")]}),
    (READ, {"operations": [(CHECK, b"k")], "conditions": bytes([ABSENT])}),
    (WRITE, {"operations": [(SET, b"w", b""), (DELETE, b"w"), (APPEND, b"w", b""), (DELETE, b"w"), (EXPIRE, b"w")]}),
    (BOTH, {"operations": [(SET, b"c", b"")], "conditions": bytes([ABSENT])}),
    (BOTH, {"operations": [(SET, b"x", b""), (GET, b"x")]}),
    (BOTH, {"operations": [(INCREMENT, b"n", i64(1))]}),
    (WRITE, {"operations": [(SET, b"w", b""), (DELETE, b"w")], "request_ops": u32(1, 1)}),
    (BOTH, {"operations": [(SET, b"w", b""), (EXISTS, b"w")], "request_ops": u32(1, 1)}),
]
CALLS: list[tuple[set[str], str, Callable[[str], Any]]] = [
    (READ, "Get", lambda table: kv_pb2.GetRequest(table=table, key=b"k")),
    (WRITE, "Set", lambda table: kv_pb2.SetRequest(table=table, key=b"s", ttl_ms=60_000)),
    (BOTH, "Set", lambda table: kv_pb2.SetRequest(table=table, key=b"new", condition=ABSENT)),
    (WRITE, "Delete", lambda table: kv_pb2.DeleteRequest(table=table, key=b"s")),
    (BOTH, "Delete", lambda table: kv_pb2.DeleteRequest(table=table, key=b"s", condition=3, expected=1)),
    (BOTH, "Increment", lambda table: kv_pb2.IncrementRequest(table=table, key=b"number", delta=1)),
    (READ, "MultiGet", lambda table: kv_pb2.MultiGetRequest(table=table, keys=[b"k", b"l"])),
    (READ, "Scan", lambda table: kv_pb2.ScanRequest(table=table)),
    (READ, "Watch", lambda table: kv_pb2.WatchRequest(table=table)),
    (READ, "Count", lambda table: kv_pb2.CountRequest(table=table)),
    (READ, "Count", lambda table: kv_pb2.CountRequest(table=table, prefix=b"p")),
    *((needed, "Batch", lambda table, columns=columns: batch(**columns, table=table)) for needed, columns in COLUMNS),
    *(
        (needed, "Pipeline", lambda table, columns=columns: batch(**columns, table=table))
        for needed, columns in COLUMNS
        if "request_ops" not in columns
    ),
]
USERS = {"nothing": set[str](), "reads": READ, "writes": WRITE, "both": BOTH, "owner": set[str]()}


def outcome(guarded: Guarded, method: str, message: Any, header: Header) -> tuple[grpc.StatusCode, str, Any]:
    """Return the code, the text and the trailers of a call; of a Pipeline, those of the response."""
    call = getattr(guarded.server.kv, method)
    try:
        if method == "Pipeline":
            (response,) = call(iter([message]), metadata=header)
            code = next(code for code in grpc.StatusCode if code.value[0] == response.code)
            return code, response.message, response.full
        result = call(message, metadata=header)
        if method == "Scan":
            list(result)
        if method == "Watch":
            next(result)
            result.cancel()
    except grpc.RpcError as error:
        return error.code(), error.details(), tuple(trailing_of(error).items())
    return grpc.StatusCode.OK, "", ()


@pytest.mark.parametrize("user", USERS)
def test_rights_of_calls(guarded: Guarded, user: str) -> None:
    """Who may not is told the same whether the table is there or not; who may is told."""
    header = guarded.headers[user]
    for needed, method, message in CALLS:
        there, missing = (outcome(guarded, method, message(table), header) for table in (THERE, MISSING))
        if needed <= USERS[user]:
            assert there[0] is grpc.StatusCode.OK, (method, there)
            assert missing[0] is grpc.StatusCode.NOT_FOUND, (method, missing)
        else:
            assert there[0] is DENIED, (method, there)
            assert f"user {user} may not " in there[1]
            assert (there[0], there[1].replace(THERE, MISSING), there[2]) == missing


def test_a_refusal_says_that_nothing_was_executed(guarded: Guarded) -> None:
    before = guarded.server.metric("gpkvs_requests_refused_total", reason="permission_denied")
    with Refused(DENIED, "user reads may not write table 'orders': an administrator gives rights with `gpkvs user"):
        guarded.server.kv.Set(kv_pb2.SetRequest(table=THERE, key=b"k"), metadata=guarded.headers["reads"])
    after = guarded.server.metric("gpkvs_requests_refused_total", reason="permission_denied")
    assert after == before + 1


def test_a_pipeline_goes_on_after_a_refusal(guarded: Guarded) -> None:
    messages = [batch([(op, b"k")], table=THERE, id=number) for number, op in enumerate((GET, DELETE, EXISTS))]
    responses = list(guarded.server.kv.Pipeline(iter(messages), metadata=guarded.headers["reads"]))
    assert [response.code for response in responses] == [0, DENIED.value[0], 0]
    assert [response.id for response in responses] == [0, 1, 2]


def test_operations_that_nobody_knows_need_everything(guarded: Guarded) -> None:
    message = kv_pb2.BatchRequest(table=THERE, ops=bytes([GET, 99]), keys=b"ab", key_size=1)
    for user, code in (("reads", DENIED), ("writes", DENIED), ("both", INVALID)):
        assert outcome(guarded, "Batch", message, guarded.headers[user])[0] is code
        assert outcome(guarded, "Pipeline", message, guarded.headers[user])[0] is code


def test_no_name_is_the_default_table(guarded: Guarded) -> None:
    for table in ("", "default"):
        get = kv_pb2.GetRequest(table=table, key=b"k")
        guarded.server.kv.Get(get, metadata=guarded.headers["visitor"])
        with Refused(DENIED, "user reads may not read table 'default'"):
            guarded.server.kv.Get(get, metadata=guarded.headers["reads"])


def test_who_may_use_a_missing_table_is_told_no_names_of_others(guarded: Guarded) -> None:
    told = "table: there is no table 'orders.old'"
    for method, message in (
        ("Get", kv_pb2.GetRequest(table=MISSING, key=b"k")),
        ("Batch", batch([(GET, b"k")], table=MISSING)),
        ("Pipeline", batch([(GET, b"k")], table=MISSING)),
        ("Count", kv_pb2.CountRequest(table=MISSING)),
    ):
        assert outcome(guarded, method, message, guarded.headers["reads"])[1] == told
    with pytest.raises(grpc.RpcError) as refused:
        guarded.server.admin.DropTable(admin_pb2.DropTableRequest(name=MISSING), metadata=guarded.headers["owner"])
    assert refused.value.details() == told


def test_tables_have_administrators(guarded: Guarded) -> None:
    admin = guarded.server.admin
    owner, root, both = (guarded.headers[name] for name in ("owner", "root", "both"))
    create = admin_pb2.CreateTableRequest(name="orders.new", index_bytes=1 << 20)
    for call, message in ((admin.CreateTable, create), (admin.DropTable, admin_pb2.DropTableRequest(name=THERE))):
        with Refused(DENIED, "user both may not administer table 'orders"):
            call(message, metadata=both)
    for name in ("other", "missing"):
        with Refused(DENIED, f"user owner may not administer table '{name}'"):
            admin.DropTable(admin_pb2.DropTableRequest(name=name), metadata=owner)
        with Refused(DENIED, f"user owner may not administer table '{name}'"):
            admin.CreateTable(admin_pb2.CreateTableRequest(name=name), metadata=owner)
    admin.CreateTable(create, metadata=owner)
    names = [
        {table.name for table in admin.ListTables(admin_pb2.ListTablesRequest(), metadata=header).tables}
        for header in (owner, root)
    ]
    assert names == [{THERE, "orders.new"}, {THERE, "orders.new", "other", "default"}]
    admin.DropTable(admin_pb2.DropTableRequest(name="orders.new"), metadata=owner)
    with Refused(DENIED, "user both may not administer the server"):
        admin.ListTables(admin_pb2.ListTablesRequest(), metadata=both)
    for header in (owner, both):
        with Refused(DENIED, "may not administer the server"):
            admin.Info(admin_pb2.InfoRequest(), metadata=header)
    assert len(admin.Info(admin_pb2.InfoRequest(), metadata=root).tables) == 3


def test_a_long_name_of_a_table_is_cut(guarded: Guarded) -> None:
    code, text, _ = outcome(guarded, "Get", kv_pb2.GetRequest(table="n" * 1_000_000), guarded.headers["reads"])
    assert code is DENIED
    assert len(text) < 300


def test_who_backs_up_reads_all_and_writes_nothing(guarded: Guarded) -> None:
    kv, admin, header = guarded.server.kv, guarded.server.admin, guarded.headers["backup"]
    for table in ("", THERE, "other"):
        list(kv.Scan(kv_pb2.ScanRequest(table=table), metadata=header))
        assert outcome(guarded, "Watch", kv_pb2.WatchRequest(table=table), header)[0] is grpc.StatusCode.OK
    tables = admin.ListTables(admin_pb2.ListTablesRequest(), metadata=header).tables
    assert {THERE, "other", "default"} <= {table.name for table in tables}
    assert admin.Info(admin_pb2.InfoRequest(), metadata=header).tables
    for call, message in (
        (kv.Get, kv_pb2.GetRequest(key=b"k")),
        (kv.MultiGet, kv_pb2.MultiGetRequest(keys=[b"k"])),
        (kv.Count, kv_pb2.CountRequest()),
        (kv.Set, kv_pb2.SetRequest(key=b"k")),
        (kv.Batch, batch([(GET, b"k")])),
        (admin.SlowLog, admin_pb2.SlowLogRequest()),
        (admin.CreateTable, admin_pb2.CreateTableRequest(name="made")),
        (admin.DropTable, admin_pb2.DropTableRequest(name=THERE)),
    ):
        with Refused(DENIED, "user backup may not "):
            call(message, metadata=header)


def test_whoever_backs_up_may_say_so(guarded: Guarded) -> None:
    admin = guarded.server.admin
    notes: list[tuple[Any, Any, grpc.StatusCode]] = [
        (admin.NoteBackup, admin_pb2.NoteBackupRequest(), INVALID),
        (admin.NoteArchive, admin_pb2.NoteArchiveRequest(), INVALID),
    ]
    for user in ("backup", "root_reads", "both", "reads_all", "root"):
        for call, message, code in notes:
            with Refused(code if user in ("backup", "root_reads") else DENIED, ""):
                call(message, metadata=guarded.headers[user])


def test_all_tables_are_told_to_whoever_backs_up(guarded: Guarded) -> None:
    everything = kv_pb2.WatchRequest(all_tables=True)
    for user in ("backup", "root_reads"):
        assert outcome(guarded, "Watch", everything, guarded.headers[user])[0] is grpc.StatusCode.OK
    for user in ("both", "reads_all", "root"):  # an administrator has no right to read
        code, text, _ = outcome(guarded, "Watch", everything, guarded.headers[user])
        assert code is DENIED
        assert text.startswith(f"user {user} may not back up the server")
