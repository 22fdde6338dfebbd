"""How findings of testssl.sh are judged; `make nightly` runs it."""

from __future__ import annotations

from tests.tools.tls_scan import Finding, mistakes

GOOD = [
    *(Finding(name, "OK", "not offered") for name in ("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2")),
    Finding("TLS1_3", "OK", "offered with final"),
]


def test_what_holds() -> None:
    assert mistakes(GOOD, quick=True) == []


def test_what_does_not_hold_is_named() -> None:
    found = [*GOOD[:4], Finding("TLS1_2", "INFO", "offered"), GOOD[5]]
    assert mistakes(found, quick=True) == ["TLS1_2: offered; it has to be: not offered"]


def test_what_was_not_checked_does_not_hold() -> None:
    assert mistakes(GOOD[1:], quick=True) == ["SSLv2: not checked; it has to be: not offered"]
    assert any(line.startswith("heartbleed: not checked") for line in mistakes(GOOD))


def test_complaints_count_whatever_they_are_about() -> None:
    found = [*GOOD, Finding("new_attack", "HIGH", "vulnerable"), Finding("cert_revocation", "HIGH", "no CRL")]
    assert mistakes(found, quick=True) == ["new_attack: vulnerable (HIGH)"]
