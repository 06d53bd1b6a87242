"""The process that makes large log objects: `python -m querator.daemon.archive.packing_process FD`.

The daemon asks on stdin, twice per object: what do these chunks contain, and then to make an object of them, which goes
to FD. The process ends when the daemon does, because stdin ends then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from io import FileIO
from pathlib import Path

import msgspec

from querator.daemon import priority
from querator.daemon.archive.packing import Packer, SealOrder, receive, send
from querator.daemon.store import FeedChunk


def main() -> None:
    priority.lowest()
    memory = int(sys.argv[1])
    requests, answers = FileIO(0, "rb"), FileIO(1, "wb")
    packer = Packer()
    packer.seal(SealOrder(b"", [], b"loads the codec"))
    send(answers, b"")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            chunks = msgspec.msgpack.decode(receive(requests), type=list[tuple[int, int, int, str]])
            found = packer.look([FeedChunk(segment, begin, end, Path(path)) for segment, begin, end, path in chunks])
            send(answers, msgspec.msgpack.encode(found))
            sealed = packer.seal(msgspec.msgpack.decode(receive(requests), type=SealOrder))
            written = 0
            while written < len(sealed.data):
                written += os.pwrite(memory, memoryview(sealed.data)[written:], written)
            send(answers, msgspec.msgpack.encode((len(sealed.data), sealed.sha256)))


if __name__ == "__main__":
    main()
