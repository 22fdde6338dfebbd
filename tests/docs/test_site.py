"""The site's navigation (mkdocs.yml) names every document. What `make site` finds is not repeated here."""

from __future__ import annotations

import re

from tests.docs.blocks import REPOSITORY

_NAMED = re.compile(r"^ +- (\S+\.md)$", re.MULTILINE)


def test_the_navigation_has_each_document_once() -> None:
    patterns = _NAMED.findall((REPOSITORY / "mkdocs.yml").read_text())
    named = [path for pattern in patterns for path in REPOSITORY.glob(pattern)]
    assert len(named) > 30
    assert len(set(named)) == len(named)
    documents = set().union(*(REPOSITORY.glob(f"{folder}/**/*.md") for folder in ("docs", "examples", "integrations")))
    missing = [str(path.relative_to(REPOSITORY)) for path in sorted(documents.difference(named))]
    assert missing == [], "name it in nav of mkdocs.yml"
