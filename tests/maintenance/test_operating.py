"""Pause, resume, drain, offline and reload of a queue that is in use."""

from __future__ import annotations

import logging

import duckdb
import pytest

from querator import ids, limits
from querator.daemon.engine.disks import Disk
from querator.daemon.store.base import StorageError
from querator.daemon.store.journal.head import Head
from querator.errors import Conflict, InvalidRequest, NotFound, RequestFailed, RetryRequest
from querator.wire import messages as m
from tests.maintenance.house import OPERATOR, SECOND, House


class TestPause:
    def test_produces_and_leases_wait_and_go_on_in_arrival_order(self, house: House):
        house.create()
        house.ask("pause")
        produces = [house.begin_produce(f"{n}") for n in range(5)]
        leases = [house.begin_lease(2, client=f"c{n}") for n in range(3)]
        house.until(lambda: house.logical().waiting_requests() == {"produce": 5, "lease": 3, "complete": 0})
        stats = house.stats()
        assert (stats.produce_waiting, stats.lease_waiting) == (5, 3)
        house.ask("resume")
        assert all(produce.result(5) is None for produce in produces)
        assert [[one.item.payload for one in lease.result(5).leases] for lease in leases] == [
            [b"0", b"3"],
            [b"1", b"4"],
            [b"2"],
        ]

    def test_leases_can_be_completed_meanwhile(self, house: House):
        house.create()
        house.produce("a")
        (item,) = house.lease()
        house.ask("pause")
        assert house.complete(item.id).result(5) is None
        assert house.statuses()[0].total == 0

    def test_ends_by_itself_also_after_a_restart(self, house: House):
        house.create()
        house.ask("pause", for_="15m")
        status = house.statuses()[0]
        assert (status.state, status.resume_at) == ("paused", house.clock.now_us() + 900_000_000)
        house.restart()
        assert house.states() == ["paused"]
        waiting = house.begin_produce("a")
        house.advance("15m")
        assert house.states() == ["paused"]
        house.advance("1ms")
        assert waiting.result(5) is None
        assert (house.states(), house.statuses()[0].resume_at) == (["available"], None)
        house.restart()
        assert house.states() == ["available"]

    def test_a_new_time_replaces_the_old_one_and_none_keeps_it(self, house: House):
        house.create()
        house.ask("pause", for_="15m")
        house.ask("pause", for_="1h")
        house.ask("pause")
        house.advance("30m")
        assert house.states() == ["paused"]
        house.ask("drain")
        house.advance("2h")
        assert house.states() == ["draining"]

    @pytest.mark.parametrize("text", ["soon", "-1s", "0s"])
    def test_a_time_that_makes_no_sense_is_refused(self, house: House, text):
        house.create()
        assert house.refused("pause", for_=text).message.startswith("for is invalid; ")
        assert house.states() == ["available"]


class TestOthersGoOn:
    def test_items_go_to_the_partitions_that_take_them(self, house: House):
        house.create(partitions=3)
        house.ask("pause", 0)
        house.ask("drain", 1)
        for n in range(4):
            house.produce(f"{n}")
        assert [status.total for status in house.statuses()] == [0, 0, 4]

    def test_states_survive_a_restart(self, house: House):
        house.create(partitions=4)
        house.ask("pause", 0)
        house.ask("drain", 1)
        house.ask("offline", 2)
        house.restart()
        assert house.states() == ["paused", "draining", "unavailable", "available"]

    def test_all_change_or_none(self, house: House):
        house.create(partitions=3)
        house.ask("offline", 2)
        error = house.refused("pause", 0, 1, 2)
        assert error.message == "cannot pause partition; partition '2' is unavailable, reload it to bring it back"
        assert house.states() == ["available", "available", "unavailable"]
        assert isinstance(house.refused("pause", 0, 7), InvalidRequest)
        assert house.states() == ["available", "available", "unavailable"]

    def test_taking_the_last_one_away_is_allowed_and_told(self, house: House):
        house.create(partitions=2)
        assert house.ask("pause", 0).message == ""
        assert "takes or gives items" in house.ask("pause", 1).message
        house.ask("resume")
        assert "takes new items" in house.ask("drain").message

    def test_names_that_do_not_exist(self, house: House):
        house.create()
        assert isinstance(house.refused("pause", queue="nope"), NotFound)
        assert house.refused("resume", -1).message == "partition is invalid; '-1' is not a valid partition"


