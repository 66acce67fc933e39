"""The Python API: load a model, answer prompts, stream answers. Its names are also those of `pasta_jax` itself."""

import base64
import contextlib
import dataclasses
import html
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import overload

from jax.sharding import Mesh
from rich.console import Console

from pasta_jax.decode import generate as decoding
from pasta_jax.decode.request import Event, Request, Result, template
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.decode.stop_texts import Reading, Stops, stop_texts
from pasta_jax.decode.trace import Thread, Trace
from pasta_jax.device import compilation_cache
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import Filled, Reply, ask_all, fill_all
from pasta_jax.fields.form import Value as Value
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import AskOptions, FillOptions
from pasta_jax.fields.types import schema_of
from pasta_jax.files.hub import is_id
from pasta_jax.files.validated import Lanes, Threads, require_unicode
from pasta_jax.progress import break_silence
from pasta_jax.runs import settings
from pasta_jax.view.picture import picture
from pasta_jax.view.terminal import answer_view
from pasta_jax.weights.load import PACKAGED
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load

Message = tuple[str, str] | Mapping[str, object]  # (role, text) or {"role": ..., "content": ...}
Prompt = str | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation that ends with the user

WIDTHS = (2, 4)  # row counts a step may use besides 1 and `rows`
MOST_LANES = 8  # prompts decoded at a time unless `lanes` is passed
STREAM_STEPS = 4  # steps between two looks at the device while events are streamed


