"""Messages and their JSON, protobuf and Arrow codecs. The daemon and its clients both use them.

`messages`, `access_messages` and `bulk_messages` are the vocabulary, with `leased` for the answer to a lease. `content`
chooses a codec for a request, and `json` and `arrow` are for callers that need one encoding only. Others import from
these modules only. This package imports none of them itself, so that a command pays only for the codecs it uses.
Nothing here knows HTTP or queues.
"""

__all__ = [
    "access_messages",
    "arrow",
    "bulk_messages",
    "content",
    "json",
    "leased",
    "messages",
]  # modules, imported on use
