"""How answers reach a client: whole, once they have ended, or as server-sent events. Its leaving cancels them."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pasta_jax.serve.session import Session

SILENT = b": working\n\n"  # a comment to clients, and to proxies a sign of life
CLIENT_LEFT = 499  # as nginx logs it; nobody receives it


async def read_whole(request: Request, session: Session, reading: Coroutine[Any, Any, None]) -> None:
    """Read the answers to their ends; if the client leaves, they are cancelled, and ClientDisconnect is raised."""
    work = asyncio.create_task(reading)
    gone = asyncio.create_task(wait_until_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        work.result()
    finally:
        work.cancel()
        gone.cancel()
        session.leave()


async def wait_until_gone(request: Request) -> None:
    """Wait until the client has left; its request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Answers as server-sent events. The client's leaving cancels them, also before the first one."""

    def __init__(self, session: Session, events: AsyncIterator[bytes]):
        super().__init__(events, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would hold events back until its buffer is full
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._session.leave()


def event(fields: dict[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    data = compact(fields)
    for code in (0x85, 0x2028, 0x2029):  # of lines' ends, to clients that split as Python does
        data = data.replace(chr(code), f"\\u{code:04x}")
    return f"{head}data: {data}\n\n".encode()


def as_json(fields: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(compact(fields), status, headers, media_type="application/json")


def compact(fields: dict[str, Any]) -> str:
    """JSON without blanks."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
