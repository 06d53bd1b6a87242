"""The daemon's bounds that a client or an operator can notice, and bounds that tests change.

A name ends in its unit: `_us` are microseconds, `_ns` nanoseconds, and all sizes are bytes. Each comment says what
happens when the bound is reached. A constant that only shapes the work inside one module stays in that module; if its
name ends in `_MAX`, `_MIN` or `_DEFAULT`, it is private there.

The daemon reads a bound as `limits.NAME` if a test changes it; tests change it with `monkeypatch.setattr(limits, …)`.
Bounds of the hot path that no test changes are Final, so that compiled code has the number in place of the name.
"""

from __future__ import annotations

from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
US_PER_SECOND: Final = 1_000_000

# Requests (wire contract, sections 1.1 and 2). A request beyond one of these bounds is refused with 400.
BATCH_ITEMS_MAX: Final = 1_000
QUEUE_NAME_BYTES_MAX: Final = 512
NAMESPACE_BYTES_MAX: Final = 256
REFERENCE_BYTES_MAX: Final = 2_000
REASON_BYTES_MAX: Final = 2_000
TIMEOUT_TEXT_BYTES_MAX: Final = 15
REQUEST_ID_BYTES_MAX: Final = 256
MAX_ATTEMPTS_MAX: Final = 65_536
PARTITIONS_MAX: Final = 1_000
"""Partitions per queue. Each is an open DuckDB file: a thousand take about 400 MB of memory."""
LIST_LIMIT_DEFAULT = 1_000
"""A list that asks for no limit returns at most this many entries."""
LIST_LIMIT_MAX: Final = 65_536
OVERVIEW_LIMIT_DEFAULT = 50
"""`queues.overview` without a limit returns at most this many queues."""
OVERVIEW_LIMIT_MAX = 500
WAITING_CLIENTS_LISTED_MAX = 100
"""`queues.info` names at most this many of the clients that wait for items."""
REQUEST_TIMEOUT_MIN_NS: Final = 10 * NS_PER_MS
REQUEST_TIMEOUT_MAX_NS: Final = 15 * 60 * NS_PER_SECOND

# Bodies. A longer body is refused with 400, and the connection ends.
PRODUCE_BODY_BYTES_MAX = 5_000_000
SMALL_BODY_BYTES_MAX = 64_000
BODY_BYTES_MAX = 256_000
UPDATE_BODY_BYTES_MAX = 512_000
IMPORT_BODY_BYTES_MAX = 64_000_000
IMPORT_CHUNK_ITEMS = 10_000
"""A larger import is made in several steps, so that other requests are served in between."""
OVER_LIMIT_DRAIN_BYTES_MAX = 1_000_000
"""The daemon reads this much of a refused body, so that the client sees the answer; then it closes the connection."""

# Stored values.
ATTEMPTS_MAX: Final = (1 << 31) - 1
"""The number of attempts of an item stays at this value once it is reached."""
SEQUENCE_MAX = (1 << 62) - 1
"""A restored file with a higher sequence is refused. A new sequence is the time in microseconds, or the last plus 1."""
PURPOSE_CHARACTERS_MAX: Final = 256
"""The log shows this many characters of the purpose that a request names, and cuts off the rest."""
CLIENT_ID_CHARACTERS_MAX: Final = 256
"""The history of an item keeps this many characters of a client id and cuts off the rest."""
HISTORY_ATTEMPTS_MAX: Final = 10
HISTORY_REASONS_BYTES_MAX: Final = 8_000
"""An item with more failed attempts, or longer reasons in all, forgets the oldest attempts. The last one is kept."""

