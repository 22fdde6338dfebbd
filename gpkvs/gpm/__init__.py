"""Persistent memory for your own GPU code: arrays that persist, and kernels that store to them.

The library beneath the database, after libGPM (GPM, ASPLOS '22, section 5). docs/gpm.md is the tutorial.
"""

from gpkvs.gpm.array import PersistentArray
from gpkvs.gpm.checkpoint import Checkpoint
from gpkvs.gpm.coalesced_log import CoalescedLog
from gpkvs.gpm.kernels import Kernels, header
from gpkvs.gpm.partitioned_log import PartitionedLog
from gpkvs.gpm.place import Place, find_place
from gpkvs.gpm.verify import verify
from gpkvs.gpm.versions import Versions

__all__ = [
    "Checkpoint",
    "CoalescedLog",
    "Kernels",
    "PartitionedLog",
    "PersistentArray",
    "Place",
    "Versions",
    "find_place",
    "header",
    "verify",
]
