"""The image of deploy/Dockerfile: built by buildah on a bare Debian that stands for its base, and run by podman.

``python -m tests.bare.image``. It needs root, debootstrap, buildah, podman and runc. It prints what it saw as JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bare.system import REPOSITORY, System, folder, run

RELEASE = "trixie"  # what the Dockerfile names
BASE, IMAGE = "localhost/gpkvs-base", "localhost/gpkvs"
# As compose.yml has it. Limits below those of whoever starts it, who may be in a container himself.
_RUN = "--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network none"
_LIMITS = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
_SERVE = "serve --data /var/lib/gpkvs --listen 0.0.0.0:7171 --metrics 0.0.0.0:9171 --insecure-listen"
_GPKVS = "/opt/gpkvs/bin/gpkvs"


class Engine:
    """buildah and podman with images of their own, in a folder."""

    def __init__(self, root: Path) -> None:
        self._store = ("--root", root / "store", "--runroot", root / "run", "--storage-driver", "vfs")

    def buildah(self, *words: str | Path) -> str:
        """Run buildah, which runs commands in a chroot."""
        isolation = ("--isolation", "chroot") if words[0] == "build" else ()
        return run("buildah", *self._store, words[0], *isolation, *words[1:]).strip()

    def podman(self, words: str, *, check: bool = True) -> str:
        """Run podman and return what it prints."""
        command = [
            "podman",
            *map(str, self._store),
            "--cgroup-manager",
            "cgroupfs",
            "--runtime",
            "runc",
            *words.split(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\npodman {words}: exit status {done.returncode}")
        return done.stdout + ("" if check else done.stderr)


def build(engine: Engine, root: Path) -> None:
    """Build the image on a bare Debian."""
    System(root, ["--no-install-recommends", "ca-certificates"], RELEASE)
    container = engine.buildah("from", "scratch")
    engine.buildah("copy", "--quiet", container, root, "/")
    engine.buildah("commit", "--quiet", "--rm", container, BASE)
    # buildah's own format has no health check.
    options = ("--format", "docker", "--build-arg", f"BASE={BASE}", "--tag", IMAGE, "--file", "deploy/Dockerfile")
    engine.buildah("build", *options, "--ignorefile", "deploy/Dockerfile.dockerignore", str(REPOSITORY))


@contextmanager
def served(engine: Engine, name: str) -> Iterator[Callable[[str], str]]:
    """Start a server on the volume and yield what runs commands beside it; it is killed at the end."""
    engine.podman(f"run --detach --name {name} {_RUN} {_LIMITS} --volume data:/var/lib/gpkvs {IMAGE} {_SERVE}")
    try:
        give_up = time.monotonic() + 60
        while "unhealthy" in (seen := engine.podman(f"healthcheck run {name}", check=False)) or "rror" in seen:
            if time.monotonic() > give_up:
                sys.exit(f"{seen}\n{engine.podman(f'logs {name}', check=False)}")
            time.sleep(0.2)
        yield lambda words: engine.podman(f"exec {name} {_GPKVS} {words}").strip()
    finally:
        engine.podman(f"rm --force --time 0 {name}", check=False)


def main() -> None:
    """Build and try."""
    with folder(__doc__) as root:
        if missing := [tool for tool in ("buildah", "podman", "runc") if not shutil.which(tool)]:
            sys.exit(f"it needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
        engine = Engine(root.parent)
        began = time.monotonic()
        build(engine, root)
        seconds = round(time.monotonic() - began, 1)
        (image,) = json.loads(engine.podman(f"inspect {IMAGE}"))
        config = image["Config"]
        assert config["User"] == "7171", config
        assert {"7171/tcp", "9171/tcp"} <= set(config["ExposedPorts"]), config
        refused = engine.podman(f"run --rm {_RUN} {_LIMITS} {IMAGE}", check=False)
        assert "--insecure-listen" in refused, refused
        tools = "cc g++ gcc pip cmake"
        found = engine.podman(f"run --rm --entrypoint /usr/bin/which {_RUN} {_LIMITS} {IMAGE} {tools}", check=False)
        assert "/" not in found, found
        with served(engine, "first") as gpkvs:
            gpkvs("set greeting hello")
            version = gpkvs("--version")
        # It was killed, and the next container finds what was acknowledged.
        with served(engine, "second") as gpkvs:
            greeting = gpkvs("get greeting")
            assert greeting == "hello", greeting
    print(json.dumps({"build_seconds": seconds, "image_bytes": image["Size"], "version": version}, indent=2))


if __name__ == "__main__":
    main()
