"""Every bound of the system, named with its unit.

Times are microseconds (`_us`), durations nanoseconds (`_ns`), sizes bytes. A number that limits
something and is not here is a defect.
"""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
US_PER_SECOND = 1_000_000

# What a request may carry (wire contract, sections 1.1 and 2).
BATCH_ITEMS_MAX = 1_000
QUEUE_NAME_BYTES_MAX = 512
NAMESPACE_BYTES_MAX = 256
REFERENCE_BYTES_MAX = 2_000
TIMEOUT_TEXT_BYTES_MAX = 15
REQUEST_ID_BYTES_MAX = 256
MAX_ATTEMPTS_MAX = 65_536
ATTEMPTS_MAX = (1 << 31) - 1
SEQUENCE_MAX = (1 << 62) - 1
"""A restored file with higher sequences is refused. A new sequence is the time in microseconds, or the last plus 1."""
YEAR_10000_US = 253_402_300_800_000_000
"""Times from here on are refused: texts cannot express them."""
PARTITIONS_MAX = 1_000
"""Per queue; more are refused. Each partition is an open DuckDB file: a thousand take about 400 MB."""
LIST_LIMIT_DEFAULT = 1_000
LIST_LIMIT_MAX = 65_536
REQUEST_TIMEOUT_MIN_NS = 10 * NS_PER_MS
REQUEST_TIMEOUT_MAX_NS = 15 * 60 * NS_PER_SECOND

PRODUCE_BODY_BYTES_MAX = 5_000_000
SMALL_BODY_BYTES_MAX = 64_000
BODY_BYTES_MAX = 256_000
UPDATE_BODY_BYTES_MAX = 512_000
IMPORT_BODY_BYTES_MAX = 64_000_000
OVER_LIMIT_DRAIN_BYTES_MAX = 1_000_000

# The Logical loop.
INBOX_REQUESTS_MAX = 4_096
SCHEDULE_AHEAD_MIN_US = 100_000
LIFECYCLE_ITEMS_PER_PASS_MAX = 1_000
LEASE_ENDS_IDS_MIN = 4_096
RECOVERY_BACKOFF_MIN_NS = 500 * NS_PER_MS
RECOVERY_BACKOFF_MAX_NS = 30 * NS_PER_SECOND

# What one partition keeps in memory of the items that wait.
READY_WINDOW_ITEMS_MAX = 20_000
READY_WINDOW_LOW_PERCENT = 40
READY_WINDOW_BYTES_MAX = 32_000_000
SCHEDULED_WINDOW_ITEMS_MAX = 10_000
SCHEDULED_WINDOW_BYTES_MAX = 32_000_000
ROWS_ITEMS_MIN = 100
"""So many items that come together are kept as columns if they come behind what memory keeps."""
OLDEST_AMONG_ITEMS_MAX = 1_000
"""Ready and leased items per partition that are asked for the age of the oldest; a scrape must not stop the loop."""

# How long what is gone is remembered.
LOST_LEASE_KEPT_US = 3_600 * US_PER_SECOND
REQUEST_ID_KEPT_US = 3_600 * US_PER_SECOND
REQUEST_IDS_FORGOTTEN_MAX = 1_000
"""Per second, of those that are kept as they are."""
REQUEST_IDS_NEWEST_MAX = 20_000
"""Per queue, kept as they are (some 230 bytes each); beyond it memory keeps eight bytes of the oldest ones."""
REQUEST_ID_GENERATIONS = 4
"""Fingerprints are dropped together in so many steps, each when its last request id is past."""
EXACT_KEYS_CHECKED_EVERY_US = 60 * US_PER_SECOND
REQUEST_IDS_PAGE = 5_000
"""Request ids of a closed file are copied in pages of this size, each while everybody waits."""
MOVE_KEPT_US = 30 * 24 * 3_600 * US_PER_SECOND

