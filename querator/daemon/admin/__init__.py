"""Calls of operators: queues, partitions, items and storages, and what these calls share with jobs.

Each call is a coroutine on the registry, listed in its module's `CALLS`. Nothing here imports `jobs/`: a call starts a
job by its kind, through the registry.
"""