# Access.
TOKENS_MAX = 1_000
"""Tokens of one daemon. Creating another one is refused."""
TOKEN_NAME_BYTES_MAX = 64
TOKEN_PATTERNS_MAX = 100
"""Patterns of queue names per token. A token with more is refused."""
GRANTED_NAMES_MAX = 1_000
"""Queue names that a caller remembers as allowed, per right. When there are more, the caller forgets all of them."""
TOKENS_CHECKED_EVERY_SECONDS = 1.0
"""The time between two searches for expired tokens. The daemon notices a clock that jumps ahead after this time."""
TOKENS_STAMPED_EVERY_US = 60 * US_PER_SECOND
"""The time of a token's last use is at most this old. It is saved this often, if it has changed."""
FAILED_ATTEMPTS_MAX = 60
FAILED_ATTEMPTS_SECONDS = 60.0
"""If an address fails more often than this within this time, the answer to each further failure is delayed."""
FAILED_ATTEMPT_WAIT_SECONDS = 1.0
FAILED_ATTEMPTS_WAITING_MAX = 10
"""Delayed answers to one address at a time. Further failures end their connection without an answer."""
FAILED_ATTEMPTS_ADDRESSES_MAX = 10_000
"""Addresses whose failures are counted. When there are more, the one that failed longest ago is forgotten."""
AUDIT_FILE_BYTES = 16_000_000
"""An audit log of this size is renamed, and the next line begins a new one."""
AUDIT_DENIALS_EVERY_US = 60 * US_PER_SECOND
AUDIT_DENIALS_PER_SOURCE_MAX = 10
"""Denials of one caller, or of one address without a caller, that are recorded within this time. Further ones are only
counted, and the next line has their number.
"""
AUDIT_DENIALS_MAX = 30
"""The same for all callers together, and for all addresses without a caller together."""
AUDIT_LINES_KEPT_MAX = 1_000
"""Lines that could not be written are kept in memory and tried again. When there are more, the oldest are dropped."""
AUDIT_LIST_MAX = 10_000
"""Lines of the audit log in one answer. A request for more is refused."""

# The Logical loop.
INBOX_REQUESTS_MAX = 4_096
"""Requests that wait for a pass, per queue. Further requests get 454."""
SCHEDULE_AHEAD_MIN_US: Final = 100_000
"""An item whose `enqueue_at` is nearer than this is ready at once."""
LIFECYCLE_ITEMS_PER_PASS_MAX: Final = 1_000
"""Ended leases, and due items, that one pass handles. The next pass handles the rest, after waiting requests."""
LEASE_ENDS_IDS_MIN: Final = 1_024
"""The heap of lease deadlines is rebuilt when it has more ids than this plus twice the number of leased items."""
MOVE_TIMEOUT_NS: Final = 30 * NS_PER_SECOND
"""An item that its dead queue does not take within this time stays in its queue, and the move is repeated later."""
RECOVERY_BACKOFF_MIN_NS: Final = 500 * NS_PER_MS
RECOVERY_BACKOFF_MAX_NS: Final = 30 * NS_PER_SECOND
"""A failed partition is tried again after the first; each failure doubles the wait, up to the second."""

# Waiting items that a partition keeps in memory. The other items stay in its file until the window has room.
READY_WINDOW_ITEMS_MAX = 20_000
READY_WINDOW_BYTES_MAX = 32_000_000
READY_WINDOW_LOW_PERCENT: Final = 75
"""The partition reads more items from its file when no more than this share of the window is left."""
READY_WINDOW_READ_PERCENT: Final = 50
"""One read returns at most this share of the window."""
READY_UNPACK_ITEMS: Final = 500
"""Items that were read in columnar form become objects this many at a time, which takes about 0.15 ms."""
SCHEDULED_WINDOW_ITEMS_MAX: Final = 10_000
SCHEDULED_WINDOW_BYTES_MAX = 32_000_000
ROWS_ITEMS_MIN: Final = 100
"""So many items of any requests stay together when they arrive behind the in-memory window."""
RUN_ITEMS_MIN = 16
"""Items of produces with at least so many stay together, and are leased without an object for each of them."""
HAND_ITEMS_MIN = 16
"""Requests for at least so many items lease them together."""
OLDEST_AMONG_ITEMS_MAX: Final = 1_000
"""The age of the oldest item is computed from the items that are leased next: at most this many per partition."""

