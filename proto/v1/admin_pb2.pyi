from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BackupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BACKUP_UNSPECIFIED: _ClassVar[BackupState]
    BACKUP_BEGUN: _ClassVar[BackupState]
    BACKUP_WHOLE: _ClassVar[BackupState]
    BACKUP_FAILED: _ClassVar[BackupState]
BACKUP_UNSPECIFIED: BackupState
BACKUP_BEGUN: BackupState
BACKUP_WHOLE: BackupState
BACKUP_FAILED: BackupState

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TableInfo(_message.Message):
    __slots__ = ("name", "layout", "records", "slots", "index_bytes", "load_factor", "bytes_per_key", "growing_blocks", "moved_blocks", "growth_waits", "index_bytes_max", "heap_bytes", "expiring_keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FACTOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_KEY_FIELD_NUMBER: _ClassVar[int]
    GROWING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MOVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROWTH_WAITS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    HEAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    layout: str
    records: int
    slots: int
    index_bytes: int
    load_factor: float
    bytes_per_key: float
    growing_blocks: int
    moved_blocks: int
    growth_waits: str
    index_bytes_max: int
    heap_bytes: int
    expiring_keys: int
    def __init__(self, name: _Optional[str] = ..., layout: _Optional[str] = ..., records: _Optional[int] = ..., slots: _Optional[int] = ..., index_bytes: _Optional[int] = ..., load_factor: _Optional[float] = ..., bytes_per_key: _Optional[float] = ..., growing_blocks: _Optional[int] = ..., moved_blocks: _Optional[int] = ..., growth_waits: _Optional[str] = ..., index_bytes_max: _Optional[int] = ..., heap_bytes: _Optional[int] = ..., expiring_keys: _Optional[int] = ...) -> None: ...

class RecoveryInfo(_message.Message):
    __slots__ = ("undone", "undone_entries", "seconds", "report", "replayed_batches", "replayed_slots", "cut_batches")
    UNDONE_FIELD_NUMBER: _ClassVar[int]
    UNDONE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CUT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    undone: bool
    undone_entries: int
    seconds: float
    report: str
    replayed_batches: int
    replayed_slots: int
    cut_batches: int
    def __init__(self, undone: bool = ..., undone_entries: _Optional[int] = ..., seconds: _Optional[float] = ..., report: _Optional[str] = ..., replayed_batches: _Optional[int] = ..., replayed_slots: _Optional[int] = ..., cut_batches: _Optional[int] = ...) -> None: ...

class JournalInfo(_message.Message):
    __slots__ = ("is_direct", "used_bytes", "capacity_bytes", "batches_in_flight", "room_seconds", "checkpoints", "checkpoint_bytes", "flushes", "flush_seconds", "dirty_bytes")
    IS_DIRECT_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ROOM_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIRTY_BYTES_FIELD_NUMBER: _ClassVar[int]
    is_direct: bool
    used_bytes: int
    capacity_bytes: int
    batches_in_flight: int
    room_seconds: float
    checkpoints: int
    checkpoint_bytes: int
    flushes: int
    flush_seconds: float
    dirty_bytes: int
    def __init__(self, is_direct: bool = ..., used_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., batches_in_flight: _Optional[int] = ..., room_seconds: _Optional[float] = ..., checkpoints: _Optional[int] = ..., checkpoint_bytes: _Optional[int] = ..., flushes: _Optional[int] = ..., flush_seconds: _Optional[float] = ..., dirty_bytes: _Optional[int] = ...) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("version", "backend", "path", "domain_found", "domain", "domain_note", "heap_bytes", "heap_live_bytes", "log_bytes", "key_bytes_max", "value_bytes_max", "request_ops_max", "message_bytes_max", "next_version", "tables", "last_recovery", "process_written_bytes", "process_read_bytes", "commit", "journal_bytes", "journal", "heap_bytes_max", "heap_growth_waits", "heap_charged_bytes", "heap_charged_bytes_max", "heap_segments", "heap_free_segments", "heap_moved_bytes", "heap_given_back_bytes", "door", "store_format", "next_opening", "blobs_live_bytes", "blobs_bytes", "last_backup", "last_archive")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FOUND_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_NOTE_FIELD_NUMBER: _ClassVar[int]
    HEAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAP_LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_OPS_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    NEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LAST_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    HEAP_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    HEAP_GROWTH_WAITS_FIELD_NUMBER: _ClassVar[int]
    HEAP_CHARGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAP_CHARGED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    HEAP_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    HEAP_FREE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    HEAP_MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAP_GIVEN_BACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    STORE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OPENING_FIELD_NUMBER: _ClassVar[int]
    BLOBS_LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOBS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_BACKUP_FIELD_NUMBER: _ClassVar[int]
    LAST_ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    version: str
    backend: str
    path: str
    domain_found: str
    domain: str
    domain_note: str
    heap_bytes: int
    heap_live_bytes: int
    log_bytes: int
    key_bytes_max: int
    value_bytes_max: int
    request_ops_max: int
    message_bytes_max: int
    next_version: int
    tables: _containers.RepeatedCompositeFieldContainer[TableInfo]
    last_recovery: RecoveryInfo
    process_written_bytes: int
    process_read_bytes: int
    commit: str
    journal_bytes: int
    journal: JournalInfo
    heap_bytes_max: int
    heap_growth_waits: str
    heap_charged_bytes: int
    heap_charged_bytes_max: int
    heap_segments: int
    heap_free_segments: int
    heap_moved_bytes: int
    heap_given_back_bytes: int
    door: str
    store_format: str
    next_opening: str
    blobs_live_bytes: int
    blobs_bytes: int
    last_backup: LastBackup
    last_archive: LastArchive
    def __init__(self, version: _Optional[str] = ..., backend: _Optional[str] = ..., path: _Optional[str] = ..., domain_found: _Optional[str] = ..., domain: _Optional[str] = ..., domain_note: _Optional[str] = ..., heap_bytes: _Optional[int] = ..., heap_live_bytes: _Optional[int] = ..., log_bytes: _Optional[int] = ..., key_bytes_max: _Optional[int] = ..., value_bytes_max: _Optional[int] = ..., request_ops_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., next_version: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ..., last_recovery: _Optional[_Union[RecoveryInfo, _Mapping]] = ..., process_written_bytes: _Optional[int] = ..., process_read_bytes: _Optional[int] = ..., commit: _Optional[str] = ..., journal_bytes: _Optional[int] = ..., journal: _Optional[_Union[JournalInfo, _Mapping]] = ..., heap_bytes_max: _Optional[int] = ..., heap_growth_waits: _Optional[str] = ..., heap_charged_bytes: _Optional[int] = ..., heap_charged_bytes_max: _Optional[int] = ..., heap_segments: _Optional[int] = ..., heap_free_segments: _Optional[int] = ..., heap_moved_bytes: _Optional[int] = ..., heap_given_back_bytes: _Optional[int] = ..., door: _Optional[str] = ..., store_format: _Optional[str] = ..., next_opening: _Optional[str] = ..., blobs_live_bytes: _Optional[int] = ..., blobs_bytes: _Optional[int] = ..., last_backup: _Optional[_Union[LastBackup, _Mapping]] = ..., last_archive: _Optional[_Union[LastArchive, _Mapping]] = ...) -> None: ...

class LastBackup(_message.Message):
    __slots__ = ("time_ms", "keys", "bytes", "seconds")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    keys: int
    bytes: int
    seconds: float
    def __init__(self, time_ms: _Optional[int] = ..., keys: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class LastArchive(_message.Message):
    __slots__ = ("synced_ms",)
    SYNCED_MS_FIELD_NUMBER: _ClassVar[int]
    synced_ms: int
    def __init__(self, synced_ms: _Optional[int] = ...) -> None: ...

class NoteBackupRequest(_message.Message):
    __slots__ = ("state", "age_ms", "keys", "bytes", "seconds")
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    state: BackupState
    age_ms: int
    keys: int
    bytes: int
    seconds: float
    def __init__(self, state: _Optional[_Union[BackupState, str]] = ..., age_ms: _Optional[int] = ..., keys: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class NoteBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NoteArchiveRequest(_message.Message):
    __slots__ = ("position", "time_ms")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    position: str
    time_ms: int
    def __init__(self, position: _Optional[str] = ..., time_ms: _Optional[int] = ...) -> None: ...

class NoteArchiveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SlowLogRequest(_message.Message):
    __slots__ = ("entries", "clear")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    entries: int
    clear: bool
    def __init__(self, entries: _Optional[int] = ..., clear: bool = ...) -> None: ...

class SlowCall(_message.Message):
    __slots__ = ("number", "ended_us", "waiting_ms", "executing_ms", "durable_ms", "answering_ms", "user", "peer", "protocol", "command", "table", "key", "key_bytes", "operations", "bytes_in", "bytes_out", "request_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENDED_US_FIELD_NUMBER: _ClassVar[int]
    WAITING_MS_FIELD_NUMBER: _ClassVar[int]
    EXECUTING_MS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    ended_us: int
    waiting_ms: float
    executing_ms: float
    durable_ms: float
    answering_ms: float
    user: str
    peer: str
    protocol: str
    command: str
    table: str
    key: bytes
    key_bytes: int
    operations: int
    bytes_in: int
    bytes_out: int
    request_id: str
    def __init__(self, number: _Optional[int] = ..., ended_us: _Optional[int] = ..., waiting_ms: _Optional[float] = ..., executing_ms: _Optional[float] = ..., durable_ms: _Optional[float] = ..., answering_ms: _Optional[float] = ..., user: _Optional[str] = ..., peer: _Optional[str] = ..., protocol: _Optional[str] = ..., command: _Optional[str] = ..., table: _Optional[str] = ..., key: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., operations: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class SlowLogResponse(_message.Message):
    __slots__ = ("calls", "over_ms", "entries_max")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    OVER_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[SlowCall]
    over_ms: float
    entries_max: int
    def __init__(self, calls: _Optional[_Iterable[_Union[SlowCall, _Mapping]]] = ..., over_ms: _Optional[float] = ..., entries_max: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("name", "layout", "index_bytes", "index_bytes_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    layout: str
    index_bytes: int
    index_bytes_max: int
    def __init__(self, name: _Optional[str] = ..., layout: _Optional[str] = ..., index_bytes: _Optional[int] = ..., index_bytes_max: _Optional[int] = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableInfo
    def __init__(self, table: _Optional[_Union[TableInfo, _Mapping]] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInfo]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ...) -> None: ...

class DropTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
