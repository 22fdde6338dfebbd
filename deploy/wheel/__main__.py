"""``python -m deploy.wheel [x86_64] [aarch64]``: wheels for glibc 2.28 and newer go to ``dist/``."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from deploy.wheel import bundled, libraries
from deploy.wheel.commands import REPOSITORY, run, say
from deploy.wheel.compilers import PLATFORMS, Platform
from deploy.wheel.sources import fetch

DIST = REPOSITORY / "dist"
WHEEL_BYTES_MAX = 10_000_000
# It knows wheels of every machine, and its options only those of the one on which it runs.
_AUDITWHEEL = """
import platform, sys
from auditwheel.main import main
machine = sys.argv.pop(1)
platform.machine = lambda: machine
sys.exit(main())
"""


def main() -> None:
    """Make the wheels."""
    parser = argparse.ArgumentParser(prog="python -m deploy.wheel", description=__doc__)
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"{', '.join(PLATFORMS)}; by default all")
    asked = parser.parse_args().platforms or list(PLATFORMS)
    if unknown := sorted(set(asked) - set(PLATFORMS)):
        parser.error(f"{', '.join(unknown)}: no such platform; there are {', '.join(PLATFORMS)}")
    # Environments of Python have their tools there; and the same commit makes the same bytes.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    for machine in asked:
        wheel = make(PLATFORMS[machine])
        say(f"{wheel.relative_to(REPOSITORY)}: {wheel.stat().st_size:,} bytes")


def make(platform: Platform) -> Path:
    """Make the wheel of a platform and return it."""
    openssl, nghttp2 = fetch("openssl"), fetch("nghttp2")
    toolchain = platform.write_tools()
    libraries.build(platform, openssl, nghttp2)
    notices = platform.folder / "bundled"
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    bundled.write(notices, version[1], bundled.libraries(openssl, nghttp2))
    say(f"{platform.machine}: gpkvs is compiled")
    raw = platform.folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
        *("--config-settings", f"build-dir={platform.folder}/cmake", "--wheel-dir", raw, "."),
        CMAKE_ARGS=f"-DCMAKE_TOOLCHAIN_FILE={toolchain} -DGPKVS_BUNDLED={notices}",
        CMAKE_CXX_COMPILER_LAUNCHER="",
        # How Python's own tools are told of another machine.
        _PYTHON_HOST_PLATFORM=f"linux-{platform.machine}",
    )
    return repair(platform, raw)


def repair(platform: Platform, raw: Path) -> Path:
    """Have auditwheel check that a wheel runs where its name says, and name it so."""
    (made,) = raw.glob("*.whl")
    repaired = platform.folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    auditwheel = (sys.executable, "-c", _AUDITWHEEL, platform.machine)
    run(*auditwheel, "repair", "--only-plat", "--plat", platform.tag, "--wheel-dir", repaired, made)
    (wheel,) = repaired.glob("*.whl")
    if wheel.stat().st_size > WHEEL_BYTES_MAX:
        sys.exit(f"{wheel}: {wheel.stat().st_size:,} bytes, and it may have {WHEEL_BYTES_MAX:,}")
    DIST.mkdir(exist_ok=True)
    for older in DIST.glob(f"gpkvs-*_{platform.machine}.whl"):
        older.unlink()
    return Path(shutil.move(wheel, DIST))


if __name__ == "__main__":
    main()
