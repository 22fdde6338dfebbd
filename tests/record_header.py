"""How long the header of a record is, and where its fields are, in the stores that tests make (``--format``)."""

import os

from gpkvs.media.layout import RECORD_HEADER_BYTES, SHORT_RECORD_HEADER_BYTES
from gpkvs.recovery.startup.opening import FORMAT_VARIABLE

IS_SHORT = os.environ.get(FORMAT_VARIABLE) != "3"

HEADER_BYTES = SHORT_RECORD_HEADER_BYTES if IS_SHORT else RECORD_HEADER_BYTES
"""Of a record without an expiry; not in tests that are marked format3."""
VERSION_AT = 16 if IS_SHORT else 8
LENGTHS_AT = (8, 10) if IS_SHORT else (24, 28)
