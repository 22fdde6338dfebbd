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
        self._store = ("--root", root / "store", "--runroot", root / "run")

    def buildah(self, *words: str | Path) -> str:
        """Run buildah, which runs commands in a chroot."""
        isolation = ("--isolation", "chroot") if words[0] == "build" else ()
        return run("buildah", *self._store, words[0], *isolation, *words[1:]).strip()

    def podman(self, words: str) -> str:
        """Run podman and return what it prints, or end."""
        done = self.tried(words)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\npodman {words}: exit status {done.returncode}")
        return done.stdout

    def tried(self, words: str) -> subprocess.CompletedProcess[str]:
        """Run podman, whatever comes of it. Where no systemd runs, its log complains of that each time."""
        command = [
            "podman",
            *map(str, self._store),
            "--cgroup-manager",
            "cgroupfs",
            "--runtime",
            "runc",
            *words.split(),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)


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
        while (seen := engine.tried(f"healthcheck run {name}")).returncode:
            if time.monotonic() > give_up:
                sys.exit(f"{seen.stdout}{seen.stderr}\n{engine.tried(f'logs {name}').stderr}")
            time.sleep(0.2)
        yield lambda words: engine.podman(f"exec {name} {_GPKVS} {words}").strip()
    finally:
        engine.tried(f"rm --force --time 0 {name}")


def look(engine: Engine) -> dict[str, object]:
    """Try the image, and return what was seen."""
    (image,) = json.loads(engine.podman(f"inspect {IMAGE}"))
    config = image["Config"]
    assert config["User"] == "7171:7171", config
    assert {"7171/tcp", "9171/tcp"} <= set(config["ExposedPorts"]), config
    refused = engine.tried(f"run --rm {_RUN} {_LIMITS} {IMAGE}")
    assert refused.returncode == 2, refused
    assert "--insecure-listen" in refused.stderr, refused
    tools = "cc c++ gcc g++ pip cmake ninja"
    found = engine.tried(f"run --rm --entrypoint /usr/bin/which {_RUN} {_LIMITS} {IMAGE} {tools}")
    assert not found.stdout, found
    with served(engine, "first") as gpkvs:
        gpkvs("set greeting hello")
        version = gpkvs("--version")
    # It was killed, and the next container finds what was acknowledged.
    with served(engine, "second") as gpkvs:
        greeting = gpkvs("get greeting")
        assert greeting == "hello", greeting
    return {"image_bytes": image["Size"], "version": version}


def main() -> None:
    """Build and try."""
    with folder(__doc__) as root:
        if missing := [tool for tool in ("buildah", "podman", "runc") if not shutil.which(tool)]:
            sys.exit(f"it needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
        engine = Engine(root.parent)
        began = time.monotonic()
        build(engine, root)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"build_seconds": seconds, **look(engine)}, indent=2))


if __name__ == "__main__":
    main()
