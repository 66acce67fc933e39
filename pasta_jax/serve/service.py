"""What a server serves: a model, its engine, defaults and limits; from a body to requests for the engine."""

import asyncio
import contextvars
import dataclasses
import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pasta_jax.decode.engine import Engine
from pasta_jax.decode.generate import require_rows, slots_for
from pasta_jax.decode.guests import require_room
from pasta_jax.decode.request import SEEDS, Request
from pasta_jax.errors import PastaError
from pasta_jax.models.sharding import mesh_of
from pasta_jax.serve.log import record
from pasta_jax.serve.metrics import Metrics
from pasta_jax.serve.protocol import Body, Kind, Refusal, blamed, conversation, prompt_of
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.serve.structured import Structure
from pasta_jax.tokenizers.tools import RESULT
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import filled

Made = TypeVar("Made")


class Preparing:
    """Prepares requests of fields in threads of its own: a schema may take seconds, and others don't wait."""

    def __init__(self, most: int):
        self._most, self._open, self._threads = most, 0, ThreadPoolExecutor(2)

    def require_room(self) -> None:
        """Refuse a request that begins while so many wait already."""
        if self._open >= self._most:
            raise Refusal("too many requests of fields wait; try again later", 429, "queue_full", retry_s=1)

    async def __call__(self, work: Callable[..., Made], *of: Any) -> Made:
        """What `work` makes."""
        self._open += 1
        try:
            call = functools.partial(contextvars.copy_context().run, work, *of)
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._open -= 1


@dataclasses.dataclass(frozen=True, eq=False)
class Service:
    """Everything that the endpoints share."""

    name: str  # of the model, for clients
    model: Model
    engine: Engine
    metrics: Metrics
    settings: ServeSettings
    template: Request  # the default of every option
    adapters: dict[str, Request] = dataclasses.field(default_factory=dict)  # by name: templates with an adapter
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    @functools.cached_property
    def preparing(self) -> "Preparing":
        """What prepares requests of fields."""
        return Preparing(self.settings.decoding.lanes + self.settings.limits.queue)

    def cards(self) -> list[dict[str, Any]]:
        """The model, by itself and with each adapter, as /v1/models lists them."""
        about = {"object": "model", "created": self.created, "owned_by": "pasta_jax"}
        return [{"id": name} | about for name in (self.name, *self.adapters)]

    def template_of(self, name: str | None) -> Request:
        """The defaults of a model that is served; none means the one without an adapter. Others are refused."""
        templates = {None: self.template, self.name: self.template, **self.adapters}
        if name not in templates:
            names = " or ".join(repr(known) for known in (self.name, *self.adapters))
            raise Refusal(f"model {name!r}: not served here; use {names}", 404, "model_not_found", param="model")
        return templates[name]

    def count_of(self, body: Body) -> int:
        """How many answers a body asks for; more than there may be are refused."""
        count, limits = body.n or 1, self.settings.limits
        if count > limits.choices:
            raise Refusal(f"n: {count}, at most {limits.choices} here; send several requests", param="n")
        if count > (room := self.settings.decoding.lanes + limits.queue):
            raise Refusal(f"n: {count}, but this server has room for {room}; send several requests", param="n")
        return count

    def requests_for(self, body: Body, kind: Kind, structure: Structure | None = None) -> list[Request]:
        """One request for each answer that a body asks for. Reads the whole prompt, so call it in a thread."""
        template = self.template_of(body.model)
        if template.adapter:
            record().adapter = body.model.removeprefix(f"{self.name}:")
        count, decoding, limits = self.count_of(body), self.settings.decoding, self.settings.limits
        ids, text = self._prompt(body, kind, structure)
        sequential = body.extension.sequential
        if sequential is not None:
            with blamed(None, "pasta"):
                require_rows(decoding, sequential)
        base = dataclasses.replace(
            template,
            prompt_ids=ids,
            max_tokens=body.max_completion_tokens or body.max_tokens or template.max_tokens,
            sequential=template.sequential if sequential is None else sequential,
            rules=filled(body.rules, template.rules),
            text=text,
            name="the prompt",
            bias=body.biases(self.model.tokenizer),
            scored=body.alternatives is not None,
            drafts=body.extension.draft,
        )
        if structure is not None:
            with blamed("invalid_schema", "tools" if body.tools else "response_format"):
                if mesh_of(self.model.params) is not None:
                    raise PastaError("structured answers: on one device only")
                structure.compile(self.model, limits.room)
        with blamed("context_length_exceeded", "messages" if kind == "chat" else "prompt"):
            base = base if structure is None else structure.request(self.model, ids, base, decoding.slots)
            slots_for(self.model, [base], decoding)
        if structure is not None:
            with blamed("invalid_schema", "tools" if body.tools else "response_format"):
                require_room(base.automaton, limits.room)
        seed = self.settings.request.seed if body.seed is None else body.seed
        base = base.with_rules(seed=secrets.randbelow(SEEDS) if seed is None else seed % SEEDS)
        apart = max(1, len(base.guests))  # the fields of an answer have consecutive seeds themselves
        return [base.with_seed(number * apart) for number in range(count)]

    def _prompt(self, body: Body, kind: Kind, structure: Structure | None) -> tuple[tuple[int, ...], str]:
        """The ids of the prompt, and its text for traces."""
        tokenizer = self.model.tokenizer
        if kind == "chat":
            messages = conversation(body.messages)
            if structure is not None and structure.question:
                kind, last = messages[-1]
                if kind == RESULT:
                    messages.append(("user", structure.question))
                else:
                    messages[-1] = (kind, f"{last}\n\n{structure.question}")
            with blamed(None, "messages"):
                return tuple(tokenizer.chat(messages)), messages[-1][1]
        prompt = prompt_of(body)
        if isinstance(prompt, str):
            with blamed(None, "prompt"):
                return tuple(tokenizer.prompt_ids(prompt)), prompt
        for id in prompt:
            if id >= tokenizer.vocab_size or tokenizer.tags.is_tag(id):
                raise Refusal(f"prompt: id {id} is no id of a text of this model", param="prompt")
        return tuple(prompt), tokenizer.decode(prompt)
