"""launch.fill: the fields of a schema for every text of a file, as JSON lines, resumable."""

import contextlib
import dataclasses
import operator
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.answer.prompts import Prompt, read_prompts_file
from pasta_jax.answer.settings import FillSettings
from pasta_jax.answer.show import escaped
from pasta_jax.decode.request import Event
from pasta_jax.device import compilation_cache
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import APART, Filled, Seen, fill_all, prompt_ids, template_of
from pasta_jax.fields.form import fields_of
from pasta_jax.fields.schema import MOST_BYTES, Form, form_of
from pasta_jax.files import fingerprints
from pasta_jax.files.atomic import check_file, refuse_inputs, write_whole
from pasta_jax.files.jsonl import as_line
from pasta_jax.files.validated import AtLeastZero, Count, read_json
from pasta_jax.progress import quiet, say, show, stdout_can_be_drawn_on
from pasta_jax.runs import records
from pasta_jax.view.live import LiveView, following
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import recorded
from pasta_jax.weights.source import load


@dataclasses.dataclass(frozen=True)
class FillRecord:
    """What was filled in for one text, as a line of --output."""

    index: Count
    prompt: str
    value: Any  # without incomplete fields
    incomplete: tuple[str, ...]
    model: str
    prompt_tokens: Count
    tokens: Count
    steps: Count
    prefill_ms: AtLeastZero
    decode_ms: AtLeastZero


def run(settings: FillSettings, schema: Path, prompts_file: Path, output: Path | None) -> list[FillRecord]:
    """Fill in the schema for every text; the same call resumes a stopped run."""
    if output is not None:
        check_file(output, f"--output={output}")
        refuse_inputs({"output": output}, {"schema": schema, "prompts_file": prompts_file})
    if settings.model.drafter:
        raise PastaError("config.model.drafter: fields have no drafts; leave it out")
    form = form_of(read_json(schema, dict[str, Any], 4 * MOST_BYTES, "write a JSON schema"))
    prompts = read_prompts_file(prompts_file)
    compilation_cache.seconds()  # counts from here
    model = load(settings.model, only_decoding=True)
    fields = fields_of(form, model.tokenizer, model.config.vocab)  # refused before anything else happens
    room = model.config.context
    if settings.request.fork:
        begun = (len(model.tokenizer.encode(one.before({}))) for one in fields)
        room -= settings.request.max_tokens + max(begun, default=0)
    for prompt in prompts:  # and so is a text that would end the run midway
        try:
            length = len(prompt_ids(model, form, prompt.text, settings.request))
        except PastaError as error:
            raise PastaError(f"{prompt.place}: {error}") from None
        if length >= room:
            raise PastaError(f"{prompt.place}: {length} tokens, but there is room for {room - 1}; shorten it")
    began = time.perf_counter()
    after = waits(settings.after)

    def compute(numbers: Sequence[int]) -> Iterator[FillRecord]:
        texts = [prompts[number].text for number in numbers]
        with shown(model, len(prompts)) as seen:
            for filled in fill_all(model, texts, form, settings.request, after, seen, numbers):
                yield _record(prompts, numbers[filled.index], filled, model)

    part, fix = records.kept_beside(output), "choose another --output, or delete the file"
    header = depends_on(settings, model, form, prompts)
    with records.opened(part, header, FillRecord, operator.attrgetter("index"), fix) as done:
        missing = done.missing(range(len(prompts)))
        if done.known:
            say(f"resuming: {part} has {len(done.known)} of {len(prompts)} texts")
        with records.progress("texts", len(prompts), missing) as progress:
            for record in done.fill(missing, compute):
                progress.add()
                if output is None:
                    show(escaped(as_line(record)))
        every = [done.known[number] for number in range(len(prompts))]
        if output is not None:
            write_whole(output, "".join(f"{as_line(record)}\n" for record in every))
    if part is not None:
        part.unlink()
    if output is not None:
        say(f"wrote {output}")
    cut = sum(bool(record.incomplete) for record in every)
    steps, tokens = (sum(getattr(record, name) for record in every) for name in ("steps", "tokens"))
    seconds = time.perf_counter() - began
    say(f"[{len(every)} texts, {tokens} tokens in {steps} steps, {cut} incomplete; {seconds:.1f} s with compilation]")
    return every


@contextlib.contextmanager
def shown(model: Model, texts: int) -> Iterator[Seen | None]:
    """What shows the fields of a single text on a terminal, as threads that grow; else None."""
    if texts > 1 or not stdout_can_be_drawn_on():
        yield None
        return
    with contextlib.ExitStack() as stack, LiveView(model.tokenizer.tags, following()) as view:
        is_first = True

        def see(field: str, event: Event) -> None:
            nonlocal is_first
            if is_first:  # until now, it was said what goes on
                stack.enter_context(quiet())
            is_first = False
            view.write(field, event)

        yield see


def waits(after: Sequence[str]) -> dict[str, list[str]]:
    """The fields that each field of "summary:name year" reads first."""
    found = {}
    for part in after:
        name, colon, others = part.partition(":")
        if not colon or not others.split():
            raise PastaError(f'config.after: {part!r}: write a field and those that it reads, as "summary:name year"')
        if (name := name.strip()) in found:
            raise PastaError(f"config.after: {name!r}: stated twice; write all that it reads once")
        found[name] = others.split()
    return found


def depends_on(settings: FillSettings, model: Model, form: Form, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What the records depend on, by names that a user knows."""
    options, texts = settings.request, [prompt.text for prompt in prompts]
    fields = {"instruction": options.instruction, "system": options.system, "max_tokens": options.max_tokens}
    rules = template_of(model, options).rules
    fields |= {"fork": options.fork} | recorded(rules)
    of_form = [*form.around, *(leaf.automaton.key + leaf.about for leaf in form.leaves)]
    if options.fork_items:
        fields |= {"fork_items": True}
        every = [leaf.items for leaf in form.leaves if leaf.items]
        of_form += [text for one in every for text in (one.names.key, one.form.whole.key, one.about)]
    return {
        **model.recorded(),
        "prompts": f"{len(texts)} texts {fingerprints.of_texts(texts)}",
        "--schema": fingerprints.of_texts(of_form),
        "config.after": " ".join(settings.after),
        **({"seed of text n": f"config.request.seed + {APART} n"} if rules.temperature else {}),
        **{f"config.request.{key}": value for key, value in fields.items()},
    }


def _record(prompts: Sequence[Prompt], index: int, filled: Filled, model: Model) -> FillRecord:
    same = {name: getattr(filled, name) for name in ("value", "incomplete", "prompt_tokens", "tokens", "steps")}
    times = {name: round(getattr(filled, name), 3) for name in ("prefill_ms", "decode_ms")}
    return FillRecord(index=index, prompt=prompts[index].text, model=model.name, **same, **times)


def require_two(schema: Path | None, prompts_file: Path | None) -> tuple[Path, Path]:
    """Both paths, or an error that names the missing one."""
    if schema is None:
        raise PastaError("--schema is missing: pass a file with a JSON schema, as --schema=person.json")
    if prompts_file is None:
        raise PastaError("--prompts_file is missing: pass JSON lines with `prompt`, as --prompts_file=texts.jsonl")
    return schema, prompts_file
