"""An object store in memory whose puts take a given time: as much of S3 as an archive uses. For `bench.archive`.

python -m bench.slow_store --port 9000 --put-ms 5
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "2026-01-01T00:00:00.000Z"
MODIFIED_HEADER = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"
CONNECTION_SECONDS_MAX = 3_600.0


class Store:
    def __init__(self, put_seconds: float) -> None:
        self._objects: dict[str, bytes] = {}
        self._put_seconds = put_seconds
        self._sleepers = ThreadPoolExecutor(8)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECTION_SECONDS_MAX):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    begun = time.monotonic()
                    line, _, rest = head.decode().partition("\r\n")
                    method, target, _ = line.split(" ")
                    fields = {
                        name.lower(): value for name, _, value in (one.partition(": ") for one in rest.split("\r\n"))
                    }
                    body = await reader.readexactly(int(fields.get("content-length", "0")))
                    writer.write(await self._answer(method, target, fields, body, begun))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _wait(self, begun: float) -> None:
        """Returns when the put has taken its time. In a thread, because the timers of the loop are too coarse: they
        fire up to a millisecond late.
        """
        left = begun + self._put_seconds - time.monotonic()
        await asyncio.get_running_loop().run_in_executor(self._sleepers, time.sleep, max(0.0, left))

    async def _answer(self, method: str, target: str, fields: dict[str, str], body: bytes, begun: float) -> bytes:
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        name = unquote(parts.path).lstrip("/").partition("/")[2]
        if method == "PUT":
            await self._wait(begun)
            if name in self._objects and fields.get("if-none-match") == "*":
                return _reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self._objects[name] = body
            return _reply(200, b"", body)
        if method == "POST" and "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self._objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if "list-type" in query:
            return _reply(200, self._list(query.get("prefix", [""])[0], query.get("start-after", [""])[0]))
        if name not in self._objects:
            return _reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return _reply(200, self._objects[name], self._objects[name])

    def _list(self, prefix: str, after: str) -> bytes:
        entries = [
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self._objects[name])}</Size>"
            f"<LastModified>{MODIFIED}</LastModified><ETag>&quot;x&quot;</ETag></Contents>"
            for name in sorted(self._objects)
            if name.startswith(prefix) and name > after
        ]
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        return text.encode()


def _reply(status: int, body: bytes, named: bytes = b"") -> bytes:
    tag = hashlib.md5(named, usedforsecurity=False).hexdigest()
    head = f'HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nETag: "{tag}"\r\n{MODIFIED_HEADER}\r\n\r\n'
    return head.encode() + body


async def serve(port: int, put_seconds: float) -> None:
    server = await asyncio.start_server(Store(put_seconds).connected, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--put-ms", type=float, default=5.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.put_ms / 1_000))
