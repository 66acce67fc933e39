"""OpenAI's request bodies as types: what is supported, what is ignored, and what is refused by name."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from pasta_jax.decode.extras import BIASES, TOP
from pasta_jax.decode.stop_texts import Stops, stop_texts
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import Bias, Count, Penalty, Positive, Share, located, parse_json
from pasta_jax.serve.structured import NamedTool, ResponseFormat, Structure, Tool, ToolChoice, structure_of
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.tokenizers.tools import ARGUMENTS, NAME, RESULT
from pasta_jax.weights.rules import MODELS_OWN, Given, optional

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Fields that ask for nothing at these values. At others they are refused: an answer that ignores them would be wrong.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "web_search_options": (None,),
}
STRUCTURE = ("response_format", "tools", "tool_choice")  # which only chat completions have
# Fields that change no answer here.
IGNORED = {
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning_effort", "safety_identifier", "service_tier", "store", "user", "verbosity",
}  # fmt: skip

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
OURS = [name for name in MODELS_OWN if name not in ("temperature", "top_p")]  # which are OpenAI's
Choices = Annotated[int, Meta(ge=1, le=128)]
Alternatives = Annotated[int, Meta(ge=0, le=TOP)]
T = TypeVar("T")


class Refusal(PastaError):
    """A request that is answered with an error of OpenAI's form."""

    def __init__(
        self, message: str, status: int = 400, code: str | None = None, param: str | None = None, retry_s: int = 0
    ):
        super().__init__(message)
        self.status, self.code, self.param, self.retry_s = status, code, param, retry_s

    def body(self) -> dict[str, Any]:
        """The body of the response."""
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@contextlib.contextmanager
def blamed(code: str | None, param: str) -> Iterator[None]:
    """What is wrong inside is this field's fault."""
    try:
        yield
    except PastaError as error:
        raise Refusal(str(error), code=code, param=param) from None


class Part(Struct):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Struct):
    """What an earlier answer called."""

    name: str
    arguments: str  # JSON, if the answer was not cut off


class Call(Struct):
    """A call in an earlier answer."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(Struct):
    """One message of a conversation."""

    role: Literal[(*ROLES, "tool")]
    content: str | list[Part] | None = None  # None: an answer that is calls
    tool_calls: list[Call] | None = None  # of an answer
    tool_call_id: str | None = None  # of a tool's result
    function_call: None = None  # of an older API

    @property
    def text(self) -> str:
        """Its content, whose parts are joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream carries besides its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # ignored


# Our own field, `pasta`: besides these, the rules that OpenAI has no field for.
Extension = msgspec.defstruct(
    "Extension",
    [
        ("threads", bool, False),  # the threads' own text, each with its topic, promised length and step
        ("fork_fields", bool, True),  # the fields of a structured answer are threads; False: one text
        ("sequential", bool | None, None),  # without tags, for comparison; None: as the model was trained
        ("draft", bool, True),  # False: without drafts, on a server that has them
        *optional(*OURS),
    ],
    forbid_unknown_fields=True,
)


