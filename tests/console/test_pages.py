"""Each page of the console, in a browser: what it shows, how it is sorted and filtered, and that it stays fresh."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import Browser, expect

from querator.client import produce_item
from tests.console.browsing import ConsoleDaemon, Reader
from tests.waiting import until

PAGES = ("/queue", "/items", "/leases", "/sql", "/settings", "/dead")


def names_shown(reader: Reader) -> list[str]:
    return reader.page.locator("#queues td.name > a:first-child").all_inner_texts()


def test_the_overview_shows_what_is_wrong_first(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    for name, items in (("b", 3), ("a", 1), ("c", 0)):
        daemon.client.create_queue(f"{queue}-{name}")
        if items:
            daemon.client.produce(f"{queue}-{name}", ["x"] * items)
    daemon.client.pause_partitions(f"{queue}-c")
    daemon.client.advance_clock("20s")
    reader.open("/", contains=f"{queue}-")
    assert names_shown(reader) == [f"{queue}-c", f"{queue}-b", f"{queue}-a"]
    row = reader.page.locator("#queues tbody tr").first
    expect(row.locator(".pill")).to_have_text("paused")
    reader.press("Queue")
    assert names_shown(reader) == [f"{queue}-a", f"{queue}-b", f"{queue}-c"]
    assert "sort=name" in reader.page.url and "contains" in reader.page.url


def test_the_overview_is_filtered_by_its_box(reader: Reader, queue: str) -> None:
    page = reader.open()
    page.get_by_label("Filter queues by name").fill(queue[2:].upper())
    page.keyboard.press("Enter")
    expect(page.locator("#queues tbody tr")).to_have_count(1)
    assert names_shown(reader) == [queue]
    expect(page.locator(".command code").last).to_have_text(f"querator queues list --contains {queue[2:].upper()}")
    reader.press(queue)
    expect(page.get_by_role("heading", level=1)).to_have_text(queue)


def test_a_problem_that_comes_up_is_shown_without_a_new_page(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    page = reader.open("/", contains=queue)
    expect(page.locator("#queues tr.slowed, #queues tr.troubled")).to_have_count(0)
    daemon.client.pause_partitions(queue, [1])
    reader.refresh()
    expect(page.locator("#queues tr.slowed .pill")).to_have_text("paused 1 of 2")
    daemon.let_die(f"{queue}-src", f"{queue}-dead", "a", "b")
    daemon.until_sampled(f"{queue}-src")
    reader.refresh()
    expect(page.locator("#totals li").last).to_have_text("2died in 15 minutes")


def test_figures_change_by_themselves_without_a_new_page(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    page = reader.open("/", contains=queue)
    page.evaluate("window.marked = true")
    daemon.client.produce(queue, ["a"] * 7)
    reader.refresh()
    expect(page.locator("#queues tbody tr td:nth-child(2)")).to_have_text("7")
    expect(page.locator("#live")).to_have_text("live")
    assert page.evaluate("window.marked") is True


def test_a_fresh_page_leaves_the_focus_where_it_was(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    page = reader.open("/queue", name=queue)
    page.locator("#drain-1").focus()
    daemon.client.produce(queue, ["a"] * 5)
    reader.refresh()
    expect(page.locator("#figures")).to_contain_text("5")
    expect(page.locator("#drain-1")).to_be_focused()


def test_a_hidden_page_asks_for_nothing(reader: Reader, queue: str) -> None:
    page = reader.open("/queue", name=queue)
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    before = len(reader.requests)
    page.evaluate("refresh()")
    assert len(reader.requests) == before


def test_each_page_shows_the_command_that_does_the_same(reader: Reader, queue: str) -> None:
    for path in ("/", "/jobs", "/daemon", *PAGES):
        page = reader.open(path, **({"name": queue} if path in PAGES else {}))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        lines = page.locator(".command code").all_inner_texts()
        assert lines and all(line.startswith("querator ") for line in lines), path


def test_no_page_is_wider_than_a_narrow_screen(browser: Browser, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, [produce_item("x" * 500, kind="k" * 200, reference="r" * 300)])
    reader = Reader(browser, daemon.address, viewport={"width": 400, "height": 800})
    for path in ("/", "/jobs", "/daemon", *PAGES):
        page = reader.open(path, **({"name": queue} if path in PAGES else {}))
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
    reader.close()


def test_no_label_of_a_chart_is_cut_off_on_a_narrow_screen(browser: Browser, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["x"])
    daemon.client.advance_clock("33h")
    daemon.until_sampled(queue)
    reader = Reader(browser, daemon.address, viewport={"width": 400, "height": 800})
    page = reader.open("/queue", name=queue)
    expect(page.locator("figure svg text.tick").first).to_be_visible()
    outside = page.evaluate(
        """[...document.querySelectorAll("figure svg text.tick")].filter((tick) => {
            const label = tick.getBoundingClientRect(), chart = tick.ownerSVGElement.getBoundingClientRect();
            return label.left < chart.left || label.right > chart.right + 1 || label.top < chart.top - 1;
        }).map((tick) => tick.textContent)"""
    )
    assert outside == []
    reader.close()


def test_the_text_of_charts_is_readable_on_a_narrow_screen(browser: Browser, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.let_die(f"{queue}-src", f"{queue}-dead", produce_item("x", kind="w" * 40), produce_item("x", kind="bill"))
    reader = Reader(browser, daemon.address, viewport={"width": 400, "height": 800})
    query = "select kind, count(*) as n from items group by kind"
    for path, texts in (("/dead", "figure svg text"), ("/sql", ".bars span")):
        page = reader.open(path, name=f"{queue}-dead", query=query)
        expect(page.locator(texts).first).to_be_visible()
        heights = page.evaluate(
            """(texts) => [...document.querySelectorAll(texts)].map((one) => one.getBoundingClientRect().height)""",
            texts,
        )
        assert min(heights) >= 11, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
    reader.close()


def test_charts_without_values_say_when_the_first_one_comes(reader: Reader, queue: str) -> None:
    reader.open("/queue", name=queue, last="24h")
    reader.sees("There are no values yet. These charts get a value every 5m.")


def test_dark_and_light_follow_the_system(browser: Browser, daemon: ConsoleDaemon) -> None:
    colours = []
    for scheme in ("light", "dark"):
        reader = Reader(browser, daemon.address, color_scheme=scheme)
        colours.append(reader.open().evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        reader.close()
    assert colours == ["rgb(246, 247, 249)", "rgb(16, 20, 26)"]


def test_charts_tell_their_values_under_the_pointer_and_to_the_keyboard(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    for count in (3, 3):
        daemon.client.produce(queue, ["a"] * count)
        daemon.until_sampled(queue)
    page = reader.open("/queue", name=queue)
    chart = page.locator("figure.chart").first
    expect(chart.locator(".title")).to_have_text("Depth")
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator("[data-series='0']")).to_have_text("6")
    page.keyboard.press("ArrowLeft")
    expect(chart.locator("[data-series='0']")).to_have_text("3")
    box = chart.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 20)
    expect(chart.locator("[data-series='0']")).to_have_text("6")
    for window in ("a day", "a week"):
        reader.press(window)
        expect(page.locator("figure.chart")).to_have_count(4)


def test_times_are_told_in_the_readers_time_zone(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    page = reader.open("/settings", name=queue)
    time = page.locator("dd time").first
    told = page.evaluate(
        "at => new Date(at).toLocaleTimeString('en-GB', { timeZone: 'Europe/Berlin' })", time.get_attribute("datetime")
    )
    expect(time).to_contain_text(told)


def test_items_are_listed_by_state_and_condition_and_page_by_page(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    daemon.client.produce(
        queue, [produce_item(f'{{"n": {n}}}', kind="even" if n % 2 == 0 else "odd") for n in range(120)]
    )
    daemon.client.lease(queue, 5, client_id="worker-7")
    page = reader.open("/items", name=queue)
    reader.sees(f"querator items list {queue} --where")  # without a condition it lists scheduled items too
    seen = set(page.locator("td.id").all_inner_texts())
    assert len(seen) == 50
    reader.press("Next page")
    seen |= set(page.locator("td.id").all_inner_texts())
    reader.press("Next page")
    seen |= set(page.locator("td.id").all_inner_texts())
    assert len(seen) == 120 and page.get_by_role("link", name="Next page").count() == 0
    reader.open("/items", name=queue, state="leased")
    expect(page.locator("tbody tr")).to_have_count(5)
    reader.sees("worker-7")
    reader.open("/items", name=queue)
    page.get_by_label("Condition in SQL").fill("kind = 'odd' and (text->>'n')::int > 100")
    reader.press("Show")
    expect(page.locator("tbody tr")).to_have_count(10)
    reader.sees("querator items list")
    page.get_by_label("Condition in SQL").fill("nonsense =")
    reader.press("Show")
    reader.sees("where is invalid")
    expect(page.get_by_label("Condition in SQL")).to_have_value("nonsense =")
    page.get_by_label("Condition in SQL").fill("kind = 'odd'")
    reader.press("Show")
    expect(page.locator("tbody tr")).to_have_count(50)


def test_an_item_is_shown_by_its_encoding(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    payloads = {'{"a": {"b": [1, 2]}}': "json", "plain words": "text", b"\x00\x01\xffQ": "hex", '{"not json': "text"}
    for payload, kind in payloads.items():
        daemon.client.produce(queue, [produce_item(payload, reference="ref-1", encoding="application/json")])
        (item,) = [
            item for number in (0, 1) for item in daemon.client.list_items(queue, partition=number)
            if item.payload == (payload.encode() if isinstance(payload, str) else payload)
        ]  # fmt: skip
        page = reader.open("/item", name=queue, id=item.id)
        expect(page.locator(".payload")).to_have_class(f"payload {kind}")
    reader.sees("ref-1")
    daemon.client.produce(queue, ['{"a": {"b": [1, 2]}}'])
    expect(page.locator(".payload")).to_contain_text('{"not json')


def test_sql_has_an_address_that_can_be_shared(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, [produce_item("x", kind=kind) for kind in ("a", "a", "b")])
    page = reader.open("/sql", name=queue)
    page.get_by_label("SQL query").fill("select kind, count(*) as n from items group by kind order by n desc")
    reader.press("Run")
    assert page.locator("tbody td").all_inner_texts() == ["a", "2", "b", "1"]
    expect(page.locator(".bars rect").first).to_be_visible()
    reader.sees("querator sql")
    address = page.url
    reader.open()
    page.goto(address)
    expect(page.locator("tbody td").first).to_have_text("a")
    page.get_by_label("SQL query").fill("drop table items")
    reader.press("Run")
    reader.sees("exactly one SELECT")


def test_sql_with_a_time_and_a_number_draws_a_line(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["x"])
    step = "select timestamp '2026-01-01' + to_minutes(5 * n) as time, n * n as square from range(4) as r(n)"
    page = reader.open("/sql", name=queue, query=step)
    chart = page.locator("figure.chart")
    expect(chart.locator(".title")).to_have_text("square by time")
    expect(chart.locator("polyline.line")).to_have_count(1)
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator("[data-series='0']")).to_have_text("9")
    expect(chart.locator(".at")).to_contain_text("01:15")  # the reader's own time zone
    reader.open("/sql", name=queue, query=f"{step} where n <> 2")
    expect(chart.locator("circle.dot")).to_have_count(1)  # a missing step is a gap


def test_a_page_that_does_not_exist_says_so(reader: Reader) -> None:
    reader.open("/nowhere")
    reader.sees("there is no page /nowhere")
    expect(reader.page.locator(".command code")).to_have_text("querator doctor")
    reader.open("/queue", name="no-such-queue")
    reader.sees("queue does not exist")


def test_the_daemon_page_tells_of_storages_warnings_and_who_did_what(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    page = reader.open("/daemon")
    for text in ("memory", "processor time", "per commit (write and fsync)", "Storages", "Recent warnings", "default"):
        reader.sees(text)
    expect(page.locator(".note")).to_have_text(re.compile("work|offline|out of service|partition"))
    first = page.locator("#audit tbody tr").first
    expect(first).to_contain_text("queues.create")
    expect(first).to_contain_text(queue)
    expect(first).to_contain_text("done")


def test_the_leases_page_names_who_holds_items_and_who_waits(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["a"])
    daemon.client.lease(queue, 1, client_id="holder-1")
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(daemon.connect().lease, queue, 1, client_id=f"waits-{n}") for n in (1, 2)]
        until(lambda: len(daemon.client.queue_info(queue).figures.waiting_clients) == 2, "the clients do not wait")
        page = reader.open("/leases", name=queue)
        expect(page.locator("td.name")).to_have_text("holder-1")
        assert sorted(page.locator("ul.names li").all_inner_texts()) == ["waits-1", "waits-2"]
        reader.open("/queue", name=queue)
        reader.sees("2consumers wait")
        daemon.client.produce(queue, ["b", "c"])
        assert all(wait.result(20).items for wait in waits)


def test_a_page_can_be_read_with_the_keyboard_alone(reader: Reader, queue: str) -> None:
    page = reader.open("/queue", name=queue)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.locator("#pause-0").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Pause partition 0 of '{queue}'")


def test_the_time_of_a_commit_is_not_told_before_there_is_one(browser: Browser, own_daemon: ConsoleDaemon) -> None:
    reader = Reader(browser, own_daemon.address)
    reader.open("/daemon")
    reader.sees("no commit yet")
    own_daemon.client.create_queue("mail")
    own_daemon.client.produce("mail", ["x"])
    reader.refresh()
    reader.sees("per commit (write and fsync)")
    reader.close()


def test_a_daemon_that_goes_away_and_comes_back_is_noticed(browser: Browser, own_daemon: ConsoleDaemon) -> None:
    own_daemon.client.create_queue("mail")
    reader = Reader(browser, own_daemon.address)
    page = reader.open("/queue", name="mail")
    own_daemon.stop()
    reader.refresh()
    expect(page.locator("#live")).to_contain_text("no answer since")
    expect(page.locator("#live")).to_have_class("live off")
    own_daemon.start()
    own_daemon.client.produce("mail", ["a"])
    reader.refresh()
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#figures b").first).to_have_text("1")
    reader.close()
