"""The libraries of the native door, compiled to stand inside it: no other library of a process sees their names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from deploy.wheel.commands import run, say
from deploy.wheel.compilers import Platform
from deploy.wheel.sources import Source

_FLAGS = "-O2 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections"
# What TLS 1.3 and keyed hashes need. It reads no settings of the system, which are written for another version; and its
# errors name no files of the machine that made it.
_OPENSSL_WITHOUT = (
    "shared tests apps docs module dso engine legacy autoload-config filenames comp zlib dtls quic srp srtp cms ts cmp "
    "ui-console idea camellia seed rc2 rc4 bf cast md4 mdc2 whirlpool rmd160 sm2 sm3 sm4 aria gost"
)


def build(platform: Platform, openssl: Source, nghttp2: Source) -> None:
    """Compile both libraries into the platform's root, unless an earlier run did it from the same sources."""
    done = platform.root / "made-of"
    made_of = f"{openssl.version} {nghttp2.version} {_FLAGS} {_OPENSSL_WITHOUT} {(platform.tools / 'cc').read_text()}"
    if done.exists() and done.read_text() == made_of:
        return
    shutil.rmtree(platform.root, ignore_errors=True)
    say(f"{platform.machine}: OpenSSL {openssl.version} is compiled: a minute or two on two cores")
    _build_openssl(platform, openssl)
    say(f"{platform.machine}: nghttp2 {nghttp2.version} is compiled")
    _build_nghttp2(platform, nghttp2)
    done.write_text(made_of)


def _build_openssl(platform: Platform, source: Source) -> None:
    folder = _anew(platform.folder / "openssl")
    options = [f"no-{feature}" for feature in _OPENSSL_WITHOUT.split()]
    # By name alone: OpenSSL tells how it was compiled.
    path = f"{platform.tools}:{os.environ['PATH']}"
    # No folder of the machine on which it runs is meant: a door is told its certificates.
    places = ("--prefix=/usr", "--libdir=lib", "--openssldir=/nonexistent")
    run(
        "perl",
        source.folder / "Configure",
        f"linux-{platform.machine}",
        *places,
        *options,
        *("CC=cc", "AR=ar", "RANLIB=ranlib", f"CFLAGS={_FLAGS}"),
        cwd=folder,
        PATH=path,
    )
    run("make", f"-j{os.cpu_count()}", "build_libs", cwd=folder, PATH=path)
    run("make", "install_dev", f"DESTDIR={platform.root}", cwd=folder, PATH=path)
    shutil.rmtree(folder)


def _build_nghttp2(platform: Platform, source: Source) -> None:
    folder = _anew(platform.folder / "nghttp2")
    options = {
        "CMAKE_TOOLCHAIN_FILE": platform.folder / "zig.cmake",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_FLAGS": f"{_FLAGS} -DNGHTTP2_STATICLIB",
        "CMAKE_INSTALL_PREFIX": platform.root / "usr",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "ENABLE_LIB_ONLY": "ON",
        "ENABLE_DOC": "OFF",
        "BUILD_SHARED_LIBS": "OFF",
        "BUILD_STATIC_LIBS": "ON",
        "BUILD_TESTING": "OFF",
    }
    run(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        source.folder,
        "-B",
        folder,
        *(f"-D{name}={value}" for name, value in options.items()),
    )
    run("cmake", "--build", folder)
    run("cmake", "--install", folder)
    shutil.rmtree(folder)


def _anew(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
