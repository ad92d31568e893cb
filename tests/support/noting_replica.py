"""A replica in a process of its own, that notes each request before anything of it is done.

    python -m tests.support.noting_replica PORT FILE

FILE gets a line for each request that was read: its path and the length of its body. The answer comes 20 ms later.
"""

import asyncio
import os
import sys

SECONDS = 0.02


async def serve(port: int, notes: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.split(b"\r\n")
                lengths = [line.partition(b":")[2] for line in lines if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0]) if lengths else 0)
                os.write(notes, b"%s %d\n" % (lines[0].split()[1], len(body)))
                await asyncio.sleep(SECONDS)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)))
