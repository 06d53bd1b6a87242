"""The JSON requests and answers of the bulk endpoints, and the parameters of a write.

    POST /v1/bulk/items.plan       PlanRequest → PlanResponse
    POST /v1/bulk/items.scan       ScanRequest → an Arrow stream of items
    POST /v1/bulk/items.produce?…  an Arrow stream → WriteResponse
    POST /v1/bulk/items.import?…   an Arrow stream → WriteResponse

The query string of a write has the fields of WriteParameters.
"""

from __future__ import annotations

from typing import Final

import msgspec

PREFIX: Final = "/v1/bulk/"
ARROW_CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
STATES: Final = ("ready", "leased", "scheduled", "stored")
"""`stored` means ready and leased."""


class ScanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for the items of one partition with `after_id` < id <= `upto_id`. Both can be empty."""

    queue_name: str
    """The name of the queue."""
    partition: int
    """The number of the partition."""
    state: str = "stored"
    """`ready`, `leased`, `scheduled`, or `stored`, which is ready and leased."""
    columns: list[str] = []
    """Columns of an item (`wire.arrow.ITEM`). None means all but `text`, the payload as text."""
    where: str = ""
    """Only items that meet this condition, in the SQL of `/v1/sql` over the columns of one item."""
    after_id: str = ""
    """Only items after this id."""
    upto_id: str = ""
    """Only items up to this id."""


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for id ranges that cut each partition into about equal parts."""

    queue_name: str
    state: str = "stored"
    splits: int = 1
    """Into how many parts to cut each partition."""
    partitions: list[int] = []
    """The numbers of the partitions; none means all."""
    where: str = ""
    """A condition for a later scan. It is only checked here, so that a wrong condition fails before the scan begins."""


class PlannedPartition(msgspec.Struct):
    partition: int
    items: int
    """How many items the partition has."""
    upto_ids: list[str]
    """The last ids of the ranges. Items after the last range are not part of the plan."""


class PlanResponse(msgspec.Struct):
    partitions: list[PlannedPartition]
    """The ranges of each partition."""


class WriteParameters(msgspec.Struct):
    queue_name: str
    request_id: str = ""
    """For seven days, a second write with the same id and rows adds only what is missing. Up to 200 bytes."""
    request_timeout: str = ""
    """How long a step may take to become durable, as a duration; 1m if absent."""
    remember_sources: bool = False
    """For imports. The queue remembers each `source_id` for a month and does not import it again, even when the item
    has left the queue."""


class WriteResponse(msgspec.Struct):
    items: int
    """How many items the stream had."""
    added: int
    """How many of them were new: neither from a request with the same id nor from the same source."""
    chunks: int
    """In how many steps they became durable."""