# How long the daemon remembers the ids of requests and lost leases. After that, a repeated request is carried out
# again.
LOST_LEASE_KEPT_US: Final = 3_600 * US_PER_SECOND
REQUEST_ID_KEPT_US: Final = 3_600 * US_PER_SECOND
BULK_REQUEST_ID_KEPT_US: Final = 7 * 24 * 3_600 * US_PER_SECOND
MOVE_KEPT_US: Final = 30 * 24 * 3_600 * US_PER_SECOND
"""A move that a crash interrupted must be repeated within this time. Later it would add its items again."""
REQUEST_IDS_NEWEST_MAX = 20_000
"""Request ids per queue that memory keeps as text (some 230 bytes each). Of older ids it keeps eight bytes."""
REQUEST_IDS_FORGOTTEN_MAX: Final = 1_000
"""At most this many expired request ids are dropped at a time; the others are dropped later."""
FINGERPRINTS_MAX = 20_000_000
"""Fingerprints per queue, 8 to 16 bytes each: 5,500 request ids a second for an hour. Beyond that memory drops the
oldest, and every request id is looked up in the partition files until the dropped ones have expired."""
REQUEST_ID_GENERATIONS: Final = 4
"""Fingerprints are kept in about this many groups. A group is dropped when its last request id has expired."""
EXACT_KEYS_CHECKED_EVERY_US: Final = 60 * US_PER_SECOND
REQUEST_IDS_PAGE = 5_000
"""Request ids of a closed file are copied in pages of this size. The loop waits for each page."""

# The journal.
SEGMENT_BYTES_MAX = 32_000_000
"""A segment that is this long is closed, and the next one begins."""
SEGMENT_ALLOCATION_BYTES = 4_000_000
"""A disk without space for a whole segment gets one of this size. Spare files are written in steps of this size."""
SEGMENTS_KEPT_MAX = 8
"""With more segments, the records of the oldest one that are still needed are copied out, and it is removed."""
SEGMENTS_HELD_MAX = 64
"""Segments are kept for the archive up to this number per storage. Beyond it, or on a disk that is nearly full, the
archive starts over from fresh copies of the partition files."""
SEGMENTS_WAITING_MAX = 2
"""With more closed segments, the partitions that the oldest ones wait for are applied at once."""
SPARES_MAX = 3
"""Segment files that are kept to be overwritten. Further ones are deleted."""
SPARES_AT_REST_MAX = 1
"""Spare files that an idle journal keeps."""
SPARE_AFTER_BYTES = 1_000_000
"""A journal prepares a spare file once its segment has this many bytes."""
SPARES_ROOM_BYTES_MIN = 1_000_000_000
"""With less free space on the disk, no spare files are made."""
QUARANTINE_ROOM_BYTES_MIN = 100_000_000
"""Files are copied to the quarantine only if this much of the disk stays free."""
UNAPPLIED_BYTES_MAX = 96_000_000
"""Journal bytes of items that are not in the partition files yet, per storage. When there are more, producers wait."""
APPLY_BYTES = 48_000_000
"""When memory holds this many unapplied bytes, they are applied to the partition files. Smaller bursts that consumers
complete within seconds never meet SQL."""
LEFT_RECORD_BYTES_MIN = 64_000
LEFT_ITEM_BYTES_MIN = 4_096
"""New items of a record of at least the first size, with at least the second size per item, are left in the journal
until they are applied. Memory has only their places."""
LEFT_SECONDS_MAX = 8.0
"""As many bytes are left in the journal as the files take in this time when little else runs. So long may take an
orderly stop, a start after a crash, and a read that needs everything in the file. With more, producers wait. With half
of it, the items are applied to the partition files."""
LEFT_DELTA_BYTES = 24_000_000
"""They are applied in transactions of about this size."""
LARGE_BLOCKS_BYTES_MIN = 8_000_000
"""A file without rows gets larger blocks before so many bytes of them are applied to it."""
LEFT_ROOM_SHARE = 4
"""They never take more than this part of the free space, because the files need as much again."""
UNAPPLIED_READ_ITEMS_MAX: Final = 1_000
"""A read of waiting items that are not applied yet returns at most this many, because it holds up the loop."""
KEY_BYTES: Final = 64
"""The bytes by which a key that an apply must look up, such as that of a deleted item, counts towards the two bounds
above.
"""
APPLY_ROWS_PER_INSERT_MAX = 5_000
APPLY_BYTES_PER_INSERT_MAX = 4_000_000
APPLY_KEYS_PER_DELETE_MAX = 50_000
PARTS_BYTES_PER_INSERT_MAX = 32_000_000
"""An apply with more rows, bytes or keys takes several statements of one transaction."""
FREED_AT_ONCE_MAX: Final = 10_000
"""Entries that a thread frees before it lets other threads run. They take half a millisecond."""
CHECKPOINT_WAL_BYTES = 32_000_000
"""DuckDB's log of a partition file is merged into the file when it has this many bytes."""

