"""The endpoints: OpenAI's chat completions, completions, responses and models; health, metrics, and the page."""

import asyncio
import dataclasses
import functools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pasta_jax.errors import PastaError
from pasta_jax.serve import logprobs, structured
from pasta_jax.serve.choice import Choice, Delta, usage
from pasta_jax.serve.delivery import CLIENT_LEFT, SILENT, EventStream, as_json, event, read_whole
from pasta_jax.serve.protocol import Body, Kind, Refusal, read_body
from pasta_jax.serve.responses import ResponseWriter, in_own_fields, read_response_body
from pasta_jax.serve.service import Made, Service
from pasta_jax.serve.session import Session
from pasta_jax.serve.settings import Limits
from pasta_jax.serve.structured import FieldsChoice, Structure
from pasta_jax.view.style import css_variables

PAGE = Path(__file__).with_name("chat.html")


def app_of(service: Service) -> Starlette:
    """The application, without its guard (guard.py)."""

    async def health(_: Request) -> Response:
        load = service.engine.load
        status = 200 if service.engine.is_alive else 503
        fields = {"status": "ok" if status == 200 else "failed", "model": service.name, "waiting": load.waiting}
        return as_json(fields | {"running": load.running, "lanes": load.lanes}, status)

    async def models(_: Request) -> Response:
        return as_json({"object": "list", "data": service.cards()})

    async def model(request: Request) -> Response:
        service.template_of(name := request.path_params["name"])
        return as_json(next(card for card in service.cards() if card["id"] == name))

    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(_: Request) -> Response:
        html = PAGE.read_text(encoding="utf-8").replace("/*style*/", css_variables())
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/chat/completions", functools.partial(complete, service, "chat"), methods=["POST"]),
        Route("/v1/completions", functools.partial(complete, service, "text"), methods=["POST"]),
        Route("/v1/responses", functools.partial(respond, service), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'"
)


async def complete(service: Service, kind: Kind, request: Request) -> Response:
    """Answer a request to one of the two endpoints that decode."""
    body, before, first = read_body(await content_of(request, service.settings.limits), kind), [], None
    if body.has_fields:
        service.preparing.require_room()
    structure = await prepared(service, body, body.structure)
    if structured.is_open(body.tools or (), body.tool_choice):
        body, first = await with_tool(service, body, request)
        before = [first.choices]
        structure = await prepared(service, body, body.structure)
    requests = await prepared(service, body, service.requests_for, body, kind, structure)
    threads = body.extension.threads
    if structure is None:
        choices = [Choice(service.model.tokenizer.tags, body.stops, threads) for _ in requests]
    else:
        choices = await fields_choices(service, structure, threads, len(requests))
    # After a stop text, what a round still decodes is wasted.
    steps = service.settings.stream_steps if body.stream or body.stops else service.settings.batch_steps
    writer = Writer(kind, service, body, requests[0].rules.seed, before)
    session = Session(service, requests, choices, steps, first)
    if body.stream:
        return EventStream(session, events_of(session, writer, body))
    await read_whole(request, session, session.read())
    return await asyncio.to_thread(lambda: as_json(writer.whole(choices)))  # many scores take a while


async def prepared(service: Service, body: Body, work: Callable[..., Made], *of: Any) -> Made:
    """What a part of preparing a request makes, in a thread."""
    return await (service.preparing(work, *of) if body.has_fields else asyncio.to_thread(work, *of))


async def fields_choices(service: Service, structure: Structure, threads: bool, count: int) -> list[FieldsChoice]:
    """Answers of fields; made in a thread, as their automata may not be kept any more."""
    return await service.preparing(lambda: [FieldsChoice(structure, service.model, threads) for _ in range(count)])


async def with_tool(service: Service, body: Body, request: Request) -> tuple[Body, Session]:
    """The body with a tool choice that the model made, in a short answer of its own: likeliest name first."""
    service.count_of(body)  # too many are refused before anything is decoded
    several = body.parallel_tool_calls is not False and len(body.tools) > 1
    picking = await service.preparing(structured.picking, body.tools, body.tool_choice, several)
    own = dict(n=1, temperature=0.0, logprobs=None, max_tokens=structured.PICK_TOKENS, max_completion_tokens=None)
    requests = await service.preparing(service.requests_for, dataclasses.replace(body, **own), "chat", picking)
    [choice] = await fields_choices(service, picking, False, 1)
    session = Session(service, requests, [choice], service.settings.batch_steps)
    await read_whole(request, session, session.read())
    if choice.finish_reason == "length" and session.expired:
        raise Refusal("tools: no function was chosen in time; try again later", 503, "overloaded", retry_s=5)
    names = structured.picked(choice.text)
    if not names and choice.finish_reason == "length":
        raise Refusal("tools: a function's name is too long to be chosen; name one in tool_choice", param="tools")
    return dataclasses.replace(body, tool_choice=names or "none"), session


