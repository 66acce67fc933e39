"""A local server in place of a language model's endpoint, and a clock that jumps instead of sleeping."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pasta_jax.llm.client import Endpoint, TimeSource


class Server:
    """Answers each POST with `respond(number of the request, its body)`: (status, headers, body, declared length)."""

    def __init__(self, respond):
        self.seen: list[tuple[str, dict, dict]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, dict(self.headers), body))
                status, headers, content, promised = respond(len(outer.seen), body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(promised if promised is not None else len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # the client closed the connection

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def good(text, ended="stop", total=1100) -> tuple:
    content = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": ended}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": total},
    }
    return 200, {}, json.dumps(content).encode(), None


def bad(status: int, headers=None, body=b"{}") -> tuple:
    return status, headers or {}, body, None


class FakeTime:
    """A clock that jumps instead of sleeping."""

    def __init__(self):
        self.time, self.slept, self._lock = 0.0, [], threading.Lock()

    def clock(self) -> TimeSource:
        return TimeSource(lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.time += seconds
            self.slept.append(seconds)


def endpoint(url: str, **changes) -> Endpoint:
    fields = dict(
        url=url,
        model="some-model",
        key_variable="",
        temperature=0.0,
        max_tokens=1000,
        timeout_s=5.0,
        requests_per_minute=6e6,
        retries=3,
        backoff_s=1.0,
        max_backoff_s=60.0,
        dollars_per_million_in=2.0,
        dollars_per_million_out=10.0,
    )
    return Endpoint(**fields | changes)
