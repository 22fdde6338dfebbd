"""Says MkDocs which files of the repository are pages of the site (mkdocs.yml).

Documents lie in several folders, and their links are those that a Git host follows. So the site has the layout of the
repository, and takes from it what `nav` names and what these pages link to, directly or not:

- a Markdown file is a page, a picture stays one;
- a text file, such as a program, is a page that shows it;
- a folder is its README.md, or a page that lists its files;
- ``reference/MODULE.md`` is no file: it is the API of the module.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
_STYLE = "docs/site/site.css"
_PICTURES = (".svg", ".png")
_FENCED = re.compile(r"(^``````.*\Z|^\s*```.*?^\s*```)", re.MULTILINE | re.DOTALL)  # six: a text that a page shows
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)\s#]+)")
# A paragraph inside an item, and the next item right below it: Python-Markdown wants a blank line between them.
_LAST_OF_ITEM = re.compile(r"(?<=\n\n)( +(?![-*] )\S.*(?:\n *(?![-*] |\d\. )\S.*)*\n)(?= *(?:[-*]|\d\.) )")
_LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(\w+:)?//|<link[^>]*\shref=["']?(\w+:)?//""")


class _NestedLists(Extension):
    """A Git host nests a list that stands under the text of an item; Python-Markdown wants four spaces."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name all files of patterns in `nav`."""
    config.nav = _expanded(config.nav)
    config.markdown_extensions.insert(0, _NestedLists())  # others add to the parser that it builds
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the theme's files from MkDocs, and the others from the whole repository."""
    taken = {file.src_uri: file for file in files if file.src_dir != config.docs_dir}
    taken[_STYLE] = _file(_STYLE, config)
    waiting = list(_named(config.nav))
    while waiting:
        name = waiting.pop()
        if name not in taken and (file := _page(name, config)):
            taken[name] = file
            if name.endswith(".md"):
                waiting += (_target(name, link) for link in _links(file.content_string))
    return Files(taken.values())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the pages of what they name, and lists be read as a Git host reads them."""
    name = page.file.src_uri

    def leading(link: re.Match[str]) -> str:
        return posixpath.relpath(_target(name, link[0]), posixpath.dirname(name) or ".")

    parts = _FENCED.split(markdown)
    parts[::2] = (_LAST_OF_ITEM.sub(r"\1\n", _LINK.sub(leading, part)) for part in parts[::2])
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from another host."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load something from another host: {found[0]}")
    return output


def _expanded(item: Any) -> Any:
    """Return a part of `nav` with the files of its patterns, README.md first."""
    if isinstance(item, dict):
        return {title: _expanded(below) for title, below in item.items()}
    if isinstance(item, list):
        return [one for below in item for one in (_matches(below) if _is_pattern(below) else [_expanded(below)])]
    return item


def _is_pattern(item: Any) -> bool:
    return isinstance(item, str) and "*" in item


def _matches(pattern: str) -> list[str]:
    # Not by a link: gpkvs/server is the folder server.
    found = (path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.resolve() == path)
    return sorted(found, key=lambda name: (not name.endswith("/README.md"), name))


def _named(item: Any) -> Iterator[str]:
    """Yield the files that a part of `nav` names."""
    if isinstance(item, str):
        yield item
    else:
        for below in item.values() if isinstance(item, dict) else item:
            yield from _named(below)


def _links(text: str) -> list[str]:
    return _LINK.findall(_FENCED.sub("", text))


def _target(name: str, link: str) -> str:
    """Return the page or picture to which a link of a page leads."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    if (ROOT / target).is_dir():
        return f"{target}/README.md"
    return target if target.endswith((".md", *_PICTURES)) else f"{target}.md"


def _page(name: str, config: MkDocsConfig) -> File | None:
    """Return a file of the site; none if there is no such thing, which MkDocs then tells."""
    path = PurePosixPath(name)
    if path.parts[0] == "reference":
        return File.generated(config, name, content=f"# {path.stem}\n\n::: {path.stem}\n")
    if (ROOT / name).is_file():
        return _file(name, config)
    shown = path.with_suffix("") if path.name != "README.md" else path.parent
    if (ROOT / shown).is_dir():
        names = sorted(one.name for one in (ROOT / shown).iterdir() if not one.name.startswith(("_", ".")))
        listed = "".join(f"- [{one}]({one})\n" for one in names)
        return File.generated(config, name, content=f"# {shown}\n\n{listed}")
    if (ROOT / shown).is_file():
        kind = shown.suffix.removeprefix(".")
        text = (ROOT / shown).read_text()
        return File.generated(config, name, content=f"# {shown}\n\n``````{kind}\n{text}\n``````\n")
    return None


def _file(name: str, config: MkDocsConfig) -> File:
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls)