class TestDrain:
    def test_says_when_it_is_done(self, house: House):
        house.create(partitions=2)
        house.ask("pause", 1)
        house.produce("a", "b")
        house.ask("resume", 1)
        house.ask("drain", 0)
        assert not house.statuses()[0].drained
        items = house.lease(2)
        assert not house.statuses()[0].drained
        house.complete(*(item.id for item in items)).result(5)
        status = house.statuses()[0]
        assert (status.state, status.drained) == ("draining", True)
        assert not house.statuses()[1].drained

    def test_does_not_say_so_of_a_file_that_nobody_has_read(self, house: House):
        house.create()
        house.produce("a")
        house.ask("drain")
        path = house.file()
        house.run(house.service.stop())
        path.rename(path.with_suffix(".away"))
        house.start()
        status = house.statuses()[0]
        assert (status.state, status.requested_state, status.drained) == ("error", "draining", False)
        path.with_suffix(".away").rename(path)
        house.until(lambda: house.states() == ["draining"])
        assert (house.statuses()[0].total, house.statuses()[0].drained) == (1, False)

    def test_a_retry_goes_elsewhere(self, house: House):
        house.create(partitions=2)
        house.ask("pause", 1)
        house.produce("a")
        house.ask("resume", 1)
        house.ask("drain", 0)
        (item,) = house.lease()
        retry = m.QueueRetryRequest(queue_name="q", partition=0, items=[m.QueueRetryItem(id=item.id)])
        house.call("queue.retry", retry)
        assert [status.total for status in house.statuses()] == [0, 1]
        assert house.statuses()[0].drained


