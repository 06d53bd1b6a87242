"""What the bulk endpoints say besides Arrow: requests and answers in JSON, and the parameters of a write.

    POST /v1/bulk/items.plan       PlanRequest → PlanResponse
    POST /v1/bulk/items.scan       ScanRequest → an Arrow stream of items
    POST /v1/bulk/items.produce?…  an Arrow stream → WriteResponse
    POST /v1/bulk/items.import?…   an Arrow stream → WriteResponse

The parameters of a write stand in its query string: `queue_name`, `request_id` and `request_timeout`.
"""

from __future__ import annotations

from typing import Final

import msgspec

PREFIX: Final = "/v1/bulk/"
STATES: Final = ("ready", "leased", "scheduled", "stored")
"""`stored` is what is not scheduled: ready and leased."""


class ScanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Items of one partition with `after_id` < id <= `upto_id`; either may be empty."""

    queue_name: str
    partition: int
    state: str = "stored"
    columns: list[str] = []
    """Of an item (`wire.arrow.ITEM`); none means all but `text`."""
    where: str = ""
    """A condition in the language of `/v1/sql`, over the columns of one item."""
    after_id: str = ""
    upto_id: str = ""


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for id ranges that cut each partition into about equal parts."""

    queue_name: str
    state: str = "stored"
    splits: int = 1
    partitions: list[int] = []
    """None means all."""
    where: str = ""
    """Only checked, so that a scan with a wrong condition fails before it begins."""


class PlannedPartition(msgspec.Struct):
    partition: int
    items: int
    upto_ids: list[str]
    """The ends of the ranges; the last one is the end of the view."""


class PlanResponse(msgspec.Struct):
    partitions: list[PlannedPartition]


class WriteResponse(msgspec.Struct):
    items: int
    """How many the stream had."""
    added: int
    """How many of them were not in the queue already, from a request with the same id or from the same source."""
    chunks: int
