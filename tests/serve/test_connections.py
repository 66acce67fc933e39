"""Connections that send nothing, half a head, or stop reading end within their limits; others are answered."""

import asyncio
import contextlib
import dataclasses
import socket

import uvicorn
from uvicorn.server import ServerState

from pasta_jax.serve.connection import Connection
from pasta_jax.serve.settings import Limits

LIMITS = Limits()
QUICK = dataclasses.replace(LIMITS, connections=4, head_s=0.3, stall_s=0.3)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMALL = 4096  # bytes that the kernel holds of what was sent, and is unread
LAST = GET[:-2] + b"Connection: close\r\n\r\n"


async def app(scope, receive, send) -> None:
    """As much as the path says, in pieces of 64 KiB."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(int(scope["path"].strip("/") or 1)):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def run(clients) -> None:
    """Run a coroutine on (connect, state): a function that connects a client, and the server's state."""

    async def main() -> None:
        config, state = uvicorn.Config(app, log_config=None, lifespan="off"), ServerState()
        loop = asyncio.get_running_loop()

        def protocol() -> Connection:
            return Connection(QUICK, config=config, server_state=state, app_state={}, _loop=loop)

        async with await loop.create_server(protocol, "127.0.0.1", 0) as server, contextlib.AsyncExitStack() as stack:
            address = server.sockets[0].getsockname()
            server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)  # of connections too

            async def connect(data: bytes = b"", rest: bytes = b"") -> asyncio.StreamReader:
                """Send `data`, and `rest` once the answer has begun."""
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
                client.connect(address)
                reader, writer = await asyncio.open_connection(sock=client, limit=1024)
                stack.callback(writer.close)
                writer.write(data)
                if rest:
                    await reader.readline()
                    writer.write(rest)
                return reader

            async with asyncio.timeout(20):
                await clients(connect, state)

    asyncio.run(main())


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass
    return True


def test_what_sends_no_whole_head_is_closed():
    async def clients(connect, state):
        for beginning in (b"", b"GET", GET[:-2], GET + GET[:-2]):
            assert await is_closed(await connect(beginning))
        assert not state.connections

    run(clients)


def test_the_rest_of_a_body_that_nobody_reads_keeps_no_connection():
    async def clients(connect, state):
        assert await is_closed(await connect(GET[:-2] + b"Content-Length: 9\r\n\r\n", rest=b"x"))
        assert not state.connections

    run(clients)


def test_a_malformed_rest_of_an_answered_requests_body_closes_the_connection():
    async def clients(connect, state):
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        chunked = GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
        assert await is_closed(await connect(chunked, rest=b"zz\r\n"))
        assert b" 400 " in await (await connect(chunked.replace(b"HTTP/1.1", b"HTTP/x"))).readline()
        assert not errors

    run(clients)


def test_a_client_that_never_reads_the_end_of_its_last_answer_is_closed():
    async def clients(connect, state):
        await connect(LAST)
        while not state.connections:
            await asyncio.sleep(0.01)
        while state.connections:
            await asyncio.sleep(0.05)

    run(clients)


def test_further_connections_are_closed_at_once_and_the_limit_recovers():
    async def clients(connect, state):
        waiting = [await connect() for _ in range(QUICK.connections)]
        began = asyncio.get_running_loop().time()
        assert await is_closed(await connect(GET))
        assert asyncio.get_running_loop().time() - began < QUICK.head_s
        for reader in waiting:
            await is_closed(reader)
        assert (await (await connect(GET)).readline()).startswith(b"HTTP/1.1 200")

    run(clients)


def test_a_client_that_stops_reading_is_closed_and_one_that_reads_gets_all():
    async def clients(connect, state):
        stalled = await connect(GET.replace(b"/ ", b"/400 ", 1))
        while not state.connections:
            await asyncio.sleep(0.01)
        while state.connections:
            await asyncio.sleep(0.05)
        assert stalled.at_eof() or await is_closed(stalled)
        reads = await connect(LAST.replace(b"/ ", b"/40 ", 1))
        total = 0
        while part := await reads.read(1 << 20):
            total += len(part)
        assert total > 40 * 65536

    run(clients)
