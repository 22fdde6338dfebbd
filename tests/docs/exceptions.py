"""What the documents show and their test does not run, each with the reason. The only list of this kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Exemption:
    """Commands of one document, or one of its Python blocks, named by its first line."""

    document: str
    commands: tuple[str, ...]
    reason: str
    where: Literal["nowhere", "docs-all", "gpu", "torch", "feast"] = "nowhere"  # it is run all the same


_NIGHTLY = "takes minutes to an hour: a step of `make nightly`"
_BENCH = "takes ten minutes of an idle machine; the tests in tests/bench run small ones"
_QUICK = "takes a minute; tests/bench/test_quick.py runs a small one"
_PIP = "installs packages and asks PyPI"

EXEMPTIONS = (
    Exemption("README.md", ("make demo",), "takes half a minute", where="docs-all"),
    Exemption("README.md", ("make test",), "this test is a part of it"),
    Exemption("README.md", ("make install",), _PIP, where="docs-all"),
    Exemption(
        "docs/protocol.md",
        ("""grpcurl -plaintext -d '{"key":"Z3JlZXRpbmc="}' 127.0.0.1:7171 gpkvs.v1.KV/Get""",),
        "grpcurl is no Debian package; tests/server/calls/test_kv.py asks the reflection service that it uses",
    ),
    Exemption(
        "docs/reliability.md",
        (
            "make mutants",
            'make mutants MUTANTS="put-back-reversed" JOBS=1',
            ".venv/bin/python -m tests.mutants --tests kernels --tests store read-any-key",
        ),
        _NIGHTLY,
    ),
    Exemption("docs/develop.md", ("make check", "make site"), "a stage of CI by themselves"),
    Exemption("docs/develop.md", ("make lock",), "asks PyPI for the newest versions"),
    Exemption(
        "docs/develop.md",
        (
            "make fuzz SECONDS=30 SEED=7",
            "make loaded FILE=tests/store/test_store.py",
            "make fuzz-served SECONDS=30",
            "make sanitize coverage",
            "make conformance",
        ),
        "takes minutes and installs packages",
        where="docs-all",
    ),
    Exemption("docs/develop.md", ("make nightly",), "takes hours"),
    Exemption(
        "docs/drill.md", ("gpkvs demo", "gpkvs drill --data /mnt/pmem/drill"), "takes half a minute", where="docs-all"
    ),
    Exemption(
        "docs/drill.md",
        ("gpkvs drill --rounds 3", "gpkvs drill --rounds 100", "gpkvs drill --rounds 100 --seed 7"),
        _NIGHTLY,
    ),
    Exemption("docs/gpu.md", ("import cupy",), "needs an NVIDIA GPU and CuPy", where="gpu"),
    Exemption("docs/gpu.md", ("sudo mount -t tmpfs -o huge=always,size=64g tmpfs /mnt/gpkvs",), "mounts a file system"),
    Exemption("docs/vectors.md", ("import cupy",), "needs an NVIDIA GPU and CuPy", where="gpu"),
    Exemption(
        "docs/recipes.md", ("import torch",), "PyTorch is no dependency; tests/client/test_buffers.py has an array"
    ),
    Exemption(
        "docs/export.md",
        ("import pandas", "import polars"),
        "pandas and polars are no dependencies; the block before reads the same file",
    ),
    Exemption(
        "docs/gpm.md",
        ("import torch",),
        "PyTorch is no dependency; tests/gpm/test_torch.py has these calls",
        where="torch",
    ),
    Exemption("docs/vectors.md", ("import torch",), "PyTorch is no dependency", where="torch"),
    Exemption(
        "docs/vectors.md",
        ("from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType",),
        "Feast is no dependency",
        where="feast",
    ),
    Exemption(
        "examples/click/README.md",
        (
            ".venv/bin/python examples/click/train.py --data /tmp/a --steps 60",
            "timeout -s KILL 5 .venv/bin/python examples/click/train.py --data /tmp/b --steps 60 || echo killed",
            ".venv/bin/python examples/click/train.py --data /tmp/b --steps 60",
        ),
        "PyTorch is no dependency; tests/torch/test_click.py kills it several times",
        where="torch",
    ),
    Exemption("docs/gpm.md", ("import cupy",), "needs an NVIDIA GPU and CuPy", where="gpu"),
    Exemption(
        "docs/comparison.md",
        (
            "gpkvs bench redis --json bench/results/redis-process.json",
            "gpkvs bench redis --promise msync --directory /var/tmp --part single --part pipelined "
            "--json bench/results/redis-msync.json",
            "gpkvs bench redis --connections 48 --io-threads 8 --load-processes 8 --part single --part pipelined "
            "--json bench/results/redis-threads-process.json",
            "gpkvs bench report --benchmark redis --document docs/comparison.md",
        ),
        _BENCH,
    ),
    Exemption(
        "docs/install.md",
        (
            "make wheel",
            "python3 -m venv /tmp/gpkvs",
            "/tmp/gpkvs/bin/pip install dist/gpkvs-*-x86_64.whl",
            "sudo /opt/gpkvs/bin/pip install dist/gpkvs-*-x86_64.whl",
        ),
        "takes minutes and asks PyPI; tests/bare/wheel.py installs a wheel in a bare Debian",
    ),
    Exemption(
        "docs/install.md",
        ("sudo apt-get install make g++ python3-venv git libnghttp2-dev libssl-dev",),
        "changes the machine; tests/bare/readme.py installs these packages in a bare Debian",
    ),
    Exemption("docs/install.md", ("make install",), _PIP, where="docs-all"),
    Exemption(
        "docs/install.md",
        (
            "docker build -f deploy/Dockerfile -t gpkvs .",
            "docker compose -f deploy/compose.yml up --build",
        ),
        "needs a container engine",
    ),
    Exemption("docs/install.md", ("kubectl apply -k deploy/kubernetes",), "needs a cluster"),
    Exemption("docs/install.md", ("gpkvs demo",), "takes half a minute", where="docs-all"),
    Exemption("docs/install.md", ("gpkvs bench quick",), _QUICK, where="docs-all"),
    Exemption(
        "docs/performance.md",
        ("gpkvs bench quick --svg /tmp/quick.svg --json /tmp/quick.json",),
        _QUICK,
        where="docs-all",
    ),
    Exemption("docs/performance.md", ("pip install '.[bench]'",), _PIP, where="docs-all"),
    Exemption(
        "docs/performance.md",
        (
            "gpkvs bench engine --profile --json bench/results/engine-process.json",
            "gpkvs bench server --profile --json bench/results/server-process.json",
            "gpkvs bench disk --directory /var/tmp --results bench/results",
            "gpkvs bench wear --json bench/results/wear-process.json",
            "gpkvs bench growth --json bench/results/growth-process.json",
            "gpkvs bench operations --json bench/results/operations-process.json",
            "gpkvs bench expiry --json bench/results/expiry-process.json",
            "gpkvs bench backup --json bench/results/backup-process.json",
            "gpkvs bench scan --json bench/results/scan-process.json",
            "gpkvs bench security --json bench/results/security-process.json",
            "gpkvs bench door --json bench/results/door-process.json",
            "gpkvs bench values --results bench/results",
            "gpkvs bench rows --json bench/results/rows-process.json",
        ),
        _BENCH,
    ),
    Exemption(
        "docs/performance.md",
        (
            "git clone https://github.com/NVIDIA-Merlin/HierarchicalKV",
            "gpkvs bench rows --part gpu --hkv HierarchicalKV --json bench/results/gpu-rows.json",
            "gpkvs bench rows --part gpu --json bench/results/gpu-rows.json",
        ),
        "needs an NVIDIA GPU, and takes minutes",
    ),
    Exemption(
        "deploy/README.md",
        (
            "sudo useradd --system --home-dir /var/lib/gpkvs gpkvs",
            "sudo python3 -m venv /opt/gpkvs",
            "sudo /opt/gpkvs/bin/pip install .",
            "sudo cp deploy/gpkvs.service /etc/systemd/system/",
            "sudo systemctl daemon-reload",
            "sudo systemctl enable --now gpkvs",
            "journalctl -u gpkvs",
            "sudo install -d -o gpkvs -g gpkvs -m 700 /etc/gpkvs",
            "sudo install -o gpkvs -g gpkvs -m 600 server.pem server.key /etc/gpkvs/",
            "sudo -u gpkvs /opt/gpkvs/bin/gpkvs user add alice --create --users /etc/gpkvs/users.toml "
            "--read '*' --write '*'",
            "sudo -u gpkvs /opt/gpkvs/bin/gpkvs user token alice --users /etc/gpkvs/users.toml",
        ),
        "changes the machine, and needs a running systemd; tests/deploy/test_deploy.py runs the unit's commands",
    ),
    Exemption(
        "deploy/README.md",
        ("prometheus --config.file=deploy/prometheus.yml",),
        "takes fixed ports; tests/deploy/test_deploy.py runs it on free ones",
    ),
    Exemption("deploy/README.md", ("docker compose -f deploy/compose.yml up --build",), "needs a container engine"),
    Exemption(
        "docs/backup.md",
        (
            "sudo cp deploy/gpkvs-backup.service deploy/gpkvs-backup.timer /etc/systemd/system/",
            "sudo systemctl daemon-reload",
            "sudo systemctl enable --now gpkvs-backup.timer",
            "sudo systemctl start gpkvs-backup",
            "journalctl -u gpkvs-backup",
            "sudo -u gpkvs /opt/gpkvs/bin/gpkvs user add keeper --users /etc/gpkvs/users.toml --backup",
            "sudo -u gpkvs /opt/gpkvs/bin/gpkvs user token keeper --users /etc/gpkvs/users.toml",
        ),
        "changes the machine, and needs a running systemd; tests/deploy/test_deploy.py runs the unit's command",
    ),
    Exemption(
        "docs/packaging.md",
        (
            "make wheel",
            "make wheel PLATFORMS=x86_64",
            ".venv/bin/python -m tests.bare.wheel_contents dist/*.whl",
        ),
        "compiles for minutes: tests/bare/wheel.py does it, a step of `make nightly`",
    ),
    Exemption(
        "docs/packaging.md",
        ("docker build -f deploy/Dockerfile --build-arg BASE=debian@sha256:0123... -t gpkvs .",),
        "needs a container engine: tests/bare/image.py does it with another, a step of `make nightly`",
    ),
    Exemption(
        "docs/packaging.md",
        (
            "kubectl create secret generic gpkvs-tls --from-file=tls.crt --from-file=tls.key --from-file=ca.crt",
            "kubectl create secret generic gpkvs-users --from-file=users.toml",
            "kubectl create secret generic gpkvs-metrics --from-file=token",
            "kubectl apply -k deploy/kubernetes",
            "kubectl exec -i gpkvs-0 -- gpkvs count --token-file /dev/stdin < app.token",
        ),
        "needs a cluster: tests/deploy/test_kubernetes.py looks at the manifests, and runs a command as in the pod",
    ),
)


def reason_to_leave_out(document: str, command: str, here: set[str]) -> str:
    """Return why a command, or a Python block that begins with it, is not run; "" if it is.

    `here` says what of "docs-all" and "gpu" this run is, and which of "torch" and "feast" it has.
    """
    return next(
        (
            exemption.reason
            for exemption in EXEMPTIONS
            if exemption.document == document and command in exemption.commands and exemption.where not in here
        ),
        "",
    )
