"""Benchmarks. Nothing here is imported by the daemon, the client or the command line."""
