"""The command tree and what is made from it: options, help with examples, completion scripts and manual pages.

Nothing here talks to the daemon, except `candidates.py`, which completes names that only the daemon knows.
"""
