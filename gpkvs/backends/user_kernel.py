"""A kernel of a user (`gpkvs.gpm`), compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpkvs.backends.fields import Field


class UserKernel(NamedTuple):
    """A kernel of a user, compiled for the host's threads or for a GPU.

    Attributes
    ----------
    fields
        Its arguments, 8 bytes each.
    block_threads
        Of a block kernel, how many threads a block has; otherwise 0.
    handle
        What is launched.
    """

    fields: Sequence[Field]
    block_threads: int
    handle: Any
