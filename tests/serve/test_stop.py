"""A second signal ends a server at once: what it sends is cut off, what has not begun is refused."""

import asyncio
import signal
import subprocess
import sys
import time
import urllib.request
from unittest.mock import Mock

import pytest

from pasta_jax.command.console import ROOT
from pasta_jax.serve.guard import Guard
from pasta_jax.serve.settings import ServeSettings

SCRIPT = """
import asyncio
from pasta_jax.serve.server import bound, serve
from pasta_jax.serve.settings import Limits

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.05)

listening = bound("127.0.0.1", 0)
serve(app, listening, Limits(drain_s=60), lambda: print(listening.getsockname()[1], flush=True))
"""


def test_a_second_signal_ends_the_server_at_once():
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        port = int(server.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}") as answer:
            assert answer.read(3) == b"xxx"
            server.send_signal(signal.SIGTERM)
            while "once more" not in server.stderr.readline():
                pass
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=50)
    assert time.monotonic() - began < 30  # of the 60 that answers may take


def test_a_second_signal_answers_what_has_not_begun_with_503():
    sent = []

    async def app(scope, receive, send):
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def cancelled() -> None:
        guard = Guard(app, Mock(), None, True, ServeSettings(log=False))
        task = asyncio.create_task(guard({"type": "http", "path": "/", "headers": [], "method": "GET"}, None, send))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert sent[0]["status"] == 503
    assert b"the server is stopping" in sent[1]["body"]
