"""testssl.sh against both ports of a real server with TLS: what must hold, and nothing else that it complains of.

``python -m tests.tls_scan``. It needs Debian's testssl.sh, and prints what it found as JSON; exit status 1 if something
does not hold.
"""

from __future__ import annotations

import argparse
import json
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


def scan(address: str, authority: Path, kept: Path, checks: tuple[str, ...]) -> list[Finding]:
    """Run testssl.sh on a port."""
    options = ("--warnings", "batch", "--color", "0", "--quiet", "--ip", "one", "--nodns", "min")
    # Its exit status counts what it does not like; what it found is in the file.
    subprocess.run(
        [_COMMAND, *options, *checks, "--add-ca", str(authority), "--jsonfile", str(kept), address],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
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
    try:
        report: dict[str, Any] = {}
        for name, address in (("grpc", server.target), ("metrics", server.metrics_address)):
            findings = scan(address, authority.path, folder / f"{name}.json", _QUICK if quick else _WHOLE)
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