LARGE_PAYLOAD_BYTES = 8_000
PART_BYTES = 4_096
"""A payload that is longer than the first is kept in the file in parts of the second size, or up to twice as long: the
parts of a payload are equally long, because shorter values take DuckDB twice as long."""

# DuckDB's memory.
DUCKDB_MEMORY_BYTES = 160_000_000
"""DuckDB's memory per storage. Beyond it DuckDB spills to disk. With 96 MB, inserts would spill and take three times as
long.
"""
DUCKDB_RESTING_BYTES = 16_000_000
"""The part of that memory that DuckDB keeps while the storage is idle."""
DUCKDB_MEMORY_PERCENT_MAX = 50
"""Large payloads raise the memory of a storage up to this share of the machine's memory."""
DUCKDB_JOB_MEMORY_BYTES = 1_000_000_000
"""DuckDB's memory for a job that reads or copies a partition file in an instance of its own."""

# Start and stop.
LOCK_WAIT_SECONDS = 0.5
"""A daemon waits this long for the lock of its data directory, then it refuses to start."""
SHUTDOWN_SECONDS_MAX: Final = 10.0
"""A daemon that has not stopped after this time ends like a crash. What it acknowledged is durable."""
TASKS_END_SECONDS_MAX = 2.0
"""A daemon that stops waits this long for the threads of cancelled work, such as a copy for the archive."""
CONNECTIONS_END_SECONDS = 1
"""Connections get this long to end after the service has stopped. Then they are cut."""

