"""What is thought of a fact, at the values where that changes; and what stands in files of the system."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.config import GIB, MIB
from gpkvs.doctor import clock, file_system, folder, gpus, memory, persistent_memory, probe, processors, software
from gpkvs.doctor.fact import Fact, Group, Verdict
from gpkvs.doctor.report import as_dict, lines_of, worst
from gpkvs.engine.space.heap_growth import ON_DISK
from gpkvs.media.file_space import reserves
from gpkvs.process import machine
from gpkvs.process.mounts import Mount, mount_of, parse_mount
from gpkvs.server.account.bounds import usual_memory_bytes
from tests.serving import COMMAND

FINE, BETTER, WRONG, UNSEEN = Verdict


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def system(root: Path, files: dict[str, str]) -> Path:
    """Return a root folder with some files of ``/proc`` and ``/sys``."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_mount_is_read_with_its_escapes() -> None:
    line = r"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue"
    assert parse_mount(line) == Mount(Path("/a b\\c"), "ext3", ("rw", "noatime", "errors=continue"))


def test_the_last_of_the_nearest_mounts_counts(tmp_path: Path) -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/a rw",
        "2 1 8:2 / /data rw - xfs /dev/b rw",
        "3 2 8:3 / /data rw,noatime - btrfs /dev/c rw",
        "4 1 8:4 / /data2 rw - vfat /dev/d rw",
    ]
    root = system(tmp_path, {"proc/self/mountinfo": "\n".join(lines)})
    kinds = [mount.kind if (mount := mount_of(Path(at), root)) else "" for at in ("/data/x", "/data2", "/data3", "/")]
    assert kinds == ["btrfs", "vfat", "ext4", "ext4"]
    assert mount_of(Path("/data"), tmp_path / "none") is None


@pytest.mark.parametrize(
    ("options", "verdict", "told"),
    [
        ("rw,relatime", FINE, ""),
        ("rw,noatime,lazytime", FINE, ""),
        ("rw,strictatime", BETTER, "mount -o remount,noatime '/a b'"),
        ("rw,sync", BETTER, "remount,async"),
        ("rw,nobarrier", WRONG, "without nobarrier"),
        ("rw,barrier=0", WRONG, "without barrier=0"),
        ("rw,lowerdir=/l,volatile", WRONG, "without volatile"),
        ("rw,lowerdir=/l,fsync=volatile", WRONG, "without fsync=volatile"),
        ("ro,relatime", WRONG, "remount,rw"),
        ("rw,errors=remount-ro", FINE, ""),
    ],
)
def test_mount_options(options: str, verdict: Verdict, told: str) -> None:
    fact = file_system.options_fact(Mount(Path("/a b"), "ext4", tuple(options.split(","))))
    assert fact.verdict is verdict
    assert told in fact.mend
    assert fact.value == options


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        *((name, FINE) for name in ("ext4", "xfs", "tmpfs", "btrfs", "zfs")),
        *((name, BETTER) for name in ("overlay", "nfs4", "fuse.sshfs", "9p")),
    ],
)
def test_kinds_of_file_systems(kind: str, verdict: Verdict) -> None:
    assert file_system.kind_fact(Mount(Path("/"), kind, ())).verdict is verdict


@pytest.mark.parametrize(
    ("option", "has_huge"), [("huge=always", True), ("huge=within_size", True), ("huge=never", False)]
)
def test_the_pages_of_a_tmpfs(option: str, has_huge: bool) -> None:
    fact = file_system.pages_fact(Mount(Path("/dev/shm"), "tmpfs", ("rw", option)))
    assert fact.verdict is Verdict.FINE
    assert ("huge=always" in fact.value) is not has_huge
    assert fact.figures == {"has_huge_pages": has_huge}


def test_room_on_the_disk() -> None:
    verdicts = [file_system.space_fact(free, 2 * GIB, 9 * MIB).verdict for free in (9 * MIB - 1, 9 * MIB, GIB - 1, GIB)]
    assert verdicts == [WRONG, BETTER, BETTER, FINE]
    assert "takes 9.0 MiB" in file_system.space_fact(0, 2 * GIB, 9 * MIB).mend
    verdicts = [file_system.inodes_fact(free, 5_000, 7).verdict for free in (0, 6, 7, 999, 1_000)]
    assert verdicts == [WRONG, WRONG, BETTER, BETTER, FINE]
    assert file_system.inodes_fact(0, 5_000, 0).verdict is BETTER
    assert file_system.inodes_fact(0, 0, 7).verdict is FINE  # btrfs counts none


