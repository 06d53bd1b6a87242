"""`querator pipeline`: bulk work with Spark. Each module of this package has a verb or two.

The work itself is in `querator.spark`, which is imported when a command runs.
"""

from __future__ import annotations

from querator.cli.pipeline import copying, dead_queues, from_files, to_files
from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun

app = noun(NOUNS["pipeline"].help)

command(app, "import")(from_files.import_)
command(app, "export")(to_files.export)
command(app, "copy")(copying.copy)
command(app, "redrive")(dead_queues.redrive)
command(app, "report")(dead_queues.report)
command(app, "stream")(to_files.stream)
