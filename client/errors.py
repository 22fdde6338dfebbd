"""Why a client's call did not succeed.

Where the server refuses a request, the client raises the same error as the embedded store (`gpkvs.errors`):
`InvalidArgumentError`, `UnknownTableError`, `TableExistsError`, `NoSpaceError`, `ConflictError`, `CorruptRecordError`,
`ChangesLostError`, and those of one operation that was not done. The errors of the network and of the client itself are
here. The tree::

    GpkvsError
    ├── InvalidArgumentError       your request is wrong; nothing was written
    │   ├── UnknownTableError
    │   └── TableExistsError
    ├── NoSpaceError               it does not fit; nothing was written
    ├── ConflictError              a check of the request failed; nothing of it was done
    ├── ConditionFailedError       the condition of an operation failed; it was not done
    ├── NotANumberError            an increment of something else; it was not done
    ├── NumberOverflowError        an increment over 64 bits; it was not done
    ├── CorruptRecordError         a record fails its checksum; no value is returned
    ├── ChangesLostError           what comes next in a watch is not held any more
    ├── ForkedError                the client was made before a fork; nothing was sent
    └── ClientError                no result came back
        ├── OutcomeUnknownError    a write was sent and the response was lost: it may have been executed, or not
        └── NotExecutedError       nothing was written
            ├── UnavailableError   no server there, or one that is stopping or recovering
            │   └── TlsError       no TLS connection: the certificates, or the two sides, do not fit
            ├── ServerBusyError    the server's queue is full
            ├── DeadlineError      the time given is over (for a write: before it was sent)
            ├── ServerError        the server failed on a read, or its response makes no sense
            ├── AccessDeniedError  this caller may not do that
            │   └── LoginError     the server does not know who calls
            └── ClientClosedError  the client was closed

So a writer has to think at one place only, at `except OutcomeUnknownError`: read back, or write again where writing
twice does no harm.
"""

from __future__ import annotations

from gpkvs.errors import GpkvsError


class ClientError(GpkvsError):
    """No result came back from the server."""


class OutcomeUnknownError(ClientError):
    """A write was sent and its response was lost: it may have been executed, or not.

    The client does not repeat such a write by itself. ``__cause__`` says why the response was lost.
    """


class NotExecutedError(ClientError):
    """Nothing of the call was written."""


class UnavailableError(NotExecutedError):
    """The server cannot be reached, or it is stopping or recovering."""


class TlsError(UnavailableError):
    """No TLS connection can be made: the certificates, or the two sides, do not fit; trying again does not help."""


class ServerBusyError(NotExecutedError):
    """The server has no room for one more request right now."""


class DeadlineError(NotExecutedError, TimeoutError):
    """The time given to the call is over; a write that raises it had not been sent."""


class ServerError(NotExecutedError):
    """The server failed on a read, or its response makes no sense."""


class AccessDeniedError(NotExecutedError):
    """The server does not let this caller do that: an administrator gives rights."""


class LoginError(AccessDeniedError):
    """The server does not know who calls: no token or password, a wrong one, or one that has ended."""


class ClientClosedError(NotExecutedError):
    """The client was closed before the call was sent, or before the response to a read came.

    A write that was sent raises `OutcomeUnknownError` then.
    """