@dataclasses.dataclass(frozen=True)
class Options(RequestSettings):
    """How prompts are answered: these, `max_tokens`, `sequential`, and the rules of pasta_jax/weights/rules.py."""

    system: str = ""  # system message; empty: the model family's default
    stop: Stops = None  # a text, or up to four: an answer ends before the first of them
    chat: bool = True  # False: continue a text prompt as it is instead of putting it into the chat template
    rows: Threads = 8  # threads of a prompt decoded at a time
    lanes: Lanes | None = None  # prompts decoded at a time; None: all, but at most MOST_LANES


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """The answer to one prompt. `print` shows its text, `show` its threads over time."""

    index: int  # of its prompt
    text: str  # in reading order, without tags
    finish_reason: str  # stop or length
    trace: Trace  # every token with its thread, step and position

    @property
    def threads(self) -> list[Thread]:
        """Main and the chunks it forked: topic, promised and real length, first and last step."""
        return self.trace.threads()

    def text_of(self, thread: int) -> str:
        """What one thread wrote, main's topics aside; thread 0 is main."""
        return self.trace.text_of(thread)

    def show(self) -> None:
        """Display the answer and a timeline of its threads: a picture in a notebook, coloured text on a terminal."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if hasattr(shell, "kernel"):
            ipython.display.display(self)
            return
        console = Console(highlight=False)
        console.print(answer_view(self.trace, console))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, finish_reason={self.finish_reason!r}, threads={len(self.trace.closed)})"

    def _repr_svg_(self) -> str:
        return picture(self.trace)

    def _repr_html_(self) -> str:
        # As an image: inline, the style sheet of the SVG would apply to the whole notebook.
        data = base64.b64encode(picture(self.trace).encode()).decode()
        return f'<img alt="{html.escape(self.text)}" src="data:image/svg+xml;base64,{data}">'


def load_model(
    model: str | os.PathLike[str],
    adapter: str | os.PathLike[str] | None = None,
    *,
    drafter: str | os.PathLike[str] | None = None,
    policy: str = "",
    constant: int = 40,
    dtype: str | None = None,
    only_decoding: bool = True,
    kernel: bool = True,
    mesh: Mesh | None = None,
) -> Model:
    """Load a model: a preset by name ("smollm2_135m"), a GGUF file, a folder in Hugging Face's layout, or its id.

    An adapter is merged into the weights, or stays beside them if these are blocks. A drafter, that of an adapter of
    this project by its name or a folder of launch.train_drafter, guesses next tokens: answers stay the same, in fewer
    steps. `policy` (and `constant`) state which position policy the model must have been trained with; empty accepts
    any. On one CPU, quantised GGUF weights are used directly ("q4"); otherwise the dtype defaults to float32 on a CPU
    and bfloat16 elsewhere ("platform"). "q8" rounds weights to 8 bits. By default, weights are laid out for inference;
    pass `only_decoding=False` to train or export them, in the platform's dtype. With `kernel=False` they are laid out
    for XLA's products instead of our CPU kernels. A `mesh`, such as pasta_jax.models.sharding.make_mesh(data=1,
    model=8), divides them over several devices.
    """
    if not isinstance(model, str | os.PathLike):
        raise PastaError(f"model {model!r}: expected a preset, a path or an id")
    name = os.path.expanduser(model)
    if name not in PACKAGED and not os.path.exists(name) and not is_id(name) and "://" not in name:
        raise PastaError(
            f"model {name!r}: neither a preset nor a file or folder; pass its path, or one of {', '.join(PACKAGED)}"
        )
    named = {"adapter": adapter, "drafter": drafter}
    for key, path in named.items():
        if not isinstance(path, str | os.PathLike | None):
            raise PastaError(f"{key} {path!r}: expected a path or a name")
    if drafter is not None and not only_decoding:
        raise PastaError("drafter: only decoding uses one; leave it out, or only_decoding as it is")
    if not isinstance(mesh, Mesh | None):
        raise PastaError(f"mesh {mesh!r}: expected what make_mesh returns")
    given = {key: "" if path is None else os.fspath(path) for key, path in named.items()}
    given |= {"preset" if name in PACKAGED else "path": name, "policy": policy, "constant": constant, "kernel": kernel}
    source = settings.read(given | {"dtype": dtype or "auto"}, ModelSource, "load_model")
    with _compiling_is_announced():
        return load(source, dtype=dtype, only_decoding=only_decoding, mesh=mesh)


@overload
def generate(model: Model, prompt: Prompt, **options: object) -> Answer: ...  # type: ignore[overload-overlap]
@overload
def generate(model: Model, prompt: Sequence[Prompt], **options: object) -> list[Answer]: ...
def generate(model: Model, prompt: Prompt | Sequence[Prompt], **options: object) -> Answer | list[Answer]:
    """Answer a prompt, or each of a list of prompts.

    A prompt is text (a user's question), a list of token ids, or a list of messages, either (role, text) pairs or
    {"role": ..., "content": ...}. Options, with their defaults: max_tokens=512, sequential=None (decode in parallel if
    the model was trained to), system="", stop=None, chat=True, rows=8, lanes=None, and the rules of an answer, such as
    temperature, top_k, top_p, seed and max_topic_words (docs/API.md has them all). A rule that is None is what the
    model's generation_config.json states, else its default: greedy decoding with the language's own rules. Equal
    prompts with equal options have equal answers.
    """
    single = _is_single(prompt)
    requests, config, stops = _requests(model, [prompt] if single else prompt, options)
    with _compiling_is_announced():
        answers = [_answer(result) for result in decoding.generate(model, requests, config, stops)]
    return answers[0] if single else answers


def stream(model: Model, prompt: Prompt | Sequence[Prompt], **options: object) -> Generator[Event | Answer, None, None]:
    """Like `generate`, but yield an Event for each token as it is decoded, and each Answer when it is finished.

    Events of several threads and prompts are interleaved: `event.request` is the index of the prompt, `event.thread`
    the thread (0 is main), `event.text` what the token adds to the text of its thread.
    """
    requests, config, stops = _requests(model, [prompt] if _is_single(prompt) else prompt, options)
    items = decoding.stream(model, requests, config, STREAM_STEPS, stops=stops)

    def answered() -> Generator[Event | Answer, None, None]:
        with _compiling_is_announced():
            yield from (_answer(item) if isinstance(item, Result) else item for item in items)

    return answered()


def stream_text(model: Model, prompt: Prompt, **options: object) -> Generator[str, None, None]:
    """Like `generate`, but yield the text in reading order, in pieces, as soon as what precedes them is known."""
    if not _is_single(prompt):
        raise PastaError("prompt: stream_text answers one prompt; use stream for a list of them")
    items = stream(model, [prompt], **options)

    def pieces() -> Generator[str, None, None]:
        reading = Reading(model.tokenizer.tags, stop_texts(options.get("stop")))
        for item in items:
            if text := reading.push(item) if isinstance(item, Event) else item.text[len(reading.text) :]:
                yield text

    return pieces()


@overload
def fill(model: Model, context: str, fields: object, **options: object) -> Filled: ...  # type: ignore[overload-overlap]
@overload
def fill(model: Model, context: Sequence[str], fields: object, **options: object) -> list[Filled]: ...
def fill(  # type: ignore[misc]  # `after` is one of the options
    model: Model,
    context: str | Sequence[str],
    fields: object,
    *,
    after: Mapping[str, Sequence[str]] | None = None,
    **options: object,
) -> Filled | list[Filled]:
    """Read a schema's fields out of a context, or of each of a list of contexts: all fields in parallel.

    `fields` is a mapping of names to types ({"name": "who it is about", "year": int}), a dataclass, a TypedDict, a
    pydantic model, or a JSON schema. The context is computed once; each field is a thread that sees it and itself, at
    the positions that it would have alone, and writes only what its type allows. `after` maps a field to those that it
    reads first. Options, with their defaults: max_tokens=128 (of a field), rows=16, lanes=1, system="", instruction,
    fork=True (False: one text, token after token), fork_items=False (True: each item of a list of objects is a thread),
    and the rules of an answer (docs/API.md).
    """
    chosen, single = settings.read(options, FillOptions, "fill"), isinstance(context, str)
    contexts = _texts(model, [context] if single else context, "fill.context")
    require_unicode(chosen.system + chosen.instruction, "fill.system or fill.instruction")
    form = form_of(schema_of(fields))
    with _compiling_is_announced():
        filled = sorted(fill_all(model, contexts, form, chosen, after or {}), key=lambda one: one.index)
    return filled[0] if single else filled


def ask(model: Model, context: str, questions: Sequence[str], **options: object) -> list[Reply]:
    """Answer several questions about one context in parallel; the context is computed once. Options as for `fill`."""
    chosen = settings.read(options, AskOptions, "ask")
    [context], questions = _texts(model, [context], "ask.context"), _texts(model, questions, "ask.questions")
    require_unicode(chosen.system, "ask.system")
    with _compiling_is_announced():
        return ask_all(model, context, questions, chosen)


def _texts(model: Model, values: object, name: str) -> list[str]:
    """The texts that a model reads."""
    _require_model(model)
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise PastaError(f"{name}: expected texts, got {type(values).__name__}; pass a list")
    for text in (values := list(values)):
        if not isinstance(text, str):
            raise PastaError(f"{name}: expected text, got {type(text).__name__}")
        require_unicode(text, name)
    return values


def _require_model(model: object) -> None:
    if not isinstance(model, Model):
        raise PastaError(f"model {model!r}: expected what load_model returns")


@contextlib.contextmanager
def _compiling_is_announced() -> Iterator[None]:
    """Say it from time to time while programs compile."""
    compilation_cache.announce()
    with break_silence(""):
        yield


def _is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt, not a list of them."""
    prompt = _listed(prompt)
    if isinstance(prompt, str | Mapping) or not hasattr(prompt, "__getitem__"):
        return True
    return len(prompt) > 0 and (isinstance(prompt[0], Integral | Mapping) or _is_pair(prompt[0]))


def _listed(prompt: object) -> object:
    """Arrays of ids, of NumPy or JAX, as lists."""
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)


