"""OpenAI's Responses API: an answer as items, one of each chunk and of each stretch of main between them.

Only main forks, so items begin in reading order: joined by their index, as every client joins them, they are the
answer. While it is decoded, events of several items alternate: a client that shows items side by side shows threads.
Nothing is stored: a conversation goes on with the items that a client sends back.
"""

import contextlib
import dataclasses
import itertools
import re
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pasta_jax.decode.request import Request
from pasta_jax.files.validated import Positive, Share
from pasta_jax.serve import logprobs
from pasta_jax.serve.choice import Choice, Delta, usage
from pasta_jax.serve.delivery import SILENT, event
from pasta_jax.serve.protocol import IGNORED, ROLES, Alternatives, Body, Extension, Message, Refusal, Seed, checked
from pasta_jax.serve.session import Session
from pasta_jax.serve.structured import JsonSchema, ResponseFormat
from pasta_jax.tokenizers.tokenizer import Tokenizer

# Fields that ask for nothing at these values; at others they are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "parallel_tool_calls": (None, False, True),
    "previous_response_id": (None,),
    "prompt": (None,),
    "stream_options": (None, {}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "truncation": (None, "disabled"),
}
Metadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
OWN_FIELDS = {"messages": "input", "response_format": "text"}  # for chat completions'


class InputPart(Struct):
    """A part of an item's content."""

    type: Literal["input_text", "output_text"]
    text: str


class TextFormat(Struct, forbid_unknown_fields=True):
    """What an answer's text is: `response_format` of chat completions, in another shape."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    """The text of an answer."""

    format: TextFormat | None = None
    verbosity: str | None = None  # ignored


class InputItem(Struct):
    """A message of the conversation, or an item of an earlier answer."""

    role: Literal[tuple(ROLES)]
    content: str | list[InputPart]
    type: Literal["message"] = "message"
    id: str | None = None  # an item that this server wrote has one

    @property
    def text(self) -> str:
        """Its content, whose parts are joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


@dataclasses.dataclass(frozen=True)
class ResponseBody:
    """The fields of a request that change its response."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    text: TextOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Alternatives | None = None
    metadata: Metadata | None = None
    seed: Seed | None = None  # ours: the Responses API has none
    pasta: Extension | None = None

    @property
    def is_scored(self) -> bool:
        """Whether it includes log-probabilities. The content of reasoning would be that of items that never come."""
        return "message.output_text.logprobs" in (self.include or ())

    def as_chat(self) -> Body:
        """The same request to chat completions."""
        items = [InputItem("user", self.input)] if isinstance(self.input, str) else self.input
        messages = [Message("system", self.instructions)] if self.instructions else []
        for item, before in zip(items, [None, *items], strict=False):
            if before is not None and (item.role, before.role) == ("assistant", "assistant") and item.id and before.id:
                messages[-1] = Message("assistant", messages[-1].text + item.text)  # of one answer
            else:
                messages.append(Message(item.role, item.text))
        wanted = self.text and self.text.format
        schema = None if wanted is None or wanted.schema is None else JsonSchema(wanted.name, wanted.schema)
        return Body(
            model=self.model,
            messages=messages,
            response_format=wanted and ResponseFormat(wanted.type, schema),
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=self.is_scored,
            top_logprobs=self.top_logprobs,
            seed=self.seed,
            pasta=self.pasta,
        )


@contextlib.contextmanager
def in_own_fields() -> Iterator[None]:
    """What is refused inside names this API's fields, not those of chat completions."""
    try:
        yield
    except Refusal as refusal:
        if refusal.param not in OWN_FIELDS:
            raise
        own = OWN_FIELDS[refusal.param]
        message = re.sub(f"^{refusal.param}\\b", own, str(refusal))
        raise Refusal(message, refusal.status, refusal.code, own) from None


def read_response_body(content: bytes) -> ResponseBody:
    """The body of a request, checked; errors name the field."""
    body = checked(content, ResponseBody, NEUTRAL, IGNORED | {"reasoning"})
    if not body.input:
        raise Refusal("input: missing or empty; write a question", param="input")
    if body.top_logprobs and not body.is_scored:
        fix = "set it to ['message.output_text.logprobs']"
        raise Refusal(f"top_logprobs: needs include; {fix}", param="top_logprobs")
    wanted = body.text and body.text.format
    if wanted and wanted.type == "json_schema" and wanted.schema is None:
        raise Refusal("text.format.schema: missing; add one", param="text")
    return body