class TestOffline:
    def test_the_file_belongs_to_others(self, house: House):
        house.create(partitions=2)
        house.ask("pause", 1)
        house.produce("a", "b", "c")
        (item,) = house.lease()
        house.ask("resume", 1)
        house.ask("offline", 0)
        assert house.states() == ["unavailable", "available"]
        assert isinstance(house.complete(item.id).exception(5), RetryRequest)
        request = m.StorageItemsListRequest(queue_name="q", partition=0)
        assert isinstance(house.refusal("storage/items.list", request), RetryRequest)
        # The answer still has the last known counts.
        assert (house.statuses()[0].total, house.statuses()[0].leased) == (3, 1)
        with duckdb.connect(str(house.file(0))) as file:
            assert file.execute("select count(*) from items").fetchall() == [(3,)]
            file.execute("delete from items where payload = 'b'::blob")
        house.ask("reload", 0)
        assert house.states() == ["available", "available"]
        assert house.statuses()[0].total == 2
        assert house.complete(item.id).result(5) is None
        assert house.contents() == ["c"]

    def test_nothing_but_a_reload_brings_it_back(self, house: House):
        house.create()
        house.ask("offline")
        assert house.ask("offline").code == 200
        for what in ("pause", "resume", "drain"):
            assert "reload it to bring it back" in house.refused(what).message
        house.ask("reload")
        house.produce("a")

    def test_while_the_partition_is_in_error(self, house: House):
        house.create(partitions=2)
        house.ask("offline", 0)
        path = house.file(0)
        content = path.read_bytes()
        path.write_bytes(b"this is no database" * 1000)
        error = house.refused("reload", 0)
        assert isinstance(error, RequestFailed) and error.message.startswith("reload failed; partition '0': ")
        status = house.statuses()[0]
        assert (status.state, status.requested_state) == ("error", "available") and status.reason and status.since
        house.ask("offline", 0)
        assert house.states()[0] == "unavailable"
        path.write_bytes(content)
        house.ask("reload", 0)
        assert house.states() == ["available", "available"]

    def test_the_last_counts_are_told_also_after_a_restart(self, house: House):
        house.create(partitions=2)
        house.produce("a", "b")
        house.produce("c", at=house.clock.now_us() + 60 * SECOND)
        house.lease()
        house.ask("offline")
        before = [(s.total, s.leased, s.scheduled) for s in house.statuses()]
        assert before == [(2, 1, 0), (0, 0, 1)]
        house.restart()
        assert [(s.total, s.leased, s.scheduled) for s in house.statuses()] == before
        house.ask("reload")
        assert [(s.total, s.leased, s.scheduled) for s in house.statuses()] == before

    def test_request_ids_are_remembered_also_after_a_restart(self, house: House):
        house.create(partitions=2)
        item = m.QueueProduceItem(utf8="a")
        request = m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=[item], request_id="once")
        house.call("queue.produce", request)
        for _ in range(2):
            house.ask("offline", 0)
            house.restart()
            house.call("queue.produce", request)
            assert [s.total for s in house.statuses()] == [1, 0]
            house.ask("reload", 0)
        assert [s.total for s in house.statuses()] == [1, 0]

    @pytest.mark.parametrize("restarts", [False, True])
    def test_request_ids_that_are_no_longer_in_memory_are_found_in_the_files(self, house: House, monkeypatch, restarts):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 0)
        house.create(partitions=2)
        item = m.QueueProduceItem(utf8="a")
        requests = [
            m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=[item], request_id=f"{n}")
            for n in range(6)
        ]
        for _ in range(3):
            for request in requests:
                house.call("queue.produce", request)
            assert [s.total for s in house.statuses()] == [3, 3]
            if restarts:
                house.restart()
        house.ask("offline", 0)
        for request in requests:
            house.call("queue.produce", request)
        assert [s.total for s in house.statuses()] == [3, 3]

    def test_request_ids_that_cannot_be_read_make_repetitions_wait(self, house: House):
        """The daemon cannot know which requests a partition accepted if its file is missing after a restart."""
        house.create(partitions=2)
        item = m.QueueProduceItem(utf8="a")
        request = m.QueueProduceRequest(queue_name="q", request_timeout="50ms", items=[item], request_id="once")
        house.call("queue.produce", request)
        file = house.file(0)
        away = file.with_suffix(".away")
        house.run(house.service.stop())
        file.rename(away)
        house.start()
        for _ in range(2):
            error = house.refusal("queue.produce", request)
            assert error.code == 454 and "partition '0' cannot be read" in error.message
            house.ask("offline", 0)  # the file is still missing, so the catalog does not get the request ids either
            house.restart()
        away.rename(file)
        house.ask("reload", 0)
        house.call("queue.produce", request)
        assert [s.total for s in house.statuses()] == [1, 0]

    def test_a_partition_in_error_is_not_drained(self, house: House):
        house.create(partitions=2)
        house.produce("a")
        house.ask("drain", 0)
        path = house.file(0)
        house.run(house.service.stop())
        path.rename(path.with_suffix(".away"))
        house.start()
        assert (house.statuses()[0].state, house.statuses()[0].drained) == ("error", False)
        path.with_suffix(".away").rename(path)

    def test_rows_that_were_added_by_hand_are_items(self, house: House):
        house.create()
        house.produce("a")
        house.ask("offline")
        with duckdb.connect(str(house.file())) as file:
            file.execute(
                "insert into items (seq, created_at, expire_deadline, payload)"
                " select max(seq) + 10, now()::timestamp, '2100-01-01'::timestamp, 'by hand'::blob from items"
            )
        house.ask("reload")
        house.produce("b")
        assert [item.bytes_ for item in house.lease(5)] == [b"a", b"by hand", b"b"]

    def test_a_copy_that_was_put_back_is_what_there_is(self, house: House):
        house.create(partitions=2)
        for n in range(4):
            house.produce(f"{n}")
        house.ask("offline", 0)
        path = house.file(0)
        kept = path.read_bytes()
        house.ask("reload", 0)
        for _ in range(3):
            house.produce("later")
            house.ask("offline", 0)
            path.write_bytes(kept)
            house.ask("reload", 0)
            assert house.statuses()[0].total == 2
            house.produce("and later")
        house.restart()
        assert sum(text.isdigit() for text in house.contents()) == 4
        assert house.states() == ["available"] * 2


