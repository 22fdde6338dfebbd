"""The kinds of many slots at once, as columns of their last words."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpkvs.media.layout import KIND_BLOB, KIND_EXPIRING, KIND_EXPIRING_BLOB, KIND_SHIFT, VERSION_MAX, WITH_BLOB


def names_blob(meta: Any) -> Any:
    """Return of the last words of slots whether their records have blobs."""
    return np.isin(meta >> KIND_SHIFT, (KIND_BLOB, KIND_EXPIRING_BLOB))


def names_expiry(meta: Any) -> Any:
    """Return of the last words of slots, also on a GPU, whether their records expire."""
    kind = meta >> KIND_SHIFT
    return (kind == KIND_EXPIRING) | (kind == KIND_EXPIRING_BLOB)


def with_kinds(meta: Any, has_blob: Any) -> Any:
    """Return the last words of slots that hold keys, their kinds those of records that have blobs, or have none."""
    kind = meta >> KIND_SHIFT
    kind = np.where(names_blob(meta) != has_blob, kind ^ np.uint64(WITH_BLOB), kind)
    return kind << KIND_SHIFT | meta & np.uint64(VERSION_MAX)