async def respond(service: Service, request: Request) -> Response:
    """Answer a request to /v1/responses."""
    asked = read_response_body(await content_of(request, service.settings.limits))
    body = asked.as_chat()
    if body.has_fields:
        service.preparing.require_room()
    with in_own_fields():
        structure = await prepared(service, body, body.structure)
        requests = await prepared(service, body, service.requests_for, body, "chat", structure)
    if structure is None:
        choice = Choice(service.model.tokenizer.tags, (), threads=True)
    else:
        [choice] = await fields_choices(service, structure, False, 1)
    steps = service.settings.stream_steps if asked.stream else service.settings.batch_steps
    writer = ResponseWriter(asked.model or service.name, asked, requests[0], choice, service.model.tokenizer)
    session = Session(service, requests, [choice], steps)
    if asked.stream:
        return EventStream(session, writer.events(session))
    await read_whole(request, session, writer.collect(session))
    return await asyncio.to_thread(lambda: as_json(writer.whole()))


async def content_of(request: Request, limits: Limits) -> bytes:
    """The body of a request, within the limits."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what a form of another site can send without asking is none
        raise Refusal("content-type: must be application/json", 415)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal("content-encoding: is not supported; send the body as it is", 415)
    too_large = Refusal(f"the body: has more than {limits.body_bytes:,} bytes; shorten it", 413, "body_too_large")
    if int(request.headers.get("content-length", 0)) > limits.body_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                content += part
                if len(content) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise Refusal(f"the body: did not arrive within {limits.body_s:g} s; send it at once", 408) from None
    return bytes(content)


class Writer:
    """Answers in OpenAI's form, whole or in pieces; `before`: answers to other prompts, which usage counts too."""

    def __init__(self, kind: Kind, service: Service, body: Body, seed: int, before: Sequence[Sequence[Choice]]):
        self._chat, self._alternatives, self._before = kind == "chat", body.alternatives, before
        self._tokenizer = service.model.tokenizer
        self._object = "chat.completion" if self._chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model or service.name,
        }
        self._seed = {"pasta": {"seed": seed}}
        options = body.stream_options  # where usage is asked for, pieces before it have it as null
        self._no_usage = {"usage": None} if options is not None and options.include_usage else {}
        self._called: set[tuple[int, int]] = set()  # answers and numbers of calls whose names were sent

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response to a request that does not stream."""
        answers = []
        for index, choice in enumerate(choices):
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            calls = [call | {"type": "function"} for call in calls_of(choice)]
            if begun := calls[:1] + [call for call in calls[1:] if call["function"]["arguments"]]:
                message |= {"content": None, "tool_calls": begun}
            text = {"message": message} if self._chat else {"text": choice.text}
            end = {"finish_reason": choice.finish_reason, "logprobs": self._logprobs(choice), "pasta": choice.about()}
            answers.append({"index": index, **text, **end})
        counts = usage(*self._before, choices)
        return self._head | {"object": self._object, "choices": answers, "usage": counts} | self._seed

    def opening(self, index: int, choice: Choice) -> dict[str, Any]:
        """The first piece of an answer."""
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        if calls := calls_of(choice):
            named = calls if choice.threads else calls[:1]  # others with their first text
            self._called |= {(index, number) for number in range(len(named))}
            calls = [call | {"index": number, "type": "function"} for number, call in enumerate(named)]
            delta |= {"content": None, "tool_calls": calls}
        return self._piece(index, delta, "", None) | self._seed

    def piece(self, index: int, delta: Delta, choice: Choice) -> dict[str, Any]:
        """A piece of an answer."""
        if (calls := calls_of(choice)) and delta.pasta is None:
            call = calls[delta.part] | {"type": "function"}
            call["function"] |= {"arguments": delta.text}
            if (index, delta.part) in self._called:
                call = {"function": {"arguments": delta.text}}
            self._called.add((index, delta.part))
            return self._piece(index, {"tool_calls": [call | {"index": delta.part}]}, "", None)
        more = {} if delta.pasta is None else {"pasta": delta.pasta}
        return self._piece(index, {"content": delta.text} | more, delta.text, None, {} if self._chat else more)

    def closing(self, index: int, choice: Choice) -> dict[str, Any]:
        """The last piece of an answer; where the others were of threads, with the arguments of its calls."""
        more = {"logprobs": self._logprobs(choice), "pasta": choice.about()}
        arguments = [call["function"]["arguments"] for call in calls_of(choice)]  # their names were in the first piece
        calls = [{"index": n, "function": {"arguments": text}} for n, text in enumerate(arguments)]
        delta = {"tool_calls": calls} if calls and choice.threads else {}
        return self._piece(index, delta, "", choice.finish_reason, more)

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if self._alternatives is None or choice.result is None:
            return None
        tokens = choice.drawn(self._tokenizer)
        return (logprobs.of_chat if self._chat else logprobs.of_text)(tokens, self._tokenizer, self._alternatives)

    def usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The piece after all answers, if it was asked for."""
        return self._head | {"object": self._chunk, "choices": [], "usage": usage(*self._before, choices)}

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self._chat else self._object

    def _piece(
        self, index: int, delta: dict[str, Any], text: str, finish: str | None, more: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        said = {"delta": delta} if self._chat else {"text": text}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": finish} | (more or {})
        return self._head | {"object": self._chunk, "choices": [choice]} | self._no_usage


def calls_of(choice: Choice) -> list[dict[str, Any]]:
    """The calls of functions that an answer is; none: it is text."""
    if not isinstance(choice, FieldsChoice) or choice.structure.parts[0].function is None:
        return []
    calls = zip(choice.call_ids, choice.structure.parts, choice.texts, strict=True)
    return [{"id": id, "function": {"name": part.function.name, "arguments": text}} for id, part, text in calls]


async def events_of(session: Session, writer: Writer, body: Body) -> AsyncIterator[bytes]:
    """The events of a stream."""
    for index, choice in enumerate(session.choices):
        yield event(writer.opening(index, choice))
    try:
        async for index, deltas in session.deltas():
            choice = session.choices[index]
            pieces = [writer.piece(index, delta, choice) for delta in deltas]
            if choice.ended:
                closing = functools.partial(writer.closing, index, choice)  # many scores take a while
                pieces.append(closing() if body.alternatives is None else await asyncio.to_thread(closing))
            yield b"".join(map(event, pieces)) or SILENT
    except Refusal as refusal:
        yield event(refusal.body())
        return
    options = body.stream_options
    if options is not None and options.include_usage:
        yield event(writer.usage(session.choices))
    yield b"data: [DONE]\n\n"


async def refused(_: Request, error: PastaError) -> Response:
    """A refusal, or a mistake of the client's that was found deeper down."""
    refusal = error if isinstance(error, Refusal) else Refusal(str(error))
    headers = {"Retry-After": str(refusal.retry_s)} if refusal.retry_s else {}
    return as_json(refusal.body(), refusal.status, headers)


async def not_routed(request: Request, error: HTTPException) -> Response:
    """A path or a method that does not exist."""
    meant = f"/v1{request.url.path}"
    exists = any(isinstance(route, Route) and route.path == meant for route in request.app.routes)
    no_path = f"no such path; did you mean {meant}?" if exists else "no such path; the API is under /v1"
    message = {404: no_path, 405: "wrong method for this path"}
    refusal = Refusal(message.get(error.status_code, error.detail), error.status_code)
    return as_json(refusal.body(), error.status_code, dict(error.headers or {}))


async def failed(_: Request, __: Exception) -> Response:
    """A defect; the guard logs its place."""
    return as_json(Refusal("a defect of the server; its log says where", 500, "internal_error").body(), 500)


async def left(_: Request, __: ClientDisconnect) -> Response:
    """The client left before its request was read, or while it was answered."""
    return Response(status_code=CLIENT_LEFT)


HANDLERS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    Refusal: refused,
    PastaError: refused,
    HTTPException: not_routed,
    ClientDisconnect: left,
    Exception: failed,
}