class TestReload:
    def test_leased_items_stay_leased_and_can_be_completed(self, house: House):
        house.create()
        house.produce("a", "b")
        (item,) = house.lease()
        house.ask("reload")
        assert (house.statuses()[0].total, house.statuses()[0].leased) == (2, 1)
        house.complete(item.id).result(5)
        assert [item.bytes_ for item in house.lease(5)] == [b"b"]

    def test_the_path_of_the_original_reloads_everything(self, house: House):
        house.create(partitions=2)
        house.ask("offline")
        house.call("queue.reload", m.QueueReloadRequest(queue_name="q"))
        assert house.states() == ["available", "available"]

    def test_draining_stays_draining(self, house: House):
        house.create(partitions=3)
        house.ask("drain", 0)
        house.ask("pause", 1)
        house.ask("reload")
        assert house.states() == ["draining", "available", "available"]

    def test_keeping_states_changes_none_and_skips_offline_partitions(self, house: House):
        house.create(partitions=4)
        house.produce("a")
        house.ask("pause", 1, for_="15m")
        house.ask("drain", 2)
        house.ask("offline", 3)
        before = house.statuses()
        house.file(3).write_bytes(b"the operator's, for now")
        house.ask("reload", keep_states=True)
        assert house.states() == ["available", "paused", "draining", "unavailable"]
        after = house.statuses()
        assert [(s.requested_state, s.resume_at, s.since) for s in after] == [
            (s.requested_state, s.resume_at, s.since) for s in before
        ]
        house.restart()
        assert house.states() == ["available", "paused", "draining", "unavailable"]

    def test_keeping_states_reads_the_files_again(self, house: House):
        house.create()
        house.ask("pause")
        opened = house.partition().store
        house.ask("reload", 0, keep_states=True)
        assert house.partition().store is not opened and house.states() == ["paused"]

    def test_one_at_a_time(self, house: House):
        house.create(partitions=3)
        first = house.begin("partitions.reload", m.PartitionsReloadRequest(queue_name="q"))
        second = house.refused("reload", 2)
        assert isinstance(second, Conflict) and second.message.startswith("reload is already running; ")
        assert first.result(5).code == 200
        house.ask("reload")

    def test_the_file_of_another_partition_is_refused(self, house: House):
        house.create(partitions=2)
        house.ask("offline")
        own, other = house.file(0), house.file(1)
        kept = own.read_bytes()
        own.write_bytes(other.read_bytes())
        error = house.refused("reload")
        assert "is the file of another partition" in error.message
        assert house.states() == ["error", "available"]
        own.write_bytes(kept)
        house.ask("reload", 0)
        assert house.states() == ["available", "available"]

    def test_a_missing_file_is_not_made_up(self, house: House):
        house.create()
        house.produce("a")
        house.ask("offline")
        path = house.file()
        path.rename(path.with_suffix(".away"))
        assert "is missing" in house.refused("reload").message
        path.with_suffix(".away").rename(path)
        house.ask("reload")
        assert house.contents() == ["a"]

    def test_a_partition_in_error_recovers_by_itself(self, house: House):
        house.create(partitions=2)
        house.ask("drain", 0)
        house.ask("offline", 0)
        path = house.file()
        path.rename(path.with_suffix(".away"))
        house.refused("reload", 0)
        path.with_suffix(".away").rename(path)
        house.until(lambda: house.partition().state != "error")
        assert house.states() == ["available", "available"]


