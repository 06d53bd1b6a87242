"""Who may see and do what in the console, once there are tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browsing import ConsoleDaemon, Reader


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    """A daemon with tokens. The tests ask it over the socket, where they are admins."""
    with ConsoleDaemon(tmp_path_factory.mktemp("guarded")) as daemon:
        for name in ("mail", "bills"):
            daemon.client.create_queue(name)
            daemon.client.produce(name, ["a"])
        daemon.client.create_token("root", role="admin")
        yield daemon


def signed_in(browser: Browser, daemon: ConsoleDaemon, name: str, role: str, *queues: str) -> Reader:
    secret = daemon.client.create_token(name, role=role, queues=queues).token
    reader = Reader(browser, daemon.address)
    reader.open()
    reader.page.get_by_label("Token").fill(secret)
    reader.press("Sign in")
    return reader


def test_without_a_token_every_page_asks_for_one(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = Reader(browser, guarded.address)
    for path in ("/", "/queue?name=mail", "/act/pause?name=mail", "/daemon"):
        page = reader.open(path)
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert "mail" not in page.locator("main").inner_text()
    page.get_by_label("Token").fill("qtr-none-of-ours")
    reader.press("Sign in")
    expect(page.get_by_role("alert")).to_have_text("api key is invalid")
    reader.close()


def test_an_operator_signs_in_acts_and_signs_out(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = signed_in(browser, guarded, "ann", "operator")
    page = reader.page
    expect(page.locator("header")).to_contain_text("ann · operator")
    (cookie,) = reader.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and "qtr" not in cookie["value"]
    reader.open("/queue", name="bills")
    page.locator("#pause-0").click()
    page.locator("#confirm").click()
    expect(page.locator("#remark")).to_contain_text("paused")
    assert guarded.states("bills") == ["paused"]
    reader.press("Sign out")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    reader.context.add_cookies([cookie])  # a copy of the old cookie
    reader.open()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    reader.close()


def test_the_links_stay_on_one_line_of_a_narrow_page_beside_who_is_signed_in(
    browser: Browser, guarded: ConsoleDaemon
) -> None:
    reader = signed_in(browser, guarded, "al", "admin")
    reader.page.set_viewport_size({"width": 400, "height": 800})
    tops = [box["y"] for link in reader.page.locator("header nav a").all() if (box := link.bounding_box())]
    assert len(tops) == 3 and len(set(tops)) == 1
    assert reader.page.evaluate("document.documentElement.scrollWidth") == 400
    reader.close()


def test_signing_in_leads_to_the_page_that_was_asked_for(browser: Browser, guarded: ConsoleDaemon) -> None:
    secret = guarded.client.create_token("joe", role="viewer").token
    reader = Reader(browser, guarded.address)
    page = reader.open("/items", name="mail", where="kind = 'a&b'")
    page.get_by_label("Token").fill(secret)
    reader.press("Sign in")
    expect(page.get_by_role("heading", level=1)).to_have_text("Items of mail")
    expect(page.get_by_label("Condition in SQL")).to_have_value("kind = 'a&b'")
    guarded.client.revoke_token("joe")
    reader.open("/jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    reader.close()


def test_a_page_whose_session_ends_asks_for_the_token_again(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = signed_in(browser, guarded, "zoe", "viewer")
    page = reader.open("/queue", name="mail")
    guarded.client.revoke_token("zoe")
    reader.refresh()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    reader.close()


def test_a_page_that_is_open_during_a_restart_comes_back_after_signing_in(browser: Browser, tmp_path: Path) -> None:
    with ConsoleDaemon(tmp_path) as daemon:
        daemon.client.create_queue("mail")
        secret = daemon.client.create_token("root", role="admin").token
        reader = Reader(browser, daemon.address)
        page = reader.open("/queue", name="mail", last="24h")
        page.get_by_label("Token").fill(secret)
        reader.press("Sign in")
        daemon.restart()
        reader.refresh()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.get_by_label("Token").fill(secret)
        reader.press("Sign in")
        expect(page.get_by_role("heading", level=1)).to_have_text("mail")
        assert page.url.endswith("/console/queue?name=mail&last=24h")
        reader.close()


def test_a_viewer_sees_no_buttons_and_can_change_nothing(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = signed_in(browser, guarded, "eve", "viewer")
    page = reader.open("/queue", name="mail")
    reader.sees("Partitions")
    assert page.locator("main a[href*='/act/'], main form[method=post], main button").count() == 0
    (item,) = guarded.client.list_items("mail")
    page = reader.open("/item", name="mail", id=item.id)
    assert page.locator("main a[href*='/act/'], main form[method=post]").count() == 0
    page = reader.open("/daemon")
    reader.sees("Storages")
    reader.sees("no warnings about your queues")  # the daemon keeps the others to itself, and says so
    assert "data in" not in page.locator("main").inner_text()
    assert page.locator("#audit").count() == 0
    assert guarded.client.list_audit(who="eve") == []  # looking causes no denials
    reader.open("/act/pause", name="mail", partition=0)
    reader.sees("you may look, but change nothing")
    assert guarded.states("mail") == ["available"]
    reader.close()


def test_a_caller_sees_only_its_queues(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = signed_in(browser, guarded, "mailer", "operator", "mail*")
    page = reader.page
    assert page.locator("#queues td.name > a:first-child").all_inner_texts() == ["mail"]
    expect(page.locator("#totals b").first).to_have_text("1")
    for path in ("/queue", "/items", "/sql", "/leases", "/dead", "/settings"):
        reader.open(path, name="bills", query="select 1")
        reader.sees("access denied")
    reader.open("/daemon")
    assert str(guarded.directory) not in page.content()
    reader.close()


def test_a_revoked_token_ends_its_session_at_once(browser: Browser, guarded: ConsoleDaemon) -> None:
    reader = signed_in(browser, guarded, "bob", "viewer")
    reader.sees("queues")
    guarded.client.revoke_token("bob")
    page = reader.open()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    reader.close()


def test_the_first_token_closes_a_console_that_was_open(browser: Browser, tmp_path: Path) -> None:
    with ConsoleDaemon(tmp_path) as daemon:
        reader = Reader(browser, daemon.address)
        page = reader.open()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        daemon.client.create_token("root", role="admin")
        reader.open()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        reader.close()
