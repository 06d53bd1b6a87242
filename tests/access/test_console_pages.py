"""Every page and every action of the console, by every role: with a pattern that matches, with one that does not, and
with no token. The pages come from the table of the site, so a new page is walked, too.
"""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from querator.daemon.console.site import PAGES, SIGN_IN
from tests.access.guarded import MINE, OTHERS, ROLES, Answer, Guarded
from tests.access.test_roles import OPERATORS, VIEWERS

ACTIONS = sorted(path for path in PAGES if path.startswith("/act/"))
OPEN = (SIGN_IN, "/sign-out")
VIEWS = sorted(PAGES.keys() - ACTIONS - set(OPEN))
UNKNOWN = "unheard-of"
ID = "0" * 27


def query(queue: str) -> str:
    """The fields that the pages and actions read."""
    fields = {"name": queue, "id": ID, "client": "me", "partition": 0, "job": "nojob", "query": "select 1"}
    return urlencode(fields)


def page(daemon: Guarded, path: str, queue: str, token: str | None) -> Answer:
    return daemon.ask(f"/console{path}?{query(queue)}", token=token)


def act(daemon: Guarded, path: str, queue: str, token: str | None) -> Answer:
    """Sends the form of an action as confirmed, as a page of this console would send it to this visitor."""
    shown = page(daemon, "/act/pause", MINE, daemon.tokens["admin"])
    cookie = shown.headers["set-cookie"].partition(";")[0]
    secret = re.search(rb'name="token" value="([0-9a-f]{64})"', daemon.ask(
        f"/console/act/pause?{query(MINE)}", token=daemon.tokens["admin"], Cookie=cookie
    ).body)  # fmt: skip
    assert secret is not None
    body = f"{query(queue)}&confirmed=yes&token={secret[1].decode()}".encode()
    return daemon.ask(
        f"/console{path}", body, token, Cookie=cookie, Origin=f"http://{daemon.http}",
        **{"Content-Type": "application/x-www-form-urlencoded"},
    )  # fmt: skip


def text(answer: Answer, queue: str) -> str:
    """What a page says, without what differs between any two visits: the name that was asked for, secrets, and figures
    of the machine.
    """
    plain = answer.body.decode().replace(queue, "?")
    return re.sub(
        r"[0-9a-f]{64}|(?<=value=\")\d+|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z|\d+(\.\d+)? ?(ms|s|MB|kB)\b", "…", plain
    )


@pytest.mark.parametrize("path", [*VIEWS, *ACTIONS])
def test_nobody_sees_a_page_without_a_token(daemon: Guarded, path: str) -> None:
    answer = page(daemon, path, MINE, None)
    assert answer.status == 303 and answer.headers["location"].startswith("/console/sign-in")
    assert act(daemon, path, MINE, None).status == 303


@pytest.mark.parametrize("path", VIEWS)
def test_a_page_is_for_viewers(daemon: Guarded, path: str) -> None:
    for role in ROLES:
        answer = page(daemon, path, MINE, daemon.tokens[role])
        # The page of a query shows what is wrong with the query, also that it is denied. Other pages may list denials.
        is_denied = answer.status == 403 or (path == "/sql" and b"access denied" in answer.body)
        assert is_denied == (role not in VIEWERS), (role, answer)


@pytest.mark.parametrize("path", VIEWS)
def test_a_page_about_a_forbidden_queue_is_like_one_about_an_unknown_queue(daemon: Guarded, path: str) -> None:
    for role in ("viewer", "operator"):
        narrow = daemon.tokens[f"{role} of mine"]
        forbidden, unknown = (page(daemon, path, name, narrow) for name in (OTHERS, UNKNOWN))
        assert forbidden.status == unknown.status
        assert text(forbidden, OTHERS) == text(unknown, UNKNOWN)
        assert OTHERS not in page(daemon, path, MINE, narrow).body.decode()


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_is_for_operators(daemon: Guarded, path: str) -> None:
    for role in ROLES:
        if role not in OPERATORS:
            for answer in (page(daemon, path, MINE, daemon.tokens[role]), act(daemon, path, MINE, daemon.tokens[role])):
                assert answer.status == 403, (role, answer)


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_on_a_forbidden_queue_is_like_one_on_an_unknown_queue(daemon: Guarded, path: str) -> None:
    narrow = daemon.tokens["operator of mine"]
    before = daemon.admin("/v1/partitions.list", {"queue_name": OTHERS})["items"][0]["state"]
    for ask in (page, act):
        forbidden, unknown = (ask(daemon, path, name, narrow) for name in (OTHERS, UNKNOWN))
        assert forbidden.status == unknown.status and forbidden.status != 303
        assert text(forbidden, OTHERS) == text(unknown, UNKNOWN)
    assert daemon.admin("/v1/partitions.list", {"queue_name": OTHERS})["items"][0]["state"] == before


def test_an_action_of_an_operator_on_its_own_queue_is_done(daemon: Guarded) -> None:
    """Shows that the forms above are complete: only the rights are missing there."""
    narrow = daemon.tokens["operator of mine"]
    assert act(daemon, "/act/pause", MINE, narrow).status == 303
    assert daemon.admin("/v1/partitions.list", {"queue_name": MINE})["items"][0]["state"] == "paused"
    assert act(daemon, "/act/resume", MINE, narrow).status == 303
