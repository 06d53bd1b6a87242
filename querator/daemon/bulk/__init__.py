"""Bulk data in and out: Arrow streams, the pace of bulk writes, and SQL.

A scan or a query reads partitions slice by slice while the queue keeps working. A write adds a stream chunk by chunk.
The server needs the routes, and jobs find and import items with the rest of the names below.
"""

from querator.daemon.bulk.reads import bulk_routes
from querator.daemon.bulk.selections import Importer, check_condition, matching_rows

__all__ = ["Importer", "bulk_routes", "check_condition", "matching_rows"]