# The journal.
SEGMENT_BYTES_MAX = 32_000_000
SEGMENT_ALLOCATION_BYTES = 4_000_000
"""A disk without room for a whole segment gets one of this size. A spare is written in steps of this size."""
SEGMENTS_KEPT_MAX = 8
"""Beyond this, records that still wait are copied out of the oldest segment, so that it can go."""
SEGMENTS_WAITING_MAX = 2
"""Closed segments that may wait for their partitions to be applied anyway, for whatever reason."""
SPARES_MAX = 3
"""Files that are kept to be written over."""
SPARES_AT_REST_MAX = 1
SPARE_AFTER_BYTES = 1_000_000
"""A journal that has taken so much is worth one."""
SPARES_ROOM_BYTES_MIN = 1_000_000_000
"""What must be free on the disk."""
QUARANTINE_ROOM_BYTES_MIN = 100_000_000
"""Files are copied to the quarantine only if so much of the disk stays free."""
UNAPPLIED_BYTES_MAX = 48_000_000
"""What memory may hold of items that are not in the files yet, in bytes of the journal; then producers wait."""
APPLY_BYTES = 24_000_000
"""From this on what memory holds is brought into the files."""
KEY_BYTES = 64
"""What is counted for a key that an apply has to look for, such as that of an item that is gone."""
APPLY_ROWS_PER_INSERT_MAX = 5_000
APPLY_BYTES_PER_INSERT_MAX = 4_000_000
APPLY_KEYS_PER_DELETE_MAX = 50_000
CHECKPOINT_WAL_BYTES = 32_000_000
DUCKDB_MEMORY_BYTES = 160_000_000
"""Per storage, unless large payloads need more. With 96 MB it spills what it inserts, and takes three times as long."""
DUCKDB_RESTING_BYTES = 16_000_000
"""What it keeps of that when nothing happens."""
DUCKDB_MEMORY_PERCENT_MAX = 50
"""Of the machine's memory, when they do."""
DUCKDB_JOB_MEMORY_BYTES = 1_000_000_000
"""For what looks at or copies a file by itself."""

SHUTDOWN_SECONDS_MAX = 10.0

# The request path.
HEAD_BYTES_MAX = 65_536
REMEMBERED_HEADS_MAX = 1_024
REMEMBERED_HEAD_BYTES_MAX = 2_048
PIPELINED_BYTES_MAX = 65_536
LISTEN_BACKLOG = 2_048
KEEP_ALIVE_SECONDS = 75
UNREAD_SECONDS_MAX = 60.0
"""A client that reads nothing of a long answer for this long loses its connection."""
LINGER_SECONDS = 2.0
"""How long a connection that we end stays open for a client that is still sending."""
DURATION_SAMPLES_MAX = 1_024
DURATION_PATHS_MAX = 256
LOCK_WAIT_SECONDS = 0.5

# The driver.
WORKER_THREADS = 4
INLINE_WRITE_SECONDS_MAX = 0.004
RATE_WINDOW_US = 60 * US_PER_SECOND
"""The rates of `queues list` are for this long."""
RATE_SAMPLE_US = 5 * US_PER_SECOND
"""How far the samples for rates lie apart."""
UPKEEP_SECONDS = 0.25
APPLY_IDLE_ROUNDS = 4
"""Of upkeep."""
APPLY_RETRY_SECONDS_MAX = 30.0
FORGET_EVERY_US = 600 * US_PER_SECOND
ROOM_CHECK_ROUNDS = 4
"""The room of each storage is looked at after so many rounds of upkeep."""
ROOM_LOW_BYTES = 1_000_000_000
ROOM_LOW_SHARE = 0.1
"""A storage is nearly full when less than both of these is left of its file system: that is a warning."""
ROOM_PROBE_BYTES = 65_536
ROOM_PROBE_BELOW_BYTES = 1_000_000
"""With less room than the second, or after a write found no room, a write of the first size tells whether a storage is
full."""

