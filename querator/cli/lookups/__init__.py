"""What several nouns ask the daemon: which partitions are open, which items meet a condition, what the metrics say.

Nothing here prints an answer or changes anything in the daemon.
"""
