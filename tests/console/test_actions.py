"""Each button of the console first shows what it will do, and does it after a confirmation."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from querator.client import produce_item
from tests.console.browsing import ConsoleDaemon, Reader


def confirm(reader: Reader) -> None:
    reader.page.locator("#confirm").click()
    reader.page.wait_for_load_state()
    reader.check()


def press(reader: Reader, button: str) -> None:
    """A button of a partition, such as `pause-0`."""
    reader.page.locator(f"#{button}").click()
    expect(reader.page.locator("#confirm")).to_be_visible()


def test_partitions_are_paused_for_a_while_resumed_and_drained(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    page = reader.open("/queue", name=queue)
    press(reader, "pause-0")
    reader.sees("No items are produced to it")
    assert daemon.states(queue) == ["available", "available"]
    page.get_by_label("Resume by itself after").fill("1h")
    confirm(reader)
    reader.sees(f"Partition 0 of '{queue}': paused.")
    assert daemon.states(queue) == ["paused", "available"]
    assert daemon.client.list_partitions(queue)[0].resume_at is not None
    press(reader, "resume-0")
    confirm(reader)
    assert daemon.states(queue) == ["available", "available"]
    press(reader, "drain-1")
    reader.sees("If there are none, producers wait.")
    confirm(reader)
    assert daemon.states(queue) == ["available", "draining"]
    press(reader, "pause-all")
    confirm(reader)
    reader.sees("no partition of queue")
    assert daemon.states(queue) == ["paused", "paused"]


def test_a_partition_in_error_claims_no_counts_and_offers_only_what_can_help(
    browser: Browser, own_daemon: ConsoleDaemon
) -> None:
    own_daemon.client.create_queue("q", partitions=2)
    own_daemon.client.produce("q", ["a"])
    (storage,) = own_daemon.client.list_storages()
    file = Path(storage.directory) / own_daemon.client.list_partitions("q")[0].file
    own_daemon.stop()
    whole = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    own_daemon.start()
    reader = Reader(browser, own_daemon.address)
    page = reader.open("/queue", name="q")
    row = page.locator("#partitions tr.troubled")
    expect(row.locator("[data-label=ready]")).to_have_text("?")
    assert row.locator("a.button").all_inner_texts() == ["Reload", "Offline"]
    reader.open("/act/migrate", name="q", partition=0)
    reader.sees("partition 0 of 'q' is in error and cannot be migrated")
    reader.open()
    banner = page.locator("#health .note.bad")
    expect(banner).to_contain_text("1 queue has partitions that do not work. The others go on.")
    expect(banner.locator("details")).to_contain_text("q/0: ")
    expect(banner.get_by_text("q/0: ")).to_be_hidden()  # the daemon's own words, on demand
    reader.open("/queue", name="q")
    press(reader, "reload-0")
    reader.sees("it is not known what it holds")
    confirm(reader)
    reader.sees("reload failed")
    file.write_bytes(whole)
    confirm(reader)
    assert own_daemon.states("q") == ["available", "available"]
    expect(page.locator("#partitions [data-label=ready]").first).to_have_text(re.compile("[01]"))
    reader.close()


def test_a_partition_is_taken_offline_and_read_again(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["a"])
    reader.open("/queue", name=queue)
    press(reader, "offline-0")
    confirm(reader)
    assert daemon.states(queue)[0] == "unavailable"
    press(reader, "reload-0")
    confirm(reader)
    assert daemon.states(queue) == ["available", "available"]
    assert daemon.client.queue_info(queue).figures.ready == 1


def test_a_partition_is_compacted_and_migrated_as_jobs(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["a"] * 20)
    reader.open("/queue", name=queue)
    press(reader, "compact-0")
    confirm(reader)
    daemon.until_no_job_runs()
    reader.press("Watch its progress")
    row = reader.page.locator("#jobs tbody tr", has_text=queue)
    expect(row).to_contain_text("1 of 1 partitions")
    reader.open("/queue", name=queue)
    press(reader, "verify-all")
    reader.sees("Nothing changes")
    confirm(reader)
    daemon.until_no_job_runs()
    reader.open("/queue", name=queue)
    press(reader, "migrate-0")
    reader.page.get_by_label("Where to").select_option("partition 1")
    confirm(reader)
    daemon.until_no_job_runs()
    assert [one.total for one in daemon.client.list_partitions(queue)] == [0, 20]


def test_what_is_refused_is_said_and_can_be_corrected(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    page = reader.open("/queue", name=queue)
    press(reader, "pause-0")
    page.get_by_label("Resume by itself after").fill("soon")
    confirm(reader)
    expect(page.get_by_role("alert")).to_contain_text("for is invalid")
    assert daemon.states(queue) == ["available", "available"]
    page.get_by_label("Resume by itself after").fill("")
    confirm(reader)
    assert daemon.states(queue) == ["paused", "available"]


def test_items_are_handed_back_and_deleted(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["a", "b"])
    (leased,) = daemon.client.lease(queue, 1, client_id="stuck").items
    reader.open("/item", name=queue, id=leased.id)
    reader.sees("stuck")
    reader.press("Hand back")
    reader.sees(f"querator queue retry {queue} {leased.id} --unused")
    confirm(reader)
    stored = [item for number in (0, 1) for item in daemon.client.list_items(queue, partition=number)]
    assert [item.attempts for item in stored] == [0, 0]
    assert daemon.client.queue_info(queue).figures.leased == 0
    reader.page.locator("td.id a").first.click()
    reader.press("Delete")
    reader.sees("gone for good")
    confirm(reader)
    assert daemon.client.queue_info(queue).figures.ready == 1


def test_all_items_of_a_client_are_taken_back(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.client.produce(queue, ["a"] * 4)
    daemon.client.lease(queue, 4, client_id="worker 7")
    reader.open("/leases", name=queue)
    reader.sees("worker 7")
    reader.press("Take back")
    confirm(reader)
    assert daemon.client.queue_info(queue).figures.leased == 0
    reader.sees("4 items are ready again, taken back from 'worker 7'.")


def test_groups_of_dead_items_are_counted_redriven_and_deleted(
    reader: Reader, daemon: ConsoleDaemon, queue: str
) -> None:
    source, dead = f"{queue}-src", f"{queue}-dead"
    daemon.let_die(source, dead, *[produce_item("x", kind="mail") for _ in range(3)], reason="550 no\nsuch mailbox")
    daemon.let_die(source, dead, *[produce_item("y", kind="bill") for _ in range(2)], reason="it's declined")
    page = reader.open("/dead", name=source)  # a queue's dead letters are in its dead queue
    assert f"name={dead}" in page.url
    reader.sees("5 items in 2 groups")
    reader.sees(f"->>'queue_name' = '{source}'".replace("'", "'\"'\"'"))  # the command takes no other queue's items
    expect(page.locator("figure.chart rect.bar")).to_have_count(2)
    page.locator("tr", has_text="bill").get_by_role("checkbox").check()
    reader.press("Redrive the chosen groups …")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Redrive 2 items of '{dead}'")
    reader.sees("querator items redrive")
    confirm(reader)
    daemon.until_no_job_runs()
    assert daemon.client.queue_info(source).figures.ready == 2
    reader.open("/dead", name=dead)
    reader.sees("3 items in 1 group")
    page.locator("tr", has_text="mail").get_by_role("checkbox").check()
    reader.press("Delete the chosen groups …")
    confirm(reader)
    daemon.until_no_job_runs()
    assert daemon.client.queue_info(dead).figures.ready == 0
    reader.open("/dead", name=dead)
    reader.sees("Nothing is dead here")


def test_dead_items_are_grouped_by_what_is_chosen(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    source, dead = f"{queue}-src", f"{queue}-dead"
    daemon.let_die(source, dead, *[produce_item("x", kind=f"k{n}", reference="r") for n in range(3)])
    page = reader.open("/dead", name=dead)
    reader.sees("3 items in 3 groups")
    page.get_by_role("checkbox", name="Kind").uncheck()
    page.get_by_role("checkbox", name="Reference").check()
    reader.press("Show")
    reader.sees("3 items in 1 group")
    assert page.locator("th").all_inner_texts()[1:5] == ["Reason", "Last failure", "Origin", "Reference"]


def test_one_dead_item_is_redriven_from_its_page(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    source, dead = f"{queue}-src", f"{queue}-dead"
    daemon.let_die(source, dead, "x", "y")
    (item, _) = daemon.client.list_items(dead)
    reader.open("/item", name=dead, id=item.id)
    reader.sees("no such address")
    reader.press("Redrive")
    confirm(reader)
    daemon.until_no_job_runs()
    assert [one.payload for one in daemon.client.list_items(source)] == [item.payload]


def test_choosing_no_group_says_so(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    daemon.let_die(f"{queue}-src", f"{queue}-dead", "x")
    reader.open("/dead", name=f"{queue}-dead")
    reader.press("Redrive the chosen groups …")
    reader.sees("Choose at least one group first.")
    expect(reader.page.get_by_role("heading", level=1)).to_have_text(f"Dead letters of {queue}-dead")


def test_a_redrive_does_not_wait_for_an_offline_partition(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    source, dead = f"{queue}-src", f"{queue}-dead"
    daemon.client.create_queue(dead)
    daemon.client.create_queue(source, partitions=2, dead_queue=dead)
    daemon.let_die(source, dead, "a", "b", "c")
    daemon.client.offline_partitions(source, [1])
    page = reader.open("/dead", name=dead)
    page.get_by_label("Choose all groups").check()
    reader.press("Redrive the chosen groups …")
    confirm(reader)
    daemon.until_no_job_runs()
    assert [job.state for job in daemon.client.list_jobs() if job.queue_name == dead] == ["done"]
    assert [one.total for one in daemon.client.list_partitions(source)] == [3, 0]
    daemon.client.reload_partitions(source)
    assert sorted(str(one.payload) for one in daemon.client.list_items(source)) == sorted(
        str(one.payload) for one in daemon.client.lease(source, 10).items
    )


def test_a_job_shows_its_progress_and_is_cancelled(reader: Reader, daemon: ConsoleDaemon, queue: str) -> None:
    source, dead = f"{queue}-src", f"{queue}-dead"
    daemon.let_die(source, dead, "x", "y")
    daemon.client.pause_partitions(source)  # so that the redrive waits
    job = daemon.client.redrive_items(dead, expected=2)
    page = reader.open("/jobs")
    row = page.locator("#jobs tbody tr", has_text=job)
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("0 of 2 items")
    page.locator(f"#cancel-{job}").click()
    reader.sees("finishes or undoes the step")
    confirm(reader)
    expect(page.locator("#jobs tbody tr", has_text=job)).to_contain_text(re.compile("cancelled"))
    assert daemon.client.queue_info(dead).figures.ready == 2


def test_everything_but_charts_works_without_scripts(browser: Browser, daemon: ConsoleDaemon, queue: str) -> None:
    reader = Reader(browser, daemon.address, java_script_enabled=False)
    reader.check = lambda: None  # type: ignore[method-assign]  # without scripts the page cannot be asked
    page = reader.open("/", contains=queue)
    page.get_by_role("link", name=queue, exact=True).click()
    page.locator("#drain-0").click()
    page.locator("#confirm").click()
    expect(page.locator("#remark")).to_contain_text("draining")
    assert daemon.states(queue) == ["draining", "available"]
    assert page.locator("figure.chart svg").count() == 4
    reader.close()
