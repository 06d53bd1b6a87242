"""The `querator` command. What you type is what the file is called.

`querator queues create` is `create` in `queues.py`. A noun with much behind it is a package: `querator queue produce`
is in `queue/produce.py`. What all nouns share is in `terminal/` (what a person sees and types), `shell/` (the command
tree, its options, completions and manual pages) and `lookups/` (what several nouns ask the daemon).

Only `daemon.py` and `doctor.py` import parts of the daemon. Imports that take long stay inside the functions that need
them, because a command pays for them each time it runs.
"""