# Connections.
HEAD_BYTES_MAX: Final = 65_536
"""A request with a longer head is refused, and the connection ends."""
REMEMBERED_HEADS_MAX: Final = 1_024
REMEMBERED_HEAD_BYTES_MAX = 2_048
"""Request heads that need no parsing when they are repeated. Beyond the first bound old heads are forgotten. A head
that is longer than the second is always parsed."""
LARGE_BODY_BYTES = 65_536
"""A longer body needs room in memory while it arrives. A shorter one never waits."""
ARRIVING_BYTES_MAX = 256_000_000
"""Large bodies that arrive at a time. The daemon does not read from the connections of further ones until others are
complete."""
ARRIVING_SECONDS_MAX = 60.0
"""While bodies wait for that room, the connection of a large body that takes longer than this is closed."""
UNREAD_BYTES_MAX = 256_000_000
UNREAD_CROWDED_SECONDS_MAX = 5.0
"""While clients have left more bytes of answers unread than the first, a client that reads nothing for the second loses
its connection."""
PIPELINED_BYTES_MAX = 65_536
"""The daemon stops reading from a client that sends this much ahead of its answers."""
TCP_CONNECTIONS_MAX = 50_000
TCP_CONNECTIONS_FILES_SHARE = 0.75
"""TCP connections at a time: at most the first, and at most this share of the files that the daemon may open. Further
ones are closed at once, so that partition files and the Unix socket still work when somebody opens too many.
"""
LISTEN_BACKLOG = 2_048
"""Connections that the kernel queues before the daemon accepts them."""
TCP_IDLE_SECONDS = 30
TCP_PROBE_SECONDS = 10
TCP_PROBES_MAX = 3
"""The kernel probes a client whose connection was idle for the first, at intervals of the second. A client that answers
none of the third number of probes is gone: its connection ends, and so do its waiting requests."""
KEEP_ALIVE_SECONDS = 75
"""A connection that is idle for longer is closed, and so is one whose request head is not complete after this time."""
UNREAD_SECONDS_MAX = 60.0
"""A client that reads nothing of a long answer for this long loses its connection."""
TLS_HANDSHAKE_SECONDS_MAX = 10.0
"""A connection whose TLS handshake takes longer is closed."""
TLS_FILES_CHECK_SECONDS = 1.0
"""The daemon looks this often whether its TLS files have changed."""
LINGER_SECONDS = 2.0
"""A connection that the daemon ends stays open this long for a client that is still sending."""
HEALTH_REASONS_MAX = 5
HEALTH_PARTITIONS_MAX = 5
"""`/health` names this many reasons, and this many partitions for each reason. For the others it gives only their
number.
"""
DURATION_SAMPLES_MAX = 1_024
"""Quantiles of durations come from this many of the latest requests of a path."""
DURATION_PATHS_MAX = 256
"""Durations of further paths are counted together as `(other)`."""

RECENT_WARNINGS_MAX = 100
"""Warnings of the log that `daemon.status` tells. Older ones are only in the log."""

# The engine.
WORKER_THREADS = 4
INLINE_WRITE_SECONDS_MAX = 0.004
"""A disk whose writes take longer on average is written from a thread instead of from the loop."""
INLINE_WRITE_BYTES_MAX: Final = 256_000
"""A write of more bytes is always made in a thread, so that the loop reads the next bodies meanwhile."""
RATE_WINDOW_US: Final = 60 * US_PER_SECOND
"""The rates of `queues list` cover this time."""
RATE_SAMPLE_US = 5 * US_PER_SECOND
"""The time between two samples for these rates."""
TREND_ROUND_SECONDS_MAX = 0.1
"""A round that samples the history of queues ends after this time, a hundredth of the time between two rounds. The next
round begins with the queues that are left."""
UPKEEP_SECONDS = 0.25
"""The time between two rounds of upkeep."""
LOOK_AFTER_BYTES = 1_000_000
"""A storage that has taken this many bytes is looked at without waiting for the next round."""
BACK_PRESSURE_SECONDS = 0.005
"""The time between two looks at whether producers that wait for a storage's files are let in."""
BACK_PRESSURE_MEASURED_BYTES_MIN: Final = 1_000_000
"""A smaller apply says too little about how fast a storage's files catch up."""
APPLY_IDLE_ROUNDS = 4
"""When a storage is idle for this many rounds of upkeep, its journal is applied to its files."""
APPLY_RETRY_SECONDS_MAX = 30.0
"""A partition whose apply fails is tried again after a wait that doubles up to this."""
FORGET_EVERY_US = 600 * US_PER_SECOND
"""The time between two deletions of expired request ids from a partition file."""
FORGET_LOOK_ROUNDS = 20
"""Partition files whose deletion is due are looked for once in this many rounds of upkeep."""
ROOM_CHECK_ROUNDS = 4
"""The free space of each storage is checked once in this many rounds of upkeep."""
ROOM_LOW_BYTES = 1_000_000_000
ROOM_LOW_SHARE = 0.1
"""A storage is nearly full when less than both of these is free on its file system. Then health is a warning."""
ROOM_PROBE_BYTES = 65_536
ROOM_PROBE_BELOW_BYTES = 1_000_000
"""With less free space than the second, or after a write found no space, a trial write of the first size shows whether
a storage is full."""

