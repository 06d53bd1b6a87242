"""Every link between pages has a target, and a link leads to every page."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests import ROOT
from tests.docs.pages import PAGES, Link, anchors, links

LINKS = [link for page in PAGES for link in links(page)]


@pytest.mark.parametrize("link", [pytest.param(link, id=f"{link.page}:{link.line} {link.target}") for link in LINKS])
def test_a_link_leads_somewhere(link: Link):
    parts = urlsplit(link.target)
    if parts.scheme:
        assert parts.scheme == "https" and parts.netloc, "links to elsewhere are https"
        return
    target = ((ROOT / link.page).parent / unquote(parts.path)).resolve() if parts.path else ROOT / link.page
    assert target.exists()
    assert target.is_relative_to(ROOT), "a link may not leave the repository"
    if parts.fragment:
        assert parts.fragment in anchors(target.relative_to(ROOT))


def test_every_page_of_docs_is_reached_from_the_readme():
    reached, waiting = set(), [Path("README.md")]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in links(page):
            path = urlsplit(link.target).path
            target = (ROOT / page).parent.joinpath(path).resolve()
            if path.endswith(".md") and target.exists():
                waiting.append(target.relative_to(ROOT))
    assert [page for page in sorted(set(PAGES) - reached) if page.parent.name != "adr"] == []
