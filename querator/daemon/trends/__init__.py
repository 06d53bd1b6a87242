"""What each queue held and did over the last week: sampled every ten seconds, and kept in small files.

`sampling` reads the queues' counters on the loop, a few queues at a time. `rings` keeps the samples on disk. The calls
`queues.history` and `queues.overview` are in `trend_calls`. Requests of clients do not depend on anything here.
"""

from querator.daemon.trends.sampling import Trends
from querator.daemon.trends.trend_calls import CALLS, CALLS_BY_CALLER

__all__ = ["CALLS", "CALLS_BY_CALLER", "Trends"]
