"""What testssl.sh (a package of Debian) finds at the two ports of a real server with TLS.

``python -m tests.server.testssl`` prints what it found as JSON; exit status 1 if anything is not as it must be.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.certificates import HERE, Authority, server_options
from tests.serving import Server

PORT_SECONDS_MAX = 600

NOT_OFFERED = (
    *("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2"),
    *(f"cipherlist_{kind}" for kind in ("NULL", "aNULL", "EXPORT", "LOW", "3DES_IDEA", "AVERAGE")),
)
# Renegotiation, compression and the attacks that have names.
GOOD = (
    *("secure_renego", "secure_client_renego", "CRIME_TLS", "fallback_SCSV", "cert_trust", "cert_chain_of_trust"),
    *("heartbleed", "CCS", "ROBOT", "POODLE_SSL", "FREAK", "DROWN", "LOGJAM", "BEAST", "LUCKY13", "RC4"),
)
# The CA of a test revokes nothing and has no name in the DNS; the metrics port is for no browser.
ACCEPTED = {"cert_revocation", "DNS_CAArecord", "HSTS", "security_headers"}


def findings(program: str, address: str, authority: Authority, folder: Path) -> list[dict[str, Any]]:
    """Return all findings at one port."""
    report = folder / f"{address.replace(':', '-')}.json"
    options = ["--quiet", "--warnings", "batch", "--color", "0", "--jsonfile", str(report)]
    found: list[dict[str, Any]] = []
    for _ in range(2):  # on a busy machine it may give up at its first connection
        report.unlink(missing_ok=True)
        subprocess.run(
            [program, *options, "--add-ca", str(authority.path), "--ip", "one", address],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=PORT_SECONDS_MAX,
            check=False,  # its status counts findings that are accepted here
        )
        found = json.loads(report.read_text())
        if not any(finding["finding"] == "Scan interrupted" for finding in found):
            break
    return found


def faults(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is not as it must be; what was not looked at is not."""
    by_id = {finding["id"]: finding for finding in found}
    missing = {"id": "", "severity": "not tested", "finding": "not tested"}
    for name in NOT_OFFERED:
        if (text := by_id.get(name, missing)["finding"]) != "not offered":
            yield f"{name}: {text}"
    if not (text := by_id.get("TLS1_3", missing)["finding"]).startswith("offered"):
        yield f"TLS1_3: {text}"
    for name in GOOD:
        if (severity := by_id.get(name, missing)["severity"]) != "OK":
            yield f"{name}: {severity}"
    for finding in found:
        if finding["severity"] not in {"OK", "INFO", "DEBUG"} and finding["id"] not in ACCEPTED:
            yield f"{finding['id']}: {finding['severity']}: {finding['finding']}"


def main() -> None:
    """Look at both ports."""
    program = shutil.which("testssl") or shutil.which("testssl.sh")
    if program is None:
        sys.exit("testssl.sh is not installed: apt-get install testssl.sh")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority(folder)
        pair = authority.issue("server", *HERE, ends=datetime.now(UTC) + timedelta(days=90))
        server = Server(folder / "store", folder, *server_options(pair), authority=authority)
        try:
            ports = {"gRPC": server.target, "metrics": server.metrics_address}
            found = {port: findings(program, address, authority, folder) for port, address in ports.items()}
            server.stop()
        finally:
            server.kill()
        wrong = {port: list(faults(there)) for port, there in found.items()}
        if "Traceback" in server.log.read_text():
            wrong["log"] = ["the server logged a traceback"]
    print(json.dumps({"findings": {port: len(there) for port, there in found.items()}, "wrong": wrong}))
    if any(wrong.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