def test_room_under_a_store_that_is_there() -> None:
    """A large disk is nearly full with less than the largest step of a heap, a small one with less than a twentieth."""

    def judged(free_bytes: int, all_bytes: int) -> Verdict:
        return file_system.space_under_store_fact(free_bytes, all_bytes, Path("/a b")).verdict

    assert ON_DISK.step_bytes_max == 256 * MIB
    large = [judged(free, 100 * GIB) for free in (0, 256 * MIB - 1, 256 * MIB, GIB - 1, GIB)]
    small = [judged(free, 100 * MIB) for free in (0, 5 * MIB - 1, 5 * MIB, 100 * MIB)]
    assert large == [WRONG, WRONG, BETTER, BETTER, FINE]
    assert small == [WRONG, WRONG, BETTER, BETTER]
    assert "du -xhd2 '/a b'" in file_system.space_under_store_fact(0, GIB, Path("/a b")).mend


def test_what_a_new_store_takes(tmp_path: Path, in_memory: Path) -> None:
    for at in (tmp_path / "store", in_memory / "store"):
        found = folder.find_folder(at)
        with gpkvs.open(at) as store:
            assert store.info().commit == found.commit
        assert not found.has_store
        assert folder.find_folder(at).has_store
        taken = sum(path.stat().st_blocks * 512 for path in at.iterdir())
        assert 0.99 * taken < file_system._new_bytes(found.commit) < 1.05 * taken


def test_flushes_are_told_with_what_they_allow() -> None:
    fact = probe.flush_fact([0.001] * 98 + [0.004, 0.009])
    assert fact.verdict is FINE
    assert (fact.figures["median_seconds"], fact.figures["p99_seconds"]) == (0.001, 0.004)
    assert fact.value.startswith("1.00 ms median, 4.00 ms p99 of 100 flushes of 4 KiB")
    assert "at most about 1,000 a second" in fact.value
    assert probe.flush_fact([0.0051] * 9).verdict is BETTER
    assert probe.flush_fact([0.0049] * 9).verdict is FINE
    assert "cache=unsafe" in probe.flush_fact([1e-6] * 9).mend
    assert "at most about 19 a second" in probe.flush_fact([0.0533] * 5).value
    assert probe.flush_fact(None).verdict is FINE


def test_the_system_says_whether_it_reserves_by_itself(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert reserves(file.fileno(), MIB)
        assert (tmp_path / "file").stat().st_blocks * 512 >= MIB
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        reserves(file.fileno(), 2 * MIB)


GROUPS_2 = {
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
    "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/a/memory.max": f"{512 * MIB}\n",
    "sys/fs/cgroup/a/memory.current": f"{400 * MIB}\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
}
GROUPS_1 = {
    "proc/self/cgroup": "5:memory:/a\n3:cpu,cpuacct:/a\n",
    "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{512 * MIB}\n",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{400 * MIB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{0x7FFFFFFFFFFFF000}\n",
}


@pytest.mark.parametrize("files", [GROUPS_2, GROUPS_1], ids=["v2", "v1"])
def test_limits_of_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    root = system(tmp_path, files)
    assert machine.group_processors(root) == 1.5
    assert machine.group_bytes(root) == machine.machine_bytes(root) == 512 * MIB
    assert usual_memory_bytes(root) == 128 * MIB
    facts = {fact.name: fact for fact in memory.memory_facts(None, root, has_gpu=False)}
    assert facts["memory"].verdict is BETTER  # 112 MiB are free, 266 may be needed
    assert "512.0 MiB for the control group, 112.0 MiB free" in facts["memory"].value
    assert "--memory-max 64MiB" in facts["memory"].mend
    assert facts["memory-max"].figures["memory_bytes_max"] == 128 * MIB
    assert facts["memory-max"].verdict is FINE


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert machine.group_processors(tmp_path) is None
    assert machine.group_bytes(tmp_path) is None
    assert machine.machine_bytes(tmp_path) == machine.physical_bytes()
    facts = {fact.name: fact for fact in memory.memory_facts(None, tmp_path, has_gpu=False)}
    assert facts["memory"].verdict is UNSEEN
    assert "does not say how much is free" in facts["memory"].value
    assert facts["huge pages"].verdict is UNSEEN


def test_too_little_memory_for_a_server_is_wrong(tmp_path: Path) -> None:
    little = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{255 * MIB}\n",
        "proc/meminfo": "MemAvailable: 9000000 kB\n",
    }
    facts = {fact.name: fact for fact in memory.memory_facts(None, system(tmp_path, little), has_gpu=False)}
    assert facts["memory-max"].verdict is WRONG
    assert "--memory-max 64MiB" in facts["memory-max"].mend
    system(tmp_path, {"sys/fs/cgroup/memory.max": f"{256 * MIB}\n"})
    facts = {fact.name: fact for fact in memory.memory_facts(None, tmp_path, has_gpu=False)}
    assert facts["memory-max"].verdict is FINE


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("always [madvise] never\n", FINE),
        ("[always] madvise never\n", FINE),
        ("always madvise [never]\n", BETTER),
        ("nonsense\n", UNSEEN),
    ],
)
def test_huge_pages(tmp_path: Path, text: str, verdict: Verdict) -> None:
    fact = memory.huge_fact(system(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text}))
    assert fact.verdict is verdict
    assert ("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" in fact.mend) == (verdict is BETTER)


