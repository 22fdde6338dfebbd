"""The manifests in deploy/kubernetes: their schemas, what they say of each other, and what the server says of them."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.accounts import Account, Accounts
from tests.certificates import Authority, server_options
from tests.server.access.guarded import Guarded
from tests.serving import COMMAND

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.32", "1.34")
# Of tools, not of Kubernetes itself.
FOREIGN = {"Kustomization", "ServiceMonitor"}


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


MANIFESTS = {path.name: load(path.name) for path in sorted(FOLDER.glob("*.yaml"))}
POD = MANIFESTS["stateful-set.yaml"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
ENVIRONMENT = {one["name"]: one["value"] for one in CONTAINER["env"]}
PORTS = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
PROBES = {name: CONTAINER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
OF_COMMANDS = ("GPKVS_TARGET", "GPKVS_METRICS_TARGET", "GPKVS_CLIENT_TLS_CA")  # in the pod
UNITS = {"MiB": 2**20, "GiB": 2**30, "Mi": 2**20, "Gi": 2**30}


def size(text: str) -> int:
    (unit,) = (unit for unit in UNITS if text.endswith(unit))
    return int(text.removesuffix(unit)) * UNITS[unit]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [name for name, one in MANIFESTS.items() if one["kind"] not in FOREIGN])
def test_a_manifest_fits_its_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_a_wrong_word_is_seen() -> None:
    wrong = {**MANIFESTS["service.yaml"], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_kustomization_has_all_and_names_the_image() -> None:
    kustomization = MANIFESTS["kustomization.yaml"]
    assert sorted(kustomization["resources"]) == sorted(set(MANIFESTS) - {"kustomization.yaml"})
    assert [one["name"] for one in kustomization["images"]] == [CONTAINER["image"]]


def test_all_select_the_pod() -> None:
    labels = POD["metadata"]["labels"]
    spec = {name: one.get("spec", {}) for name, one in MANIFESTS.items()}
    assert spec["stateful-set.yaml"]["selector"]["matchLabels"] == labels
    assert spec["service.yaml"]["selector"] == labels
    assert spec["disruption-budget.yaml"]["selector"]["matchLabels"] == labels
    assert spec["network-policy.yaml"]["podSelector"]["matchLabels"] == labels
    assert spec["service-monitor.yaml"]["selector"]["matchLabels"] == MANIFESTS["service.yaml"]["metadata"]["labels"]
    assert spec["stateful-set.yaml"]["serviceName"] == MANIFESTS["service.yaml"]["metadata"]["name"]


def test_ports_and_volumes_are_those_of_the_pod() -> None:
    service = {one["name"]: one for one in MANIFESTS["service.yaml"]["spec"]["ports"]}
    assert {name: one["port"] for name, one in service.items()} == PORTS
    assert {one["targetPort"] for one in service.values()} == set(PORTS)
    rules = MANIFESTS["network-policy.yaml"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(PORTS)
    assert {one["port"] for one in MANIFESTS["service-monitor.yaml"]["spec"]["endpoints"]} <= set(service)
    assert {probe["port"] for probe in PROBES.values()} <= set(PORTS)
    claims = MANIFESTS["stateful-set.yaml"]["spec"]["volumeClaimTemplates"]
    volumes = [one["name"] for one in POD["spec"]["volumes"]] + [one["metadata"]["name"] for one in claims]
    assert sorted(one["name"] for one in CONTAINER["volumeMounts"]) == sorted(volumes)


def test_the_image_and_the_pod_have_one_user() -> None:
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    security = POD["spec"]["securityContext"]
    assert f"\nUSER {security['runAsUser']}:{security['runAsGroup']}\n" in dockerfile
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"]


def test_the_limit_of_memory_holds_what_deploy_readme_says() -> None:
    limits = {size(CONTAINER["resources"][which]["memory"]) for which in ("limits", "requests")}
    (limit,) = limits  # one number: the pod is not the first that a node in need ends
    memory, indexes = size(ENVIRONMENT["GPKVS_MEMORY_MAX"]), size(ENVIRONMENT["GPKVS_TABLES_BYTES_MAX"])
    assert indexes + 1.3 * memory + 230 * 2**20 <= limit


def test_the_pod_has_time_to_end() -> None:
    sample = (FOLDER.parent / "gpkvs.toml").read_text()
    assert "\ndrain_seconds_max = 30.0\n" in sample
    assert POD["spec"]["terminationGracePeriodSeconds"] > 30


def names_of_the_document() -> list[str]:
    """Return the names of the certificate that docs/packaging.md makes."""
    (text,) = re.findall(r'"subjectAltName=([^"]+)"', (FOLDER.parents[1] / "docs/packaging.md").read_text())
    return list(text.split(","))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Return a server with the options of the pod that name no file."""
    others = ("GPKVS_TLS_CERT", "GPKVS_TLS_KEY", "GPKVS_USERS", *OF_COMMANDS)
    rest = {name.removeprefix("GPKVS_"): value for name, value in ENVIRONMENT.items() if name not in others}
    options = [word for name, value in rest.items() for word in (f"--{name.lower().replace('_', '-')}", value)]
    authority = Authority(tmp_path)
    certificate = server_options(authority.issue("server", *names_of_the_document()))
    accounts = Accounts(tmp_path / "users.toml", root=Account(read=("*",), metrics=True))
    started = Guarded(accounts, tmp_path, *options, *certificate, authority=authority)
    yield started
    started.close()


