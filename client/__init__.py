"""The clients: one for asyncio, which gathers concurrent calls, and a blocking one; and a load generator, YCSB."""

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.client.aio import AsyncBatch, AsyncClient
from gpkvs.client.errors import (
    AccessDeniedError,
    ClientClosedError,
    ClientError,
    DeadlineError,
    NotExecutedError,
    OutcomeUnknownError,
    ServerBusyError,
    ServerError,
    UnavailableError,
)
from gpkvs.client.gather import GatherConfig
from gpkvs.client.objects import AsyncObjects, Objects
from gpkvs.client.pipeline import AsyncPipeline
from gpkvs.client.retry import RetryPolicy
from gpkvs.client.sync import Client
from gpkvs.errors import (
    CorruptRecordError,
    ForkedError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.info import TableInfo

__all__ = [
    "AccessDeniedError",
    "AsyncBatch",
    "AsyncClient",
    "AsyncObjects",
    "AsyncPipeline",
    "Batch",
    "Client",
    "ClientClosedError",
    "ClientError",
    "CorruptRecordError",
    "DeadlineError",
    "ForkedError",
    "GatherConfig",
    "GpkvsError",
    "InvalidArgumentError",
    "NoSpaceError",
    "NotExecutedError",
    "Objects",
    "Op",
    "OutcomeUnknownError",
    "RequestResult",
    "RetryPolicy",
    "ServerBusyError",
    "ServerError",
    "Status",
    "TableExistsError",
    "TableInfo",
    "UnavailableError",
    "UnknownTableError",
]
