"""All that is looked at, in order."""

from __future__ import annotations

from pathlib import Path

from gpkvs.doctor.clock import clock_facts
from gpkvs.doctor.fact import Group
from gpkvs.doctor.file_system import file_system_facts
from gpkvs.doctor.folder import find_folder, folder_facts
from gpkvs.doctor.gpus import find_gpus, gpu_facts
from gpkvs.doctor.memory import memory_facts
from gpkvs.doctor.persistent_memory import memory_fact
from gpkvs.doctor.probe import probe_facts, unseen
from gpkvs.doctor.processors import processor_facts
from gpkvs.doctor.software import software_facts
from gpkvs.process.mounts import mount_of


def examine(directory: Path | None, root: Path = Path("/")) -> list[Group]:
    """Look at what the machine gives a store in a directory.

    Parameters
    ----------
    directory
        Where the store lies or would lie; it need not be there. None: the current folder, in which one may be made.
    root
        Below which ``proc`` and ``sys`` lie.
    """
    folder = find_folder(directory)
    driver, gpus = find_gpus()
    probed = probe_facts(folder.found, folder.domain) if folder.domain else unseen("no file can be made there")
    return [
        Group("folder", list(folder_facts(folder))),
        Group("file system", [*file_system_facts(folder, root), *probed]),
        Group("memory", list(memory_facts(mount_of(folder.found, root), root, has_gpu=bool(gpus)))),
        Group("processors", list(processor_facts(root))),
        Group("clock", list(clock_facts(root))),
        Group("devices", [memory_fact(folder.domain, root), *gpu_facts(driver, gpus, root)]),
        Group("software", list(software_facts())),
    ]
