"""Imports of many items: other requests are served in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from querator import limits
from querator.daemon.admin import item_calls
from querator.wire import messages as m
from tests.maintenance.house import House


def test_a_large_import_is_made_in_steps_and_answered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    add = item_calls._import

    def counted(logical: Any, partition: Any, wanted: list[m.StorageItem], *more: Any) -> Any:
        steps.append(len(wanted))
        return add(logical, partition, wanted, *more)

    monkeypatch.setattr(limits, "IMPORT_CHUNK_ITEMS", 3)
    monkeypatch.setattr(item_calls, "_import", counted)
    house = House(tmp_path, ("default",))
    house.create()
    # The fourth item is in the second step, and has the source of the first one.
    sources = ["a", "b", "", "a", "c", "", "d", "b"]
    items = [m.StorageItem(source_id=source, payload=b"%d" % number) for number, source in enumerate(sources)]
    request = m.StorageItemsImportRequest(queue_name="q", items=items)
    answered = house.call("storage/items.import", request).items
    assert steps == [3, 3, 2]
    assert [(one.source_id, one.payload) for one in answered] == [
        (source, b"%d" % number) for number, source in enumerate(sources)
    ]
    assert sorted(house.contents()) == ["0", "1", "2", "4", "5", "6"]
    house.close()