# Bulk data.
SLICE_ROWS_MAX = 20_000
SLICE_BYTES_MAX: Final = 4_000_000
"""A scan reads at most this much in one step."""
PAGE_BYTES_MAX = 2_000_000
"""A list reads at most this much in one step. The next step begins when the client has read the last one."""
SPLITS_MAX = 1_024
"""A plan with more parts per partition is refused."""
BULK_PAYLOAD_BYTES_MAX = PRODUCE_BODY_BYTES_MAX
"""A stream with a longer payload is refused."""
BULK_CHUNK_ROWS_MAX = 1_000
BULK_CHUNK_BYTES_MAX = 250_000
"""One pass takes at most this much from a stream, so that other requests wait no longer than that."""
BULK_BATCH_BYTES_MAX = 64_000_000
"""A stream with a longer record batch is refused."""
BULK_AHEAD_BYTES_MAX = 4_000_000
"""The daemon reads at most this much of a body ahead of its use."""
BULK_WRITES_MAX = 16
"""Bulk writes that run at a time. Further ones wait for their turn."""
BULK_APPLY_BYTES = 16_000_000
BULK_UNAPPLIED_BYTES_MAX = 32_000_000
"""With this many unapplied bytes, a bulk write starts an apply. It waits for the apply at the second bound, or at the
first one while clients are active.
"""
BULK_POLL_SECONDS = 0.005
"""A bulk write that waits checks this often whether it may continue."""
BULK_CLIENT_ACTIVE_SECONDS = 1.0
"""Clients count as active for this long after a produce or lease was answered."""
BULK_SLEEP_FACTOR = 3.0
BULK_SLEEP_SECONDS_MAX = 1.0
"""If clients were served while a bulk write waited, it sleeps this multiple of its wait, up to the maximum."""
BULK_REQUEST_ID_BYTES_MAX = 200
"""A bulk write with a longer request id is refused."""
BULK_TIMEOUT_SECONDS = 60.0
"""A chunk that is not durable after this time fails with 454, unless the request names another time."""

# SQL.
SQL_WORKERS_MAX = 2
"""Queries that run at a time. Further ones wait for their turn."""
SQL_MEMORY_BYTES_MAX = 256_000_000
"""DuckDB's memory for one query. A query that needs more fails."""
SQL_PROCESS_BYTES_MAX = 2_000_000_000
"""Private memory of a worker process, mapped or used; DuckDB alone maps most of a gigabyte. Beyond it a query fails."""
SQL_TIMEOUT_SECONDS = 30.0
"""A query that runs for longer is stopped, unless its request names another time."""
SQL_TIMEOUT_SECONDS_MAX = 900.0
"""A request that names a longer time is refused."""
SQL_WORKER_IDLE_SECONDS = 300.0
"""A worker process that is idle for this long is ended."""
SQL_FRAME_BYTES_MAX = 1_000_000
"""A worker process sends its result in frames of at most this size, so that the daemon holds little of it for a slow
client.
"""
SQL_HELD_BACK_BYTES = 4_000_000
"""A shorter result is sent when the query has succeeded. A longer one is sent as it arrives, once it has this many
bytes.
"""

