"""The daemon: one process and one event loop, with all queues and their storages.

`server` starts and stops everything, `service` answers the calls, and `registry` has what calls and jobs work with. The
packages are described in docs/architecture.md. The other modules here are small parts that several packages need.
Nothing here imports the command line, the client or Spark.
"""