def _requests(
    model: Model, prompts: Sequence[Prompt], options: dict[str, object]
) -> tuple[list[Request], DecodeConfig, tuple[str, ...]]:
    """Requests, how to decode them, and the texts that end their answers."""
    _require_model(model)
    chosen = settings.read(options, Options, "generate")
    sequential = model.positions is None if chosen.sequential is None else chosen.sequential
    unasked = template(chosen, model.defaults, sequential)
    requests = []
    for number, prompt in enumerate(prompts):
        try:
            ids, text = _encode(model, prompt, chosen.chat, chosen.system)
        except PastaError as error:
            raise PastaError(f"prompt {number}: {error}") from None
        requests.append(dataclasses.replace(unasked, prompt_ids=tuple(ids), text=text))
    lanes = chosen.lanes or max(1, min(len(requests), MOST_LANES))
    draft = "drafter" if "drafter" in model.params else "off"
    config = DecodeConfig(lanes=lanes, rows=chosen.rows, slots=0, widths=WIDTHS, draft=draft)
    return requests, config, stop_texts(chosen.stop)


def _encode(model: Model, prompt: Prompt, chat: bool, system: str) -> tuple[list[int], str]:
    """A prompt's ids, and its text for traces and pictures."""
    prompt = _listed(prompt)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PastaError("the text is blank; write a question")
        if not chat:
            _refuse_system(system)
            require_unicode(prompt, "the text")
            return model.tokenizer.prompt_ids(prompt), prompt
        messages = [("user", prompt)]
    elif isinstance(prompt, bytes | bytearray):
        raise PastaError("is bytes; decode it into a text")
    elif hasattr(prompt, "__len__") and all(isinstance(item, Integral) for item in prompt):
        _refuse_system(system)
        ids = [int(item) for item in prompt]
        end = max(model.tokenizer.vocab_size, model.tokenizer.tags.end)  # what follows pads the embedding
        if unknown := [id for id in ids if not 0 <= id < end]:
            raise PastaError(f"token id {unknown[0]} is not below {end}; use {model.name}'s tokenizer")
        return ids, model.tokenizer.decode(ids)
    elif hasattr(prompt, "__len__"):
        messages = [_pair(number, message) for number, message in enumerate(prompt, start=1)]
    else:
        raise PastaError(f"expected text, token ids or messages, got {type(prompt).__name__}")
    if system and messages[0][0] != "system":
        messages = [("system", system), *messages]
    elif system not in ("", messages[0][1]):
        raise PastaError("system: the conversation has a system message of its own; leave one out")
    for role, text in messages:
        require_unicode(text, f"the {role} message")
    return model.tokenizer.chat(messages), messages[-1][1]


def _refuse_system(system: str) -> None:
    if system:
        raise PastaError("system: needs the chat template, which this prompt is not put into; write it into the prompt")


def _pair(number: int, message: Message) -> tuple[str, str]:
    """A message as (role, text)."""
    if _is_pair(message):
        return message
    if isinstance(message, Mapping):
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return role, content
    raise PastaError(f'message {number}: expected (role, text) or {{"role": ..., "content": ...}} with text in both')


def _answer(result: Result) -> Answer:
    return Answer(result.request, result.text, result.finish_reason, result.trace)
