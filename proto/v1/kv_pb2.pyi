from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_UNSPECIFIED: _ClassVar[Op]
    OP_GET: _ClassVar[Op]
    OP_SET: _ClassVar[Op]
    OP_DELETE: _ClassVar[Op]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_NOT_FOUND: _ClassVar[Status]
    STATUS_CORRUPT: _ClassVar[Status]
OP_UNSPECIFIED: Op
OP_GET: Op
OP_SET: Op
OP_DELETE: Op
STATUS_OK: Status
STATUS_NOT_FOUND: Status
STATUS_CORRUPT: Status

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
    __slots__ = ("table", "key", "value")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    value: bytes
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class SetResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("table", "key")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    table: str
    key: bytes
    def __init__(self, table: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("table", "ops", "keys", "key_lengths", "key_size", "values", "value_lengths", "value_size", "id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEY_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    ops: bytes
    keys: bytes
    key_lengths: bytes
    key_size: int
    values: bytes
    value_lengths: bytes
    value_size: int
    id: int
    def __init__(self, table: _Optional[str] = ..., ops: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., key_size: _Optional[int] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., value_size: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class BatchResponse(_message.Message):
    __slots__ = ("id", "status", "values", "value_lengths", "versions", "code", "message", "full")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: bytes
    values: bytes
    value_lengths: bytes
    versions: bytes
    code: int
    message: str
    full: str
    def __init__(self, id: _Optional[int] = ..., status: _Optional[bytes] = ..., values: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., full: _Optional[str] = ...) -> None: ...
