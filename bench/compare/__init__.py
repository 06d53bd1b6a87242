"""`make bench`: compares this daemon with other queues, in one run. Every item is produced, leased and completed.

`servers` starts and stops the systems. `wire_*` speaks each protocol as cheaply as Python can. `drive` is the event
loop that all protocols share. `load` is the process that sends the requests. `report` and `chart` write the results.
"""