# Jobs.
JOB_KEPT_US = 24 * 3_600 * US_PER_SECOND
"""A job that ended is listed for this long."""
JOB_STOP_SECONDS_MAX = 2.0
"""Jobs get this long to pause when the daemon stops; then they are cancelled."""
JOB_ITEMS_PER_SECOND_MAX = 100_000
JOB_BYTES_PER_SECOND_MAX = 200_000_000
"""A faster job is slowed down to this."""
JOB_CHUNK_ITEMS_MAX = 1_000
JOB_CHUNK_BYTES_MAX = 1_000_000
"""A migrate into another partition moves at most this much in one step."""
JOB_POLL_SECONDS = 0.02
VERIFY_TRIES_MAX = 100
"""Verify gives up after this many tries to count memory and file at the same moment."""
CATALOG_SMALL_BYTES_MAX = 2_000_000
"""A catalog whose file is smaller has every change in its file at once."""
CATALOG_LOG_BYTES_MAX = 256 * 1024
CATALOG_CHECKPOINT_SECONDS = 2.0
"""The changes of a larger one are written from DuckDB's log into the file when the log is this long, and this often."""
CREATE_THREADS = 4
"""Threads that create the partition files of one request."""
COMPACT_CHECK_SECONDS = 60.0
COMPACT_FILE_BYTES_MIN = 64_000_000
COMPACT_FREE_SHARE_MIN = 0.8
"""A file of at least this size is compacted when at least this share of it is free."""
MANIFEST_BYTES_MAX = 10_000_000
"""A longer manifest of a backup is refused. The manifest of a thousand partitions takes less than a tenth of this."""
CONSOLE_SESSION_SECONDS_MAX = 12 * 3_600
"""Whoever signed in to the console and did nothing for this long must sign in again."""
CONSOLE_SESSIONS_MAX = 1_000
"""Sessions of the console. With more, the one that was used longest ago ends."""
CONSOLE_FORM_BYTES_MAX = 256_000
"""A longer form of the console is refused."""
CONSOLE_REMARKS_MAX = 200
"""What was done, kept for the next page of the one who did it. Beyond this number the oldest remark is forgotten."""
CONSOLE_SQL_ROWS_MAX = 1_000
CONSOLE_SQL_CELLS_MAX = 4_000
CONSOLE_SQL_CHARACTERS_MAX = 100_000
"""A page shows at most this many rows, cells and characters of a query's result, and says that there are more."""
CONSOLE_SQL_BYTES_MAX = 8_000_000
"""A page reads at most this much of a query's result. It refuses a longer one."""
CONSOLE_DEAD_ITEMS_MAX = 500_000
"""A page groups and counts at most about this many dead items, the latest ones, and says so."""
CONSOLE_GROUPS_MAX = 5_000
"""Groups of dead items by time that a page counts. With more, it asks for fewer columns."""
CONSOLE_PAYLOAD_BYTES_MAX = 64_000
"""A page shows at most this much of a payload."""
CONSOLE_JSON_NODES_MAX = 2_000
CONSOLE_JSON_DEPTH_MAX = 30
"""A payload with more values or levels is shown as text, without folding."""
JOB_ROOM_BYTES_MIN = 16_000_000
"""A copy into a storage is refused unless this much stays free beyond the size of the copy."""