def test_a_server_takes_the_options_and_answers_the_probes(guarded: Guarded, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    base = f"https://{guarded.server.metrics_address}"
    for probe in PROBES.values():
        assert probe["scheme"] == "HTTPS"
        with urllib.request.urlopen(base + probe["path"], timeout=10, context=context) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{base}/metrics", timeout=10, context=context)


def test_a_command_in_the_pod_gets_in_with_a_token_alone(guarded: Guarded, tmp_path: Path) -> None:
    """The certificate has the name by which the pod's variables call the server."""
    host, port = ENVIRONMENT["GPKVS_TARGET"].split(":")
    assert port == str(PORTS["grpc"])
    assert ENVIRONMENT["GPKVS_METRICS_TARGET"] == f"{host}:{PORTS['metrics']}"
    assert ENVIRONMENT["GPKVS_CLIENT_TLS_CA"] == f"{Path(ENVIRONMENT['GPKVS_TLS_CERT']).parent}/ca.crt"
    here = {
        "GPKVS_TARGET": f"{host}:{guarded.server.target.rpartition(':')[2]}",
        "GPKVS_METRICS_TARGET": f"{host}:{guarded.server.metrics_address.rpartition(':')[2]}",
        "GPKVS_CLIENT_TLS_CA": str(tmp_path / "ca.pem"),
    }
    token = guarded.secrets[0].encode()
    for command in (["count"], ["top", "--once", "--interval", "0.1"]):
        run = [*COMMAND, *command, "--token-file", "/dev/stdin"]
        done = subprocess.run(run, env=os.environ | here, input=token + b"\n", capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    names = {name.partition(":")[2] for name in names_of_the_document()}
    service = MANIFESTS["service.yaml"]["metadata"]["name"]
    pod = f"{MANIFESTS['stateful-set.yaml']['metadata']['name']}-0"
    assert {host, service, f"{service}.default.svc", f"{pod}.{service}"} <= names


def test_what_the_server_is_told_is_mounted() -> None:
    command, *options = CONTAINER["args"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert command == "serve"
    assert given.keys() == {"--data", "--listen", "--metrics"}
    assert [given[name] for name in ("--listen", "--metrics")] == [f"0.0.0.0:{port}" for port in PORTS.values()]
    files = [given["--data"], *(ENVIRONMENT[f"GPKVS_{name}"] for name in ("TLS_CERT", "TLS_KEY", "USERS"))]
    mounts = {one["mountPath"] for one in CONTAINER["volumeMounts"]}
    # As cert-manager and the commands of the document name them in the Secrets.
    names = ["tls.crt", "tls.key", "users.toml"]
    assert [Path(file).name for file in files[1:]] == names
    document = (FOLDER.parents[1] / "docs" / "packaging.md").read_text()
    assert all(f"--from-file={name}" in document for name in names)
    assert {str(Path(file).parent) for file in files} <= mounts  # a new volume may have lost+found beside the store
