"""Nothing that a client can set becomes part of a page's markup, and no change comes from another site."""

from __future__ import annotations

import http.client
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from querator.client import produce_item
from tests.console.browsing import ConsoleDaemon, Reader
from tests.waiting import until

ATTACK = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`{{999*999}}${999*999}</textarea><svg onload=alert(3)>"
)
NAME = "<img/src=x/onerror=alert(1)>\"'</title><script>alert(2)</script>&amp;{{999*999}}"
"""Queue names have no spaces."""
COLUMN = '"' + ATTACK.replace('"', '""') + '"'
COLUMN_2 = '"' + ATTACK[::-1].replace('"', '""') + '<script>alert(4)</script>"'
MONTHS = "range(timestamp '2026-01-01', timestamp '2026-06-01', interval 1 month)"


def test_an_attack_in_every_field_that_a_client_can_set_is_shown_as_text(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    name, dead = f"{queue}{NAME}", f"{queue}-dead{NAME}"
    client = daemon.client
    client.create_queue(dead, reference=ATTACK)
    client.create_queue(name, dead_queue=dead, reference=ATTACK)
    attack = produce_item(ATTACK, kind=ATTACK, reference=ATTACK, encoding=ATTACK)
    folded = produce_item(f'{{"{NAME[:14]}": "<img src=x onerror=alert(1)>"}}', kind=ATTACK, encoding="json")
    client.produce(name, [attack, attack, folded, produce_item(ATTACK, kind=ATTACK, enqueue_at=2_000_000_000_000_000)])
    given_up, held, _ = client.lease(name, 3, client_id=ATTACK).items
    client.retry(name, [given_up.id], dead=True, reason=ATTACK)
    client.retry(name, [_.id], reason=ATTACK)
    (dead_item,) = client.list_items(dead)
    client.pause_partitions(name)
    client.redrive_items(dead)
    ready = next(item for item in client.list_items(name) if not item.is_leased)
    pages = [
        ("/", {"contains": queue}),
        ("/", {"contains": ATTACK, "sort": "name"}),
        ("/queue", {"name": name}),
        ("/settings", {"name": name}),
        ("/leases", {"name": name}),
        ("/items", {"name": name}),
        ("/items", {"name": name, "state": "leased"}),
        ("/items", {"name": name, "state": "scheduled"}),
        ("/items", {"name": name, "where": ATTACK}),
        ("/item", {"name": name, "id": held.id}),
        ("/item", {"name": name, "id": ready.id}),
        ("/item", {"name": dead, "id": dead_item.id}),
        ("/dead", {"name": dead, "by": "reference"}),
        ("/dead", {"name": dead}),
        (
            "/sql",
            {"name": name, "query": "select kind, count(*) as n from items group by kind union all select 'x', 1"},
        ),
        ("/sql", {"name": name, "query": ATTACK}),
        ("/sql", {"name": name, "query": f"select kind as {COLUMN}, count(*) as {COLUMN_2} from items group by kind"}),
        ("/sql", {"name": name, "query": f"select range as {COLUMN}, 1 as {COLUMN_2} from {MONTHS}"}),
        ("/jobs", {}),
        ("/daemon", {}),
        ("/act/pause", {"name": name, "partition": "0", "for": ATTACK}),
        ("/act/release", {"name": name, "client": ATTACK}),
        ("/act/delete-item", {"name": name, "id": held.id}),
        ("/act/migrate", {"name": ATTACK, "partition": "0"}),
        (f"/{NAME}", {}),
        ("/queue", {"name": ATTACK}),
    ]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(daemon.connect().lease, queue, 1, client_id=ATTACK)
        until(lambda: daemon.client.queue_info(queue).figures.waiting_clients == [ATTACK], "the client does not wait")
        look_at([("/leases", {"name": queue}), *pages], reader)
        expect(reader.open("/leases", name=queue).locator("ul.names li")).to_have_text(ATTACK)
        expect(reader.open("/daemon").locator("#audit")).to_contain_text(NAME)
        client.produce(queue, ["a"])
        assert waiting.result(20).items
    reader.open("/item", name=name, id=held.id)
    reader.sees(ATTACK)
    reader.open("/dead", name=dead)
    reader.page.get_by_role("checkbox", name="Choose this group").first.check()
    reader.press("Delete the chosen groups …")
    expect(reader.page.get_by_role("heading", level=1)).to_contain_text("Delete 1 item of")
    reader.open("/leases", name=name)
    reader.press("Take back")
    reader.page.locator("#confirm").click()
    reader.sees("items of")
    assert client.queue_info(name).figures.leased == 0


def look_at(pages: list[tuple[str, dict[str, str]]], reader: Reader) -> None:
    for path, fields in pages:
        page = reader.open(path, **fields)
        assert page.locator("img, main script, main svg[onload], iframe").count() == 0, path
        assert page.title().endswith("· Querator"), path
        assert "998001" not in page.title(), path


@pytest.fixture
def wire(daemon: ConsoleDaemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(daemon.address).netloc, timeout=20)


def ask(
    wire: http.client.HTTPConnection, path: str, fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    body = urlencode(fields) if fields is not None else None
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    wire.request("GET" if fields is None else "POST", f"/console{path}", body, sent)
    answer = wire.getresponse()
    return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}


def form_of(wire: http.client.HTTPConnection, path: str) -> tuple[str, dict[str, str]]:
    """The visitor's cookie, and the hidden fields of a form."""
    _, body, headers = ask(wire, path)
    cookie = headers["set-cookie"].partition(";")[0]
    _, body, _ = ask(wire, path, Cookie=cookie)
    return cookie, dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', body))


def test_every_answer_carries_a_strict_policy(wire: http.client.HTTPConnection) -> None:
    for path in ("", "/", "/static/style.css", "/static/none", "/nowhere"):
        _, _, headers = ask(wire, path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(wire: http.client.HTTPConnection) -> None:
    cookie = ask(wire, "/")[2]["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/console" in cookie


def test_a_change_needs_our_own_page_and_the_token_of_its_visitor(
    wire: http.client.HTTPConnection, daemon: ConsoleDaemon, queue: str
) -> None:
    path = f"/act/pause?name={queue}&partition=0"
    cookie, fields = form_of(wire, path)
    own, other = daemon.address, "http://evil.example"
    good = {"Cookie": cookie, "Origin": own, "Sec_Fetch_Site": "same-origin"}
    refused = [
        (fields, good | {"Origin": other}),
        (fields, good | {"Sec_Fetch_Site": "cross-site"}),
        (fields, good | {"Sec_Fetch_Site": "same-site"}),
        (fields, {"Cookie": cookie}),
        (fields, {"Cookie": cookie, "Origin": "null"}),
        (fields | {"token": "0" * 64}, good),
        ({name: value for name, value in fields.items() if name != "token"}, good),
        (fields, {name: value for name, value in good.items() if name != "Cookie"}),
        (fields, good | {"Cookie": cookie + "x"}),
    ]
    for form, headers in refused:
        status, body, _ = ask(wire, path, form, **headers)
        assert status == 403 and "paused" not in body, (form, headers)
        assert daemon.states(queue) == ["available", "available"]
    status, _, headers = ask(wire, path, fields, **good)
    assert status == 303 and headers["location"].startswith("/console/queue?")
    assert daemon.states(queue) == ["paused", "available"]


def test_looking_changes_nothing(wire: http.client.HTTPConnection, daemon: ConsoleDaemon, queue: str) -> None:
    status, _, _ = ask(wire, f"/act/pause?name={queue}&partition=0&confirmed=yes")
    assert status == 200 and daemon.states(queue) == ["available", "available"]


def test_a_form_that_is_too_long_is_refused(wire: http.client.HTTPConnection) -> None:
    status, body, _ = ask(wire, "/act/pause", {"name": "x" * 300_000})
    assert status == 400 and "too long" in body


def test_nothing_of_the_console_is_loaded_before_somebody_looks(own_daemon: ConsoleDaemon) -> None:
    maps = f"/proc/{own_daemon.process.pid}/maps"
    with open(maps) as file:
        assert "markupsafe" not in file.read()
    wire = http.client.HTTPConnection(urlsplit(own_daemon.address).netloc, timeout=20)
    assert ask(wire, "/")[0] == 200
    with open(maps) as file:
        assert "markupsafe" in file.read()