# The archive.
ARCHIVE_TIMEOUT_SECONDS = 30
ARCHIVE_CONNECT_SECONDS = 3
"""A request to the object store that takes longer counts as failed. It is tried again."""
ARCHIVE_RETRY_SECONDS_MAX = 5.0
"""A put that fails is tried again after a wait that doubles up to this."""
ARCHIVE_PACKING_BYTES_MIN = 1_000_000
"""A log object with at least this much of journals is made by a process of low priority."""
ARCHIVE_PACKING_SECONDS_MAX = 2.0
"""If that process does not answer for so long, because the processors are busy, the daemon makes the object itself."""
ARCHIVE_PACKING_IDLE_SECONDS = 60.0
"""The process ends when it had nothing to do for so long. After a failure, it is started again after so long."""
ARCHIVE_SYNC_BYTES = 500_000
"""An object in a directory is synced after each piece of this size, so that the journal's syncs do not wait long."""
ARCHIVE_INDEX_EVERY = 64
ARCHIVE_INDEX_SECONDS_MIN = 5.0
"""After this many log objects an index is written, so that readers begin there, but not more often than the second
says: with `wait`, the requests of one second fill many objects, and they would wait for the index too."""
ARCHIVE_READS_AHEAD_MAX = 16
"""Log objects that are read at the same time, because an object store takes many milliseconds for each."""
ARCHIVE_READ_AHEAD_BYTES = 1_000_000
"""The rest of a larger log object is read when its turn has come, so that reading ahead takes little memory."""
ARCHIVE_BASE_LOG_BYTES = 1_000_000_000
"""A partition gets a new base when the log has grown by this much since the first record after its last base. A busy
queue fills it in seconds, and a base costs more than as much log."""
ARCHIVE_BASE_LOG_OBJECTS = 4_096
ARCHIVE_BASE_BYTES_PER_OBJECT = 64_000
"""A partition also gets a new base when there were so many log objects since then, unless the files that need one have
more bytes than this for each of the objects. A reader gets about as much of a base in the time of one object."""
ARCHIVE_DELETES_MAX = 1_000
"""Objects that are deleted with one request."""
ARCHIVE_BASE_CHECK_SECONDS = 0.5
"""The time between two looks for partitions that need a new base."""
ARCHIVE_BASE_SECONDS_MAX = 60.0
"""While a partition has no base, the lag grows. Health has a warning when the lag is longer than this."""
ARCHIVE_PRUNE_SECONDS = 3_600.0
"""The time between two prunings of the archive."""
ARCHIVE_UNFINISHED_SECONDS = 3_600.0
"""Pruning deletes an unfinished file in an archive's directory if nothing was written to it for so long."""
ARCHIVE_WAIT_SECONDS_MAX = 5.0
"""Requests that wait for the archive get 454 after this time, and partitions are in error until it has caught up."""
ARCHIVE_GATHER_SECONDS = 0.001
GATHER_ROUNDS_MAX = 5
"""With an archive that must be waited for, requests gather before they share a put: until none has come for the first,
but for no more than this many times as long."""
STANDSTILL_SECONDS = 2.0
"""A process that stood still for longer asks the archive for its owner before it answers."""
STANDBY_START_RETRY_SECONDS = 0.5
"""A standby that starts before its archive can be read looks for it again after this time."""
STANDBY_SAVE_SECONDS = 5.0
"""A standby notes how far it is after this time, and after a restart goes on from there."""
STANDBY_MERGE_BYTES = 1_000_000
"""A standby merges DuckDB's log of a file into the file after this many bytes of records. So promotion is fast."""
STANDBY_REFRESH_SECONDS = 1.0
"""A standby reads its files again for requests that come this long after the last time. Its answers state their lag."""
PROMOTION_SECONDS_MAX = 30.0
PROMOTION_RETRY_SECONDS = 0.1
"""A promotion that fails because the object store does is tried again after the second time, and given up after the
first one."""
HEARTBEAT_LOOK_SECONDS = 1.0
"""A standby looks for a new heartbeat at least this often."""
SKEW_LOOK_SECONDS = 0.05
SKEW_ERROR_SECONDS_MAX = 0.2
"""It looks as often as the first says until it has seen one within the second after it was there."""
SKEW_SECONDS_KEPT = 60.0
"""The clock of the owner is compared with ours at its heartbeats of the last minute."""
SKEW_PUT_SECONDS = 2.0
"""A heartbeat whose put takes longer makes it look as if the owner's clock had moved."""
CLOCK_SLEW_US_PER_SECOND = 500
"""A clock that was set back by a take-over catches up with the system's clock by this much in a second."""
SKEW_SECONDS_MAX = 10
"""A standby whose clock differs by more from the owner's takes over only if it is forced to."""
ARCHIVE_STOP_SECONDS_MAX = 3.0
"""A daemon that stops tries for this long to ship the rest."""
ARCHIVE_CLAIM_SECONDS_MAX = 5.0
"""A daemon that starts waits this long for the object store. Then it serves without the store. With `wait`, requests
get 454 until the store is back."""
