"""The clients: one for asyncio, which gathers concurrent calls, and a blocking one; and a load generator, YCSB."""

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.client.aio import AsyncClient
from gpkvs.client.async_face import AsyncBatch, AsyncTable, AsyncTransaction
from gpkvs.client.async_rows import AsyncRows
from gpkvs.client.errors import (
    AccessDeniedError,
    ClientClosedError,
    ClientError,
    DeadlineError,
    LoginError,
    NotExecutedError,
    OutcomeUnknownError,
    ServerBusyError,
    ServerError,
    TlsError,
    UnavailableError,
)
from gpkvs.client.gather import GatherConfig
from gpkvs.client.objects import AsyncObjects, Objects
from gpkvs.client.pipeline import AsyncPipeline
from gpkvs.client.request_id import request_id
from gpkvs.client.retry import RetryPolicy
from gpkvs.client.sync import Client
from gpkvs.credentials import TlsCredentials
from gpkvs.errors import (
    ChangesLostError,
    ConditionFailedError,
    ConflictError,
    CorruptRecordError,
    ForkedError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    NotANumberError,
    NumberOverflowError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.face import SyncBatch, TableHandle
from gpkvs.info import TableInfo
from gpkvs.rows import Rows
from gpkvs.transaction import Transaction

__all__ = [
    "AccessDeniedError",
    "AsyncBatch",
    "AsyncClient",
    "AsyncObjects",
    "AsyncPipeline",
    "AsyncRows",
    "AsyncTable",
    "AsyncTransaction",
    "Batch",
    "ChangesLostError",
    "Client",
    "ClientClosedError",
    "ClientError",
    "ConditionFailedError",
    "ConflictError",
    "CorruptRecordError",
    "DeadlineError",
    "ForkedError",
    "GatherConfig",
    "GpkvsError",
    "InvalidArgumentError",
    "LoginError",
    "NoSpaceError",
    "NotANumberError",
    "NotExecutedError",
    "NumberOverflowError",
    "Objects",
    "Op",
    "OutcomeUnknownError",
    "RequestResult",
    "RetryPolicy",
    "Rows",
    "ServerBusyError",
    "ServerError",
    "Status",
    "SyncBatch",
    "TableExistsError",
    "TableHandle",
    "TableInfo",
    "TlsCredentials",
    "TlsError",
    "Transaction",
    "UnavailableError",
    "UnknownTableError",
    "request_id",
]
