"""A compiler for each platform that has a wheel: zig's clang, which brings headers and symbols of old C libraries."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.wheel.commands import REPOSITORY, WORK

GLIBC = "2.28"

# clang's names of processors, in zig's words. Without -O, zig's clang checks for undefined behaviour.
_WRAPPER = """#!/bin/sh
for argument; do
    shift
    case $argument in
        -march=x86-64*) argument=-mcpu=$(echo "${{argument#-march=}}" | tr - _) ;;
        -march=armv8-a+crc) argument=-mcpu=generic+crc ;;
    esac
    set -- "$@" "$argument"
done
exec {zig} {command} "$@"
"""
_COMPILE = "-target {machine}-linux-gnu.{glibc} -g0 -fno-sanitize=undefined -ffile-prefix-map={repository}=."
_TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
set(CMAKE_C_COMPILER {tools}/cc)
set(CMAKE_CXX_COMPILER {tools}/c++)
set(CMAKE_AR {tools}/ar)
set(CMAKE_RANLIB {tools}/ranlib)
set(CMAKE_FIND_ROOT_PATH {root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now")
"""


@dataclass(frozen=True)
class Platform:
    """A platform that has a wheel."""

    machine: str

    @property
    def folder(self) -> Path:
        """Where everything of it is made."""
        return WORK / self.machine

    @property
    def root(self) -> Path:
        """Where its libraries are, as a system has them."""
        return self.folder / "root"

    @property
    def tools(self) -> Path:
        """Where its compilers are: cc, c++, ar, ranlib."""
        return self.folder / "tools"

    @property
    def tag(self) -> str:
        """What the name of its wheel says."""
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"

    def write_tools(self) -> Path:
        """Write the compilers, and return the file that tells CMake of them."""
        self.tools.mkdir(parents=True, exist_ok=True)
        options = _COMPILE.format(machine=self.machine, glibc=GLIBC, repository=REPOSITORY)
        commands = {"cc": f"cc {options}", "c++": f"c++ {options}", "ar": "ar", "ranlib": "ranlib"}
        for name, command in commands.items():
            tool = self.tools / name
            tool.write_text(_WRAPPER.format(zig=f"{sys.executable} -m ziglang", command=command))
            tool.chmod(0o755)
        toolchain = self.folder / "zig.cmake"
        toolchain.write_text(_TOOLCHAIN.format(machine=self.machine, tools=self.tools, root=self.root))
        return toolchain


PLATFORMS = {machine: Platform(machine) for machine in ("x86_64", "aarch64")}