class TestError:
    def test_one_partition_fails_and_the_others_go_on(self, house: House):
        house.create(partitions=2)
        for n in range(4):
            house.produce(f"{n}")
        items = house.lease(2, client="a") + house.lease(2, client="b")
        held = {house.logical().files.by_prefix[ids.decode(item.id).prefix].number: item.id for item in items}
        bad = house.partition(0).placement.uuid
        storage = house.registry.storages["default"]
        write, broken = storage.write, [True]

        def fail(taken, on_loop=False):
            if broken[0] and any(staged.of.uuid == bad for staged in taken):
                for staged in taken:
                    staged.of.drop_staged(staged)
                raise StorageError("a disk has died", [bad])
            write(taken)

        storage.write = fail
        produced = [house.begin_produce(f"new {n}") for n in range(4)]
        assert all(produce.result(5) is None for produce in produced)
        house.until(lambda: bool(house.partition(0).health.error))
        status, other = house.statuses()
        assert (status.state, status.requested_state, status.reason) == ("error", "available", "a disk has died")
        assert status.since and other.state == "available"
        assert isinstance(house.complete(held[0]).exception(5), RetryRequest)
        assert house.complete(held[1]).result(5) is None
        assert "it recovers when its storage does" in house.refused("pause", 0).message
        broken[0] = False
        house.until(lambda: house.partition(0).store is not None)
        assert house.states() == ["available"] * 2
        assert house.complete(held[0]).result(5) is None

    def test_a_file_that_is_gone_when_it_is_to_catch_up_is_an_error_until_it_is_back(self, house: House):
        house.create(partitions=1)
        house.produce("a")
        path = house.directory / "default" / f"{house.partition().placement.uuid}.duckdb"
        path.rename(path.with_suffix(".away"))
        house.until(lambda: house.partition().state == "error")
        path.with_suffix(".away").rename(path)
        house.until(lambda: house.partition().state != "error")
        assert [item.payload for item in house.lease(10)] == [b"a"]

    def test_producers_who_wait_for_room_get_it_though_the_queue_is_never_idle(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ):
        """The bound that makes producers wait may be smaller than the bound that starts an apply."""
        monkeypatch.setattr(limits, "APPLY_IDLE_ROUNDS", 1_000_000)
        turns, keeping = house.registry.turns, house.registry.upkeep
        keeping._unapplied_bytes_max = 1_000
        house.create(partitions=1)
        house.produce("x" * 2_000)

        async def look_after() -> bool:
            keeping.look_after(turns.disks["default"])
            return house.partition().health.congested

        assert house.run(look_after())
        assert house.begin_produce("y").result(5) is None

    def test_files_catch_up_when_memory_holds_much_without_waiting_for_a_round(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(house.registry.upkeep, "_run_round", lambda: None)
        house.registry.upkeep._timer.cancel()
        house.registry.upkeep._unapplied_bytes_max = 1_500_000
        house.create(partitions=1)
        waiting = [house.begin_produce("x" * 3_000) for _ in range(2_000)]
        assert [one.result(30) for one in waiting] == [None] * 2_000
        disk = house.registry.turns.disks["default"]
        # The last bytes may be too few for another look.
        house.until(lambda: disk.held_bytes < 1_500_000 + limits.LOOK_AFTER_BYTES)

    def test_files_catch_up_when_much_is_left_in_the_journal(self, house: House, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(limits, "UNAPPLIED_BYTES_MAX", 1_500_000)
        monkeypatch.setattr(limits, "LEFT_SECONDS_MAX", 0.0)
        monkeypatch.setattr(house.registry.upkeep, "_run_round", lambda: None)
        house.registry.upkeep._timer.cancel()
        house.create(partitions=1)
        waiting = [house.begin_produce("x" * 1_000_000) for _ in range(6)]
        assert [one.result(30) for one in waiting] == [None] * 6
        disk = house.registry.turns.disks["default"]
        house.until(lambda: disk.left_bytes < 1_500_000)

    def test_the_first_items_that_are_left_in_the_journal_are_applied_early_and_later_ones_stay(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ):
        """The first apply measures how fast the files are. Until then, only few items may be left in the journal."""
        monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 3_000_000)
        monkeypatch.setattr(house.registry.upkeep, "_run_round", lambda: None)
        house.registry.upkeep._timer.cancel()
        house.create(partitions=1)
        disk = house.registry.turns.disks["default"]
        house.produce("x" * 1_000_000)
        house.produce("x" * 1_000_000)
        assert not disk.leaves_much
        house.produce("x" * 1_000_000)
        house.until(lambda: not disk.left_bytes and not disk.catching_up)
        for _ in range(5):
            house.produce("x" * 1_000_000)
        assert not disk.catching_up
        assert disk.left_bytes > 4_900_000

    def test_items_that_are_left_in_the_journal_are_leased_in_order(self, house: House):
        house.create(partitions=1)
        store, window = house.partition().store, house.partition().contents.window
        assert store is not None
        window._bytes_max = 300_000
        texts = [f"{n} " + "x" * (100 if n % 5 == 0 else 70_000) for n in range(40)]
        for text in texts:
            house.produce(text)
        assert store.left_bytes > 1_000_000
        assert window.on_disk > 20
        assert [item.payload for text in texts for item in house.lease(1)] == [text.encode() for text in texts]

    def test_what_is_acknowledged_is_noted_though_the_queue_is_never_idle(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ):
        """Without HEAD, damage at the end of the journal would look like an append that was never acknowledged."""
        monkeypatch.setattr(Disk, "begin_round", lambda disk: None)  # no round counts as idle
        house.create(partitions=1)
        journal = house.directory / "default" / "journal"
        for text in ("a", "b"):
            house.produce(text)
            end = house.registry.turns.disks["default"].storage._journal.books.active.bytes
            house.until(lambda end=end: Head(journal / "HEAD", journal.with_name("journal.head")).read().end == end)

    def test_an_empty_file_that_was_read_is_closed_again(self, house: House, monkeypatch: pytest.MonkeyPatch):
        """A backup of ten thousand empty queues must not keep ten thousand files open."""
        monkeypatch.setattr(limits, "FORGET_LOOK_ROUNDS", 10**9)
        house.create(partitions=1)
        store = house.partition().store
        assert store.is_resting
        assert house.job("verify").state == "done"
        assert not store.is_resting
        monkeypatch.setattr(limits, "FORGET_LOOK_ROUNDS", 1)
        house.until(lambda: store.is_resting)

    def test_files_catch_up_one_after_the_other(self, house: House):
        """A read of one partition must not wait until all the others have caught up."""
        house.create(partitions=4)
        for n in range(4):
            house.produce(f"{n}")
        turns = house.registry.turns
        disk = turns.disks["default"]
        at_once: list[int] = []

        async def hurry() -> None:
            house.registry.upkeep.look_after(disk, hurry=True)
            while disk.catching_up:
                at_once.append(turns.threads.busy_partitions())
                await turns.until(lambda: len(disk.due) < 4 - len(at_once) or not disk.catching_up)

        house.run(hurry())
        assert set(at_once) == {1}
        assert disk.storage.unapplied_bytes == 0

    def test_a_defect_behind_an_answer_loses_nothing_of_what_was_answered(self, house: House):
        house.create(partitions=1)
        house.produce("dies")
        (dying,) = house.lease()
        answers: list[object] = []

        def break_off(record: logging.LogRecord) -> bool:
            raise RuntimeError("a defect")

        async def produce_beside_a_death() -> None:
            """One pass answers both requests, and then tells the log of the death."""
            items = [m.QueueProduceItem(utf8="a")]
            produce = m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=items)
            retry = m.QueueRetryRequest(queue_name="q", items=[m.QueueRetryItem(id=dying.id, dead=True)])
            house.service.call("queue.produce", produce, answers.append, OPERATOR)
            house.service.call("queue.retry", retry, answers.append, OPERATOR)

        deaths = logging.getLogger("querator.deaths")
        deaths.addFilter(break_off)
        try:
            house.run(produce_beside_a_death())
            house.until(lambda: len(answers) == 2)
        finally:
            deaths.removeFilter(break_off)
        assert answers == [None, None]
        house.produce("b")
        house.restart()
        assert sorted(item.payload for item in house.lease(10)) == [b"a", b"b"]

    def test_a_storage_that_cannot_be_used_does_not_keep_the_daemon_from_starting(self, house: House):
        house.create(partitions=2)
        house.produce("a")
        house.job("migrate", partition=1, to_storage="other")
        backups = house.directory / "backups"
        house.job("backup", to=str(backups))
        house.run(house.service.stop())
        away = house.directory / "unmounted"
        (house.directory / "other").rename(away)
        (house.directory / "other").write_text("not a directory")
        house.start()
        assert house.states() == ["available", "error"]
        assert "storage 'other' cannot be used: " in house.statuses()[1].reason
        assert "'1' is in error" in house.job_refusal("verify", partitions=[1]).message
        house.produce("b")
        assert house.registry.upkeep.relieve("other", 0) == 0  # bulk writes do not wait for this storage
        house.create("new")
        for refusal in (
            house.job_refusal("migrate", queue="new", partition=0, to_storage="other"),
            house.job_refusal("restore", from_=str(backups)),
        ):
            assert isinstance(refusal, RequestFailed) and "storage 'other' cannot be used: " in refusal.message
        (house.directory / "other").unlink()
        away.rename(house.directory / "other")
        # The disk is mounted again. The daemon notices it without a restart.
        house.until(lambda: house.states() == ["available"] * 2)
        house.ask("pause", 0)
        house.produce("c")
        assert house.job("migrate", queue="new", partition=0, to_storage="other").state == "done"
        house.restart()
        assert sorted(house.contents()) == ["a", "b", "c"]

    def test_a_disk_that_takes_no_new_files_says_so(self, house: House, monkeypatch):
        house.create()

        def full(self: object, uuid: str, queue: str) -> None:
            raise StorageError(f"partition {uuid} cannot be created: No space left on device", [uuid])

        with monkeypatch.context() as patch:
            patch.setattr("querator.daemon.store.duck.storage.DuckStorage.create", full)
            for route in ("queues.update", "queues.create"):
                name = "q" if route == "queues.update" else "other"
                request = m.QueueInfo(queue_name=name, requested_partitions=3, lease_timeout="1m", expire_timeout="24h")
                refusal = house.refusal(route, request)
                assert isinstance(refusal, RequestFailed) and "No space left on device" in refusal.message
        assert house.states() == ["available"]
        house.create("other", partitions=3)


def test_the_list_of_all_queues(house: House):
    house.create("b", partitions=2)
    house.create("a")
    listed = house.call("partitions.list", m.PartitionsListRequest()).items
    assert [(status.queue_name, status.partition) for status in listed] == [("a", 0), ("b", 0), ("b", 1)]
    assert all(
        status.storage == "default" and status.bytes_ > 0 and status.file.endswith(".duckdb") for status in listed
    )