@dataclasses.dataclass(frozen=True)
class Body:
    """The fields of a request to either endpoint that have an effect."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[Count | str | list[Count]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stops = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=BIASES)] | None = None
    logprobs: bool | Alternatives | None = None  # of completions: how many alternatives
    top_logprobs: Alternatives | None = None  # of chat completions
    seed: Seed | None = None
    n: Choices | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None  # False: one function at most
    pasta: Extension | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return stop_texts(self.stop)

    @property
    def has_fields(self) -> bool:
        """Whether it asks for an answer of fields."""
        return bool(self.tools and self.tool_choice != "none") or self.is_formatted

    @property
    def is_formatted(self) -> bool:
        """Whether its answer is JSON."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def extension(self) -> Extension:
        """`pasta`, or its defaults."""
        return self.pasta or Extension()

    def structure(self) -> Structure | None:
        """The structure that it asks for; takes up to a second."""
        with blamed("invalid_schema", "tools" if self.tools else "response_format"):
            return structure_of(self.response_format, self.tools or (), self.tool_choice, self.extension.fork_fields)

    @property
    def rules(self) -> Given:
        """The rules it gives, apart from the seed, which is drawn if there is none."""
        ours = {name: getattr(self.extension, name) for name in OURS}
        named = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        return Given(**{name: getattr(self, name) for name in named}, **ours)

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to list beside each token's log-probability; None: no log-probabilities."""
        if self.messages is not None:
            return (self.top_logprobs or 0) if self.logprobs else None
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    def biases(self, tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
        """What is added to the logits of ids of text, or of those that end an answer."""
        pairs = []
        for id, value in (self.logit_bias or {}).items():
            if not (re.fullmatch("0|[1-9][0-9]{0,8}", id) and int(id) < tokenizer.vocab_size):
                raise Refusal(f"logit_bias: {id[:20]!r} is no id of this model; leave it out", param="logit_bias")
            if tokenizer.tags.is_tag(int(id)):
                raise Refusal(f"logit_bias: {id} is a tag, not text; leave it out", param="logit_bias")
            pairs.append((int(id), value))
        return tuple(pairs)


Kind = Literal["chat", "text"]


def read_body(content: bytes, kind: Kind) -> Body:
    """The body of a request to chat completions or completions, checked; errors name the field."""
    neutral = {name: values for name, values in NEUTRAL.items() if kind == "text" or name not in STRUCTURE}
    body = checked(content, Body, neutral | {"prompt" if kind == "chat" else "messages": ()}, IGNORED)
    if body.extension.threads and body.stops:
        problem = "applies to the text in reading order, not to threads; drop stop or pasta.threads"
        raise Refusal(f"stop: {problem}", param="stop")
    if body.logprobs not in (None, False, True) and kind == "chat":
        raise Refusal("logprobs: true or false here; top_logprobs is their number", param="logprobs")
    if body.top_logprobs and not (body.logprobs and kind == "chat"):
        raise Refusal("top_logprobs: needs logprobs, of chat completions; set it to true", param="top_logprobs")
    if body.stops and body.has_fields and (body.is_formatted or body.tool_choice not in (None, "auto")):
        raise Refusal("stop: applies to text, not to fields; leave it out", param="stop")
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    if not body.tools and (named is not None or body.tool_choice == "required"):
        raise Refusal("tool_choice: without tools; add them", param="tool_choice")
    if named is not None and named not in [tool.function.name for tool in body.tools]:
        problem = f"{named!r:.60} is none of the tools; name one of them"
        raise Refusal(f"tool_choice: {problem}", param="tool_choice")
    if body.stream_options is not None and not body.stream:
        raise Refusal("stream_options: applies to streams; set stream to true or leave it out", param="stream_options")
    return body


def checked(content: bytes, cls: type[T], neutral: Mapping[str, tuple[Any, ...]], ignored: set[str]) -> T:
    """A body as a dataclass. A field in `neutral` is refused at other values than those; without any, it is unknown."""
    raw = parse_json(content, "the body", "send one JSON object")
    if not isinstance(raw, dict):
        raise Refusal("the body: is not a JSON object; send one")
    known = {field.name for field in dataclasses.fields(cls)}
    for name, value in raw.items():
        if neutral.get(name):
            if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral[name]):
                raise Refusal(f"{name}: is not supported; leave it out", code="unsupported_parameter", param=name)
        elif name in neutral or name not in known | ignored:
            raise Refusal(f"{name}: unknown field; leave it out", code="unknown_parameter", param=name)
    try:
        return msgspec.convert(raw, cls)
    except msgspec.ValidationError as error:
        place, problem = located(error, cls)
        code = "unknown_parameter" if problem == "unknown key" else None
        raise Refusal(f"{place}: {problem}; correct it", code=code, param=re.split(r"\W", place)[0]) from None


def conversation(messages: Sequence[Message] | None) -> list[tuple[str, str]]:
    """The messages as (role, text), and calls and results as pairs of tokenizers/tools.py."""
    if not messages:
        raise Refusal("messages: missing or empty; send at least a user's message", param="messages")
    pairs: list[tuple[str, str]] = []
    asked, calls, results = 0, list[str](), dict[str, str]()  # the last calls: by which message, ids, results by id

    def require(is_so: bool, number: int, problem: str) -> None:
        if not is_so:
            raise Refusal(f"messages[{number}].{problem}", param="messages")

    def require_results() -> None:
        missing = next((id for id in calls if id not in results), "")
        fix = "add a message of the role tool for each call, right after it"
        require(len(results) == len(calls), asked, f"tool_calls: no result of {missing!r:.60}; {fix}")

    for number, message in enumerate(messages):
        require(bool(message.tool_calls) or message.content is not None, number, "content: missing; add a text")
        if message.role == "tool":
            id, fix = message.tool_call_id, "use one of an assistant's tool_calls right before it"
            require(id in calls, number, f"tool_call_id: {id!r:.60} is no call's id; {fix}")
            require(id not in results, number, f"tool_call_id: {id!r:.60} has a result already; leave this one out")
            results[id] = message.text
            if len(results) == len(calls):
                pairs += [(RESULT, results[id]) for id in calls]
            continue
        require_results()
        asked, calls, results = number, [call.id for call in message.tool_calls or ()], {}
        require(not calls or message.role == "assistant", number, "tool_calls: only an assistant's; leave them out")
        require(len(calls) == len({*calls}), number, "tool_calls: two have the same id; give each its own")
        if message.text or not calls:
            pairs.append((ROLES[message.role], message.text))
        for call in message.tool_calls or ():
            pairs += [(NAME, call.function.name), (ARGUMENTS, call.function.arguments)]
    require_results()
    if pairs[-1][0] != RESULT and not pairs[-1][1].strip():
        raise Refusal("messages: the last text is blank; write a question", param="messages")
    return pairs


def prompt_of(body: Body) -> str | list[int]:
    """The one prompt of a completion: a text, or ids."""
    prompt = body.prompt
    if isinstance(prompt, list) and any(isinstance(part, str | list) for part in prompt):
        if len(prompt) > 1:
            raise Refusal("prompt: several prompts are not supported; send a request for each", param="prompt")
        prompt = prompt[0]
    if not prompt:
        raise Refusal("prompt: missing or empty; write a text", param="prompt")
    return prompt
