from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Condition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONDITION_NONE: _ClassVar[Condition]
    CONDITION_ABSENT: _ClassVar[Condition]
    CONDITION_PRESENT: _ClassVar[Condition]
    CONDITION_EQUALS: _ClassVar[Condition]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_SET: _ClassVar[ChangeKind]
    CHANGE_DELETED: _ClassVar[ChangeKind]
    CHANGE_EXPIRED: _ClassVar[ChangeKind]

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_UNSPECIFIED: _ClassVar[Op]
    OP_GET: _ClassVar[Op]
    OP_SET: _ClassVar[Op]
    OP_DELETE: _ClassVar[Op]
    OP_EXISTS: _ClassVar[Op]
    OP_INCREMENT: _ClassVar[Op]
    OP_APPEND: _ClassVar[Op]
    OP_CHECK: _ClassVar[Op]
    OP_EXPIRE: _ClassVar[Op]
    OP_EXPIRY: _ClassVar[Op]
    OP_ADD: _ClassVar[Op]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_NOT_FOUND: _ClassVar[Status]
    STATUS_CORRUPT: _ClassVar[Status]
    STATUS_CONDITION_FAILED: _ClassVar[Status]
    STATUS_OVERFLOW: _ClassVar[Status]
    STATUS_NOT_A_NUMBER: _ClassVar[Status]
CONDITION_NONE: Condition
CONDITION_ABSENT: Condition
CONDITION_PRESENT: Condition
CONDITION_EQUALS: Condition
CHANGE_UNSPECIFIED: ChangeKind
CHANGE_SET: ChangeKind
CHANGE_DELETED: ChangeKind
CHANGE_EXPIRED: ChangeKind
OP_UNSPECIFIED: Op
OP_GET: Op
OP_SET: Op
OP_DELETE: Op
OP_EXISTS: Op
OP_INCREMENT: Op
OP_APPEND: Op
OP_CHECK: Op
OP_EXPIRE: Op
OP_EXPIRY: Op
OP_ADD: Op
STATUS_OK: Status
STATUS_NOT_FOUND: Status
STATUS_CORRUPT: Status
STATUS_CONDITION_FAILED: Status
STATUS_OVERFLOW: Status
STATUS_NOT_A_NUMBER: Status

class GetRequest(_message.Message):
    __slots__ = ("table", "key")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("found", "value", "version")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: bytes
    version: int
    def __init__(self, found: bool = ..., value: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SetRequest(_message.Message):
    __slots__ = ("table", "key", "value", "condition", "expected", "ttl_ms", "expiry_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    value: bytes
    condition: Condition
    expected: int
    ttl_ms: int
    expiry_ms: int
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, str]] = ..., expected: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., expiry_ms: _Optional[int] = ...) -> None: ...

class SetResponse(_message.Message):
    __slots__ = ("version", "status")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    version: int
    status: Status
    def __init__(self, version: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("table", "key", "condition", "expected")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    condition: Condition
    expected: int
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, str]] = ..., expected: _Optional[int] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("found", "version", "status")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    found: bool
    version: int
    status: Status
    def __init__(self, found: bool = ..., version: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ...) -> None: ...

