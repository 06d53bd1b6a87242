"""The pages of the documentation, with their code blocks and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests import ROOT

PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packaging/*.md"), *ROOT.glob("demo/*.md")]
)

INDENTED = "indented"


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    excuse: str
    """Why the block is not run here: the text of `<!-- not run: … -->` or `<!-- run by … -->` right above it."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Link(NamedTuple):
    page: Path
    line: int
    target: str


def blocks(page: Path) -> list[Block]:
    found, excuse = [], ""
    for token in _tokens(page):
        if token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info.strip() else ("" if token.type == "fence" else INDENTED)
            found.append(Block(page, _line(token), language, token.content, excuse))
        said = re.fullmatch(r"<!-- ((?:not run:|run by) .*?) -->", token.content.strip())
        excuse = said.group(1) if token.type == "html_block" and said else ""
    return found


def links(page: Path) -> Iterator[Link]:
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                yield Link(page, _line(token), str(target))


@cache
def anchors(page: Path) -> set[str]:
    """Names of the headings as GitHub makes them."""
    tokens = _tokens(page)
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0