def test_pages_of_a_tmpfs_matter_with_a_gpu_only() -> None:
    plain, huge = Mount(Path("/m"), "tmpfs", ("rw",)), Mount(Path("/m"), "tmpfs", ("rw", "huge=always"))
    assert [memory.tmpfs_fact(mount, has_gpu=gpu).verdict for mount in (plain, huge) for gpu in (False, True)] == [
        FINE,
        BETTER,
        FINE,
        FINE,
    ]
    assert "remount,huge=always /m" in memory.tmpfs_fact(plain, has_gpu=True).mend


def test_processors() -> None:
    limited = processors.processors_fact(8, 2.5)
    assert (limited.verdict, limited.mend) == (BETTER, "gpkvs serve --threads 2")
    assert "the time of 2.5 of them" in limited.value
    assert processors.processors_fact(8, 0.5).mend == "gpkvs serve --threads 1"
    assert [processors.processors_fact(count, None).verdict for count in (1, 2)] == [BETTER, FINE]
    assert processors.processors_fact(4, 4.0).verdict is FINE


def test_open_files() -> None:
    verdicts = [processors.files_fact(limit, 642).verdict for limit in (30, 31, 94, 95, 735, 736, None)]
    assert verdicts == [WRONG, BETTER, BETTER, BETTER, BETTER, FINE, FINE]
    assert "there is memory for 642" in processors.files_fact(735, 642).value
    assert "no table can be made" in processors.files_fact(94, 0).value
    assert processors.files_fact(1024, 642).figures["connections_max"] == 1024 - 30 - 64


def test_the_clock(tmp_path: Path) -> None:
    path = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    assert clock.source_fact(tmp_path).verdict is UNSEEN
    assert clock.source_fact(system(tmp_path, {path: "tsc\n"})).verdict is FINE
    assert clock.source_fact(system(tmp_path, {path: "hpet\n"})).verdict is BETTER
    assert clock.synchronised_fact(0x2001).figures == {"synchronised": True}
    assert clock.synchronised_fact(0x40).verdict is BETTER
    refused = clock.synchronised_fact(None, "adjtimex: Operation not permitted")
    assert (refused.verdict, refused.value) == (UNSEEN, "adjtimex: Operation not permitted")


def test_the_kernel_tells_of_its_clock() -> None:
    status, reason = clock._kernel_status()
    assert (status is None) == bool(reason)
    assert status is None or 0 <= status < 1 << 16


def test_the_native_door() -> None:
    assert software.door_fact("nghttp2 1.52.0, OpenSSL 3.0.22").verdict is FINE
    missing = software.door_fact("")
    assert missing.verdict is WRONG
    assert "libnghttp2-dev libssl-dev" in missing.mend
    assert "libnghttp2-devel openssl-devel" in missing.mend
    assert software.door_fact("cannot be loaded: libssl.so.3").verdict is WRONG


def test_python() -> None:
    assert [software.python_fact(numbers, "").verdict for numbers in ((3, 11), (3, 13), (3, 14))] == [
        FINE,
        FINE,
        BETTER,
    ]


def test_persistent_memory_beside_the_folder(tmp_path: Path) -> None:
    assert persistent_memory.memory_fact(None, tmp_path).value == "none"
    root = system(tmp_path, {"sys/bus/nd/devices/region0/persistence_domain": "memory_controller\n"})
    fact = persistent_memory.memory_fact(folder.find_folder(tmp_path).domain, root)
    assert fact.value.startswith("1 region, good for the domain flush; the folder does not map synchronously")


