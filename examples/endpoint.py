"""An API on loopback for the examples. Records ending in 00 are refused, those in 01 to 04 fail once or twice."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress

answers, tries, seconds = Counter[int](), Counter[str](), Counter[int]()  # by status, by path, in each second


def answer(path: str, limit: int) -> tuple[int, str]:
    seconds[now := int(time.time())] += 1
    if seconds[now] > limit:
        return 429, "Retry-After: 1\r\n"
    tries[path], last = tries[path] + 1, int(path[-2:])
    return (422 if last == 0 else 503 if 1 <= last <= 4 and tries[path] <= 1 + last % 2 else 200), ""


@asynccontextmanager
async def serving(limit: int = 10**9):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError):  # the caller has gone, or the example ends
            while head := await reader.readuntil(b"\r\n\r\n"):
                status, more = answer(head.decode().split()[1], limit)
                answers[status] += 1
                writer.write(f"HTTP/1.1 {status} -\r\n{more}Content-Length: 0\r\n\r\n".encode())

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
