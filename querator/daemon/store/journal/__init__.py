"""The journal of a storage: durable batches that are not in the partition files yet.

Nothing here knows what a batch contains, and nothing here uses SQL.
"""
