"""testssl.sh against both ports of a real server with TLS: what must hold, and nothing else that it complains of.

``python -m tests.tools.tls_scan``. The port of gRPC refuses clients that do not offer HTTP/2, as testssl.sh does in
most of its hellos: there a copy of it is run that always offers it. It needs Debian's testssl.sh, and prints what it
found as JSON; exit status 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.certificates import HERE, Authority, server_options
from tests.serving import Server

_COMMAND = "testssl"
_WHOLE = ("--protocols", "--std", "--pfs", "--server-preference", "--server-defaults", "--vulnerable")
_QUICK = ("--protocols",)
_SECONDS_MAX = 900

_PROTOCOLS = {
    **dict.fromkeys(("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2"), "not offered"),
    "TLS1_3": "offered with final",
}
# What a finding must begin with.
_HOLDS = {
    **_PROTOCOLS,
    **{f"cipherlist_{kind}": "not offered" for kind in ("NULL", "aNULL", "EXPORT", "LOW", "3DES_IDEA", "AVERAGE")},
    "cipherlist_STRONG": "offered",
    "PFS": "offered",
    "cert_chain_of_trust": "passed",
    "secure_renego": "TLS 1.3 only server",
    "secure_client_renego": "not vulnerable",
    "fallback_SCSV": "only TLS 1.3 supported",
    **dict.fromkeys(("heartbleed", "CCS", "ROBOT", "CRIME_TLS", "POODLE_SSL", "FREAK"), "not vulnerable"),
    **dict.fromkeys(("DROWN", "LOGJAM", "BEAST", "LUCKY13", "RC4"), "not vulnerable"),
}
_COMPLAINTS = ("LOW", "MEDIUM", "HIGH", "CRITICAL", "WARN", "FATAL")
_ACCEPTED = ("cert_revocation",)  # the test's own CA has no list of what it has revoked


@dataclass(frozen=True)
class Finding:
    """One of testssl.sh: its name, how bad it is, and what it says. A name may come several times."""

    id: str
    severity: str
    finding: str


# Where testssl.sh puts a hello together, and what it then says there: the extension ALPN with h2 alone.
_EXTENSIONS = 'extra_extensions="$(tolower "$4")"'
_H2 = "00,10,00,05,00,03,02,68,32"
_OFFERS = f'[[ "$extra_extensions" == *00,10,* ]] || extra_extensions+="${{extra_extensions:+,}}{_H2}"'
_OPENSSL = """#!/bin/sh
[ "$1" = s_client ] || exec openssl "$@"
shift
exec openssl s_client -alpn h2 "$@"
"""


def offering_http2(folder: Path) -> tuple[str, dict[str, str]]:
    """Make a testssl.sh that offers HTTP/2 in every hello, its own and those of openssl; return how to run it."""
    installed = shutil.which(_COMMAND)
    assert installed
    text = Path(installed).read_text()
    assert text.count(_EXTENSIONS) == 1, "another testssl.sh"
    script, openssl = folder / "testssl.sh", folder / "openssl"
    script.write_text(text.replace(_EXTENSIONS, f"{_EXTENSIONS}\n{_OFFERS}"))
    openssl.write_text(_OPENSSL)
    script.chmod(0o700)
    openssl.chmod(0o700)
    return str(script), {"OPENSSL": str(openssl)}


def scan(
    address: str, authority: Path, kept: Path, checks: tuple[str, ...], command: str, environment: dict[str, str]
) -> list[Finding]:
    """Run testssl.sh on a port."""
    options = ("--warnings", "batch", "--color", "0", "--quiet", "--ip", "one", "--nodns", "min")
    # Its exit status counts what it does not like; what it found is in the file.
    subprocess.run(
        [command, *options, *checks, "--add-ca", str(authority), "--jsonfile", str(kept), address],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=os.environ | environment,
        timeout=_SECONDS_MAX,
        check=False,
    )
    return [Finding(one["id"], one["severity"], one["finding"]) for one in json.loads(kept.read_text())]


def mistakes(findings: list[Finding], *, quick: bool = False) -> list[str]:
    """Return what does not hold, and what is complained of."""
    holds = _PROTOCOLS if quick else _HOLDS
    said: dict[str, list[str]] = {}
    for one in findings:
        said.setdefault(one.id, []).append(one.finding)
    wrong = [
        f"{name}: {', '.join(said.get(name, ['not checked']))}; it has to be: {text}"
        for name, text in holds.items()
        if not any(finding.startswith(text) for finding in said.get(name, ()))
    ]
    return wrong + [
        f"{one.id}: {one.finding} ({one.severity})"
        for one in findings
        if one.severity in _COMPLAINTS and one.id not in _ACCEPTED
    ]


def scan_server(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Scan both ports of a server; return how many findings there are of each, and what is wrong."""
    authority = Authority(folder)
    pair = authority.issue("server", *HERE, ends=datetime.now(UTC) + timedelta(days=90))
    server = Server(folder / "store", folder, *server_options(pair), authority=authority)
    ports = (
        ("grpc", server.target, offering_http2(folder)),
        ("metrics", server.metrics_address, (_COMMAND, {})),
    )
    try:
        report: dict[str, Any] = {}
        for name, address, how in ports:
            findings = scan(address, authority.path, folder / f"{name}.json", _QUICK if quick else _WHOLE, *how)
            report[name] = {"findings": len(findings), "wrong": mistakes(findings, quick=quick)}
        server.stop()
    finally:
        server.kill()
    return report


def main() -> None:
    """Scan a server of its own, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the versions of TLS")
    options = parser.parse_args()
    if not shutil.which(_COMMAND):
        sys.exit("there is no testssl.sh: apt-get install testssl.sh")
    with tempfile.TemporaryDirectory() as folder:
        report = scan_server(Path(folder), quick=options.quick)
    print(json.dumps(report, indent=1))
    if any(port["wrong"] for port in report.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