# Bulk data.
SLICE_ROWS_MAX = 20_000
SLICE_BYTES_MAX = 4_000_000
"""What one step of a scan reads."""
BULK_CHUNK_ROWS_MAX = 1_000
BULK_CHUNK_BYTES_MAX = 250_000
"""What one pass of a queue's loop takes in of a stream: everybody else waits for no longer than that."""
BULK_BATCH_BYTES_MAX = 64_000_000
BULK_AHEAD_BYTES_MAX = 4_000_000
"""How much of a body is read before it is needed."""
BULK_WRITES_MAX = 16
BULK_APPLY_BYTES = 16_000_000
BULK_UNAPPLIED_BYTES_MAX = 32_000_000
"""From the first on, bulk has what it brought applied; from the second on it waits for that, or sooner for others."""
BULK_PAUSE_SECONDS = 0.005
BULK_OTHERS_SECONDS = 1.0
"""How long somebody counts who was answered."""
BULK_REST = 3.0
BULK_REST_SECONDS_MAX = 1.0
"""When others were served meanwhile, bulk rests as many times as long as that took, but not longer."""
BULK_REQUEST_ID_BYTES_MAX = 200
BULK_REQUEST_ID_KEPT_US = 7 * 24 * 3_600 * US_PER_SECOND
BULK_TIMEOUT_SECONDS = 60.0
PAGE_BYTES_MAX = 2_000_000
"""What a list reads at once; it reads on when its client has taken that."""
SPLITS_MAX = 1_024
PAYLOAD_BYTES_MAX = PRODUCE_BODY_BYTES_MAX
SQL_WORKERS_MAX = 2
SQL_MEMORY_BYTES_MAX = 256_000_000
SQL_PROCESS_BYTES_MAX = 2_000_000_000
"""Of private memory, mapped or not, for a whole worker process; DuckDB alone maps most of a gigabyte."""
SQL_TIMEOUT_SECONDS = 30.0
SQL_TIMEOUT_SECONDS_MAX = 900.0
SQL_WORKER_IDLE_SECONDS = 300.0
SQL_FRAME_BYTES_MAX = 1_000_000
"""What a worker process hands over at once: the daemon holds no more of a result for a client that reads slowly."""
SQL_HELD_BACK_BYTES = 4_000_000
"""So much of a result is kept until the query is known to go well; what is longer is sent as it comes."""

# Jobs.
JOB_KEPT_US = 24 * 3_600 * US_PER_SECOND
JOB_STOP_SECONDS_MAX = 2.0
JOB_ITEMS_PER_SECOND_MAX = 100_000
JOB_BYTES_PER_SECOND_MAX = 200_000_000
JOB_CHUNK_ITEMS_MAX = 1_000
JOB_CHUNK_BYTES_MAX = 1_000_000
JOB_POLL_SECONDS = 0.02
VERIFY_TRIES_MAX = 100
CREATE_THREADS = 4
"""How many partition files of one request are created side by side."""
COMPACT_CHECK_SECONDS = 60.0
COMPACT_FILE_BYTES_MIN = 64_000_000
COMPACT_FREE_SHARE_MIN = 0.8
MANIFEST_BYTES_MAX = 10_000_000
"""A longer manifest of a backup is refused; one of a thousand partitions has less than a tenth of it."""
JOB_ROOM_BYTES_MIN = 16_000_000
"""What must be left free in a storage beyond the size of what is copied there."""

REASON_BYTES_MAX = 2_000
"""A retry with a longer reason is refused."""

CLIENT_ID_TOLD_MAX = 256
"""The history of an item keeps this many characters of a client id."""

HISTORY_ATTEMPTS_MAX = 10
HISTORY_REASONS_BYTES_MAX = 8_000
"""An item with more failed attempts, or longer reasons in all, forgets the oldest attempts. The last one is kept."""
