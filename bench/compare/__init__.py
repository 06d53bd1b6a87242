"""`make bench`: the life of an item in this daemon and in the queues one would pick instead, in one run.

`servers` starts and stops what is measured, `wire_*` speaks each protocol as cheaply as Python can, `drive` is the one
event loop that all of them share, `load` is the process that makes the load, `report` and `chart` write what came out.
"""