class IncrementRequest(_message.Message):
    __slots__ = ("table", "key", "delta", "ttl_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    delta: int
    ttl_ms: int
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ..., delta: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class IncrementResponse(_message.Message):
    __slots__ = ("number", "version")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: int
    def __init__(self, number: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MultiGetRequest(_message.Message):
    __slots__ = ("table", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MultiGetResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GetResponse]
    def __init__(self, results: _Optional[_Iterable[_Union[GetResponse, _Mapping]]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("table", "prefix", "cursor", "keys_only", "limit")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    KEYS_ONLY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    table: str
    prefix: bytes
    cursor: bytes
    keys_only: bool
    limit: int
    def __init__(self, table: _Optional[str] = ..., prefix: _Optional[bytes] = ..., cursor: _Optional[bytes] = ..., keys_only: bool = ..., limit: _Optional[int] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("keys", "key_lengths", "values", "value_lengths", "versions", "expiries", "cursor", "damaged", "layout")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRIES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    key_lengths: bytes
    values: bytes
    value_lengths: bytes
    versions: bytes
    expiries: bytes
    cursor: bytes
    damaged: int
    layout: str
    def __init__(self, keys: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., expiries: _Optional[bytes] = ..., cursor: _Optional[bytes] = ..., damaged: _Optional[int] = ..., layout: _Optional[str] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("table", "prefix")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    table: str
    prefix: bytes
    def __init__(self, table: _Optional[str] = ..., prefix: _Optional[bytes] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("table", "all_tables", "prefix", "since", "only_position")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ALL_TABLES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ONLY_POSITION_FIELD_NUMBER: _ClassVar[int]
    table: str
    all_tables: bool
    prefix: bytes
    since: str
    only_position: bool
    def __init__(self, table: _Optional[str] = ..., all_tables: bool = ..., prefix: _Optional[bytes] = ..., since: _Optional[str] = ..., only_position: bool = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("position", "entries")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    position: str
    entries: _containers.RepeatedCompositeFieldContainer[WatchEntry]
    def __init__(self, position: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[WatchEntry, _Mapping]]] = ...) -> None: ...

class WatchEntry(_message.Message):
    __slots__ = ("number", "time_ms", "table_id", "table", "kinds", "keys", "key_lengths", "values", "value_lengths", "versions", "expiries", "made", "dropped", "more")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRIES_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_ms: int
    table_id: int
    table: str
    kinds: bytes
    keys: bytes
    key_lengths: bytes
    values: bytes
    value_lengths: bytes
    versions: bytes
    expiries: bytes
    made: TableMade
    dropped: bool
    more: bool
    def __init__(self, number: _Optional[int] = ..., time_ms: _Optional[int] = ..., table_id: _Optional[int] = ..., table: _Optional[str] = ..., kinds: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., expiries: _Optional[bytes] = ..., made: _Optional[_Union[TableMade, _Mapping]] = ..., dropped: bool = ..., more: bool = ...) -> None: ...

class TableMade(_message.Message):
    __slots__ = ("layout", "index_bytes", "index_bytes_max")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    layout: str
    index_bytes: int
    index_bytes_max: int
    def __init__(self, layout: _Optional[str] = ..., index_bytes: _Optional[int] = ..., index_bytes_max: _Optional[int] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("table", "ops", "keys", "key_lengths", "key_size", "values", "value_lengths", "value_size", "id", "conditions", "expected", "expiries", "ttls", "request_ops", "numbers", "layout")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEY_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRIES_FIELD_NUMBER: _ClassVar[int]
    TTLS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_OPS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    table: str
    ops: bytes
    keys: bytes
    key_lengths: bytes
    key_size: int
    values: bytes
    value_lengths: bytes
    value_size: int
    id: int
    conditions: bytes
    expected: bytes
    expiries: bytes
    ttls: bytes
    request_ops: bytes
    numbers: bool
    layout: str
    def __init__(self, table: _Optional[str] = ..., ops: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., key_size: _Optional[int] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., value_size: _Optional[int] = ..., id: _Optional[int] = ..., conditions: _Optional[bytes] = ..., expected: _Optional[bytes] = ..., expiries: _Optional[bytes] = ..., ttls: _Optional[bytes] = ..., request_ops: _Optional[bytes] = ..., numbers: bool = ..., layout: _Optional[str] = ...) -> None: ...

class BatchResponse(_message.Message):
    __slots__ = ("id", "status", "values", "value_lengths", "versions", "code", "message", "full", "failed_check", "found", "failures")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECK_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: bytes
    values: bytes
    value_lengths: bytes
    versions: bytes
    code: int
    message: str
    full: str
    failed_check: int
    found: int
    failures: _containers.RepeatedCompositeFieldContainer[RequestFailure]
    def __init__(self, id: _Optional[int] = ..., status: _Optional[bytes] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., full: _Optional[str] = ..., failed_check: _Optional[int] = ..., found: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[RequestFailure, _Mapping]]] = ...) -> None: ...

class RequestFailure(_message.Message):
    __slots__ = ("request", "code", "message", "full", "failed_check", "found")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECK_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    request: int
    code: int
    message: str
    full: str
    failed_check: int
    found: int
    def __init__(self, request: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., full: _Optional[str] = ..., failed_check: _Optional[int] = ..., found: _Optional[int] = ...) -> None: ...
