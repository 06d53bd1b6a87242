"""Bulk data in and out: Arrow streams, the pace of bulk writes, and SQL.

A scan or a query reads partitions slice by slice while the queue works on. A write takes a stream in chunk by chunk.
The server needs only the routes; everything else here is private.
"""

from querator.daemon.bulk.reads import bulk_routes

__all__ = ["bulk_routes"]
