"""What every request passes first: who may call, from where; then counted and logged, without a word of its content."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import h11
from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_jax.errors import place_of
from pasta_jax.progress import say
from pasta_jax.serve import log
from pasta_jax.serve.delivery import as_json
from pasta_jax.serve.protocol import Refusal
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.serve.spans import Spans

OPEN = {"/", "/health"}  # paths that need no key
KNOWN = OPEN | {"/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses"}


class Guard:
    """Wraps the application. `key`: what clients must send as a bearer token; None: nothing.

    A server on loopback answers only requests that were sent to loopback, or to one of config.hosts, as which a proxy
    serves it: a page whose name has been pointed at 127.0.0.1 could otherwise read the answers. Pages of other sites
    are refused unless they are among config.origins.
    """

    def __init__(self, app: ASGIApp, responses: Counter, key: str | None, is_local: bool, settings: ServeSettings):
        self._app, self._responses, self._is_local, self._settings = app, responses, is_local, settings
        self._hosts = {host.lower() for host in settings.hosts}
        self._key = None if key is None else digest(key.encode())
        self._spans = Spans(settings.spans) if settings.spans else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record, status = log.begin(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = message | {"headers": [*message["headers"], (b"x-request-id", record.id.encode())]}
            await send(message)

        if (path := scope["path"].rstrip("/")) in KNOWN:  # a redirect would name a replica, or leave a proxy's TLS
            scope = scope | {"path": path}
        path = scope["path"] if scope["path"] in KNOWN else "other"
        try:
            self._check(scope)
            await self._app(scope, receive, noting)
        except Refusal as refusal:
            headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            await as_json(refusal.body(), refusal.status, headers)(scope, receive, noting)
        except asyncio.CancelledError:  # by a second signal
            if not status:
                refusal = Refusal("the server is stopping; ask it again when it is back", 503, "stopping")
                await as_json(refusal.body(), 503, {"Retry-After": "5"})(scope, receive, noting)
            raise
        except h11.LocalProtocolError:  # the body was broken: uvicorn has refused it, and sends no other response
            pass
        except Exception as error:
            say(f"error: unexpected: {type(error).__name__} at {place_of(error)}")
            if not status:
                refusal = Refusal("a defect of the server; its log says where", 500, "internal_error")
                await as_json(refusal.body(), 500)(scope, receive, noting)
        finally:
            self._responses.labels(path, status).inc()
            if self._spans is not None and path not in ("/health", "/metrics"):
                self._spans.add(record, scope, path, status)
            if self._settings.log and path not in ("/health", "/metrics"):
                log.write(record, path, status, self._settings.log_format == "json")

    def _check(self, scope: Scope) -> None:
        """Refuse a request that may not be answered."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        for name in ("host", "origin", "authorization"):
            if sum(name.encode() == given for given, _ in scope["headers"]) > 1:
                raise Refusal(f"{name}: given more than once; send it once", 400)
        host = headers.get("host")
        is_probe = scope["path"] == "/health" and not self._is_local  # by the address of a pod
        if (self._is_local or self._hosts) and host is not None and not is_probe and not self._is_own(host):
            raise Refusal(
                "host: this server doesn't answer by that name; call it as 127.0.0.1 or localhost, "
                "or add the name under which a proxy serves it to config.hosts",
                403,
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self._settings.origins and not self._is_same_site(origin, host):
            raise Refusal("origin: pages of other sites may not call this server; add theirs to config.origins", 403)
        if self._key is not None and scope["path"] not in OPEN and not self._has_key(headers):
            raise Refusal("authorization: missing or wrong; send the key as a bearer token", 401, "invalid_api_key")

    def _is_own(self, authority: str) -> bool:
        """Whether a Host header names this server."""
        host = host_of(authority)
        return is_loopback(host) or host in self._hosts

    def _is_same_site(self, origin: str, host: str | None) -> bool:
        """Whether a page comes from this server, perhaps through a proxy that replaced the Host header."""
        scheme, _, authority = origin.partition("://")
        return scheme in ("http", "https") and (authority == host or host_of(authority) in self._hosts)

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        """Compared in constant time; as digests, since the comparison may reveal the length."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(digest(given.strip().encode("latin-1")), self._key) and scheme.lower() == "bearer"


def digest(key: bytes) -> bytes:
    """The SHA-256 of a key."""
    return hashlib.sha256(key).digest()


def host_of(authority: str) -> str:
    """The host of a Host header, without its port; empty if there is none, or more than a host and a port."""
    if not re.fullmatch(r"[\w.:\[\]-]*", authority):  # a name before @, and what browsers read as a path
        return ""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