def test_gpus_without_a_driver_are_counted(tmp_path: Path) -> None:
    devices = {"00": ("0x10de", "0x030200"), "01": ("0x10de", "0x040300"), "02": ("0x8086", "0x030000")}
    for name, (vendor, kind) in devices.items():
        system(
            tmp_path,
            {
                f"sys/bus/pci/devices/0000:{name}:00.0/{at}": f"{text}\n"
                for at, text in (("vendor", vendor), ("class", kind))
            },
        )
    (fact,) = gpus.gpu_facts("", [], tmp_path)
    assert fact.verdict is FINE  # nobody has to use it
    assert fact.value.startswith("1 GPU of NVIDIA on the bus, and no driver")
    (fact,) = gpus.gpu_facts("", [], tmp_path / "none")
    assert fact.value == "none: gpkvs runs on the processor"


NVML = """
#include <cstring>
typedef void* Device;
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned) { strcpy(text, "580.10"); return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, Device* device) { *device = (Device)1; return number ? 4 : 0; }
int nvmlDeviceGetName(Device, char* text, unsigned) { strcpy(text, "NVIDIA H200"); return 0; }
struct Pci { char legacy[16]; unsigned domain, bus, device, kind, subsystem; char address[32]; };
int nvmlDeviceGetPciInfo_v3(Device, Pci* pci) { pci->domain = 0; pci->bus = 0x1b; pci->device = 2; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(Device, unsigned* value) { *value = 8; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned* value) { *value = 16; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device, unsigned* value) { *value = 1; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(Device, unsigned* value) { *value = 5; return 0; }
}
"""


def test_a_driver_tells_of_its_gpus(tmp_path: Path, in_memory: Path) -> None:
    """A library with NVML's calls stands for the driver; no machine of ours has one beside these tests."""
    compiler = os.environ.get("CXX", "g++").split()
    (tmp_path / "nvml.cpp").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, tmp_path / "nvml.cpp"], check=True)
    command = [*COMMAND, "doctor", "--json", "--data", str(in_memory)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
    assert facts["GPU"]["value"] == "2 GPUs, driver 580.10"
    assert facts["GPU 0"]["value"] == "NVIDIA H200, PCIe 1 x8 of 5 x16"
    assert facts["GPU 0"]["verdict"] == "could be better"
    assert facts["GPU 1"]["verdict"] == "not seen"
    assert facts["DDIO 0"]["figures"] == {"ddio": "unknown"}
    assert "DDIO 1" not in facts
    assert "cuda13" in facts["CuPy"]["mend"] or facts["CuPy"]["figures"]["cupy"]
    is_small = facts["huge tmpfs"]["figures"]["tmpfs"] == "huge=never"
    assert facts["huge tmpfs"]["verdict"] == ("could be better" if is_small else "fine")


def test_the_link_of_a_gpu() -> None:
    assert gpus.link_fact(0, gpus.Gpu("H200", "", 16, 16, 1, 5)).verdict is FINE  # at rest
    narrow = gpus.link_fact(0, gpus.Gpu("H200", "", 8, 16, 5, 5))
    assert (narrow.verdict, narrow.value) == (BETTER, "H200, PCIe 5 x8 of 5 x16")
    assert gpus.link_fact(0, gpus.Gpu("H200", "", 0, 0, 0, 0)).verdict is UNSEEN


def test_what_cannot_be_written_to_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, told in (("file", "is a file"), ("link", "link to nothing"), ("file/below", "is a file")):
        found = folder.find_folder(tmp_path / name)
        facts = {fact.name: fact for fact in folder.folder_facts(found)}
        assert facts["folder"].verdict is WRONG
        assert told in facts["folder"].value
        assert facts["durability"].verdict is facts["commit"].verdict is UNSEEN


def test_a_report_has_all_and_the_worst() -> None:
    groups = [
        Group("one", [Fact("a", FINE, "1", "It matters."), Fact("b", UNSEEN, "no right", "So does this.")]),
        Group("two", [Fact("c", BETTER, "2", "And this.", "do it")]),
    ]
    assert [worst(groups), worst(groups[:1])] == [BETTER, FINE]
    lines = list(lines_of(groups))
    assert lines[-1] == "1 fine, 1 could be better, 0 wrong, 1 not seen."
    assert [line.split() for line in lines if "mend:" in line] == [["mend:", "do", "it"]]
    assert "  not seen  b  no right" in lines
    assert as_dict(groups)["verdict"] == "could be better"
    with pytest.raises(AssertionError):
        Fact("d", WRONG, "3", "A mend is missing.")