@dataclasses.dataclass
class Item:
    """A stretch of one thread."""

    index: int
    about: dict[str, Any]  # its thread, with topic and promised length of a chunk
    text: str = ""
    status: str = "in_progress"
    logprobs: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # known at the end
    id: str = dataclasses.field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def fields(self) -> dict[str, Any]:
        """As OpenAI's output message."""
        content = [] if self.status == "in_progress" else [self.part()]
        return {
            "id": self.id, "type": "message", "role": "assistant", "status": self.status, "content": content,
            "pasta": self.about,
        }  # fmt: skip

    def part(self) -> dict[str, Any]:
        """Its one content part."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}


class ResponseWriter:
    """An answer in the form of a response, whole or as events."""

    def __init__(self, model: str, body: ResponseBody, request: Request, choice: Choice, tokenizer: Tokenizer):
        self._choice, self._items, self._tokenizer = choice, list[Item](), tokenizer
        self._alternatives = body.as_chat().alternatives
        self._main: Item | None = None
        self._chunks: dict[int, Item] = {}
        self._numbers = itertools.count()
        rules, text = request.rules, body.text or TextOptions(TextFormat("text"))
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time()), "model": model,
            "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {}, "parallel_tool_calls": True, "previous_response_id": None, "store": False,
            "temperature": rules.temperature, "text": msgspec.to_builtins(text), "tool_choice": "auto", "tools": [],
            "top_p": rules.top_p, "truncation": "disabled", "error": None, "incomplete_details": None,
        }  # fmt: skip
        self._seed = rules.seed

    def whole(self) -> dict[str, Any]:
        """The response to a request that does not stream."""
        self._score()
        ended = self._choice.result is not None and self._choice.finish_reason == "stop"
        about = {"pasta": {"seed": self._seed} | self._choice.about()}
        items = {"output": [item.fields() for item in self._items], "usage": self._usage()}
        if ended:
            return self._head | {"status": "completed"} | items | about
        details = {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._head | {"status": "incomplete"} | details | items | about

    def _score(self) -> None:
        """Give each item the log-probabilities of its tokens, if they were asked for."""
        if self._alternatives is None or self._choice.result is None:
            return
        tokens, end = deque(self._choice.drawn(self._tokenizer)), 0
        for item in self._items:
            end, mine = end + len(item.text), []
            while tokens and tokens[0].thread == item.about["thread"] and tokens[0].end <= end:
                mine.append(tokens.popleft())
            item.logprobs = logprobs.of_chat(mine, self._tokenizer, self._alternatives)["content"]

    def _usage(self) -> dict[str, Any] | None:
        if self._choice.result is None:
            return None
        of = usage([self._choice])
        return {
            "input_tokens": of["prompt_tokens"],
            "input_tokens_details": of["prompt_tokens_details"] | {"cache_write_tokens": 0},  # OpenAI bills for these
            "output_tokens": of["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": of["total_tokens"],
        }

    async def events(self, session: Session) -> AsyncIterator[bytes]:
        """The events of a stream."""
        opening = self._head | {"status": "in_progress", "output": [], "usage": None}
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=opening)
        try:
            async for _, deltas in session.deltas():
                yield b"".join(made for delta in deltas for made in self.push(delta)) if deltas else SILENT
        except Refusal as refusal:
            yield error_event(refusal, next(self._numbers))
            return
        yield b"".join(self.finish())
        response = self.whole()
        yield self._event(f"response.{response['status']}", response=response)

    async def collect(self, session: Session) -> None:
        """Read the whole answer."""
        async for _, deltas in session.deltas():
            for delta in deltas:
                list(self.push(delta))
        list(self.finish())

    def push(self, delta: Delta) -> Iterator[bytes]:
        """The events of what a thread adds."""
        about = delta.pasta or {"thread": 0}  # of a structured answer, whose text comes in order
        thread = about["thread"]
        if thread == 0:
            if delta.text:
                if self._main is None:
                    self._main = yield from self._begin({"thread": 0})
                yield from self._add(self._main, delta.text)
            return
        if thread not in self._chunks:
            if self._main is not None:
                yield from self._end(self._main)
                self._main = None
            known = ("thread", "topic", "promised")
            self._chunks[thread] = yield from self._begin({name: about[name] for name in known})
        if delta.text:
            yield from self._add(self._chunks[thread], delta.text)
        if about.get("ended"):
            yield from self._end(self._chunks[thread])

    def finish(self) -> Iterator[bytes]:
        """The events after the last token."""
        if not self._items:  # clients read the first one's text
            self._main = yield from self._begin({"thread": 0})
        for item in self._items:
            if item.status == "in_progress":
                cut_off = item is not self._main or self._choice.finish_reason != "stop"
                yield from self._end(item, "incomplete" if cut_off else "completed")

    def _begin(self, about: dict[str, Any]) -> Iterator[bytes]:
        item = Item(len(self._items), about)
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=item.index, item=item.fields())
        yield self._of_part("response.content_part.added", item, part=item.part())
        return item

    def _add(self, item: Item, text: str) -> Iterator[bytes]:
        item.text += text
        yield self._of_part("response.output_text.delta", item, delta=text, logprobs=[])

    def _end(self, item: Item, status: str = "completed") -> Iterator[bytes]:
        item.status = status
        yield self._of_part("response.output_text.done", item, text=item.text, logprobs=[])
        yield self._of_part("response.content_part.done", item, part=item.part())
        yield self._event("response.output_item.done", output_index=item.index, item=item.fields())

    def _of_part(self, name: str, item: Item, **fields: Any) -> bytes:
        return self._event(name, item_id=item.id, output_index=item.index, content_index=0, **fields)

    def _event(self, name: str, **fields: Any) -> bytes:
        return event({"type": name, "sequence_number": next(self._numbers)} | fields, name)


def error_event(refusal: Refusal, number: int) -> bytes:
    """The last event of a stream that fails."""
    error = refusal.body()["error"]
    about = {name: error[name] for name in ("code", "message", "param")}
    return event({"type": "error", "sequence_number": number} | about, "error")
