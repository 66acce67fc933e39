"""llama.cpp and transformers answer the prompts of `ways`, one at a time, each without drafts and with its own.

They answer greedily and from the base model without the adapter. Their answers are not ours, and neither are their
lengths, so that seconds compare by token of text.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.benchmark import fill_peer, peers
from pasta_jax.benchmark.serving import from_another, started
from pasta_jax.benchmark.settings import WaysBenchmark
from pasta_jax.device import platform
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.progress import doing
from pasta_jax.runs import records
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import BLOCKS, Model

PACKAGES = ("torch", "transformers", "cyllama", "xllamacpp")
FIX = "name another config.ways.log"


@dataclasses.dataclass(frozen=True)
class Answered:
    """One answer of a peer."""

    seconds: AtLeastZero  # with the prompt's
    tokens: Count  # of text
    drafts: Count
    kept: Count
    ended: bool  # False: cut off at max_tokens
    text: str


@dataclasses.dataclass(frozen=True)
class Turns:
    """What the peers answered to a prompt."""

    number: Count
    peers: dict[str, Answered]


@dataclasses.dataclass(frozen=True)
class Peers:
    """Peers that answer a prompt when our own ways have."""

    missing: frozenset[int]  # numbers of prompts
    answer: Callable[[int], None]
    has: Callable[[int], bool]  # whether they have answered a prompt
    report: Callable[[], dict[str, Any]]


NOBODY = Peers(frozenset(), lambda number: None, lambda number: True, dict)
Answer = Callable[[Sequence[int]], Answered]


@contextlib.contextmanager
def opened(config: WaysBenchmark, model: Model, prompts: Sequence[Sequence[int]], fingerprint: str) -> Iterator[Peers]:
    """The peers with their own log beside that of our ways; they start if it lacks a prompt."""
    if config.clients > 1:
        raise PastaError("config.ways.clients: the peers answer one prompt at a time; leave it at 1")
    log, names = Path(config.log), list(config.peers)
    about = {"answers": "greedy, without the adapter, one at a time"}
    about |= {"precision": {"llama_cpp": BLOCKS if model.precision == BLOCKS else "float32", "transformers": "float32"}}
    header = {"model": config.model.preset, **about, "max_tokens": config.max_tokens}
    header |= {"lookup": config.lookup, "prompts": fingerprint, "peers": names, "slots": config.slots}
    header |= {"machine": platform.machine()}
    path = log.with_name(f"{log.stem}_peers{log.suffix}")
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(records.opened(path, header, Turns, lambda turns: turns.number, FIX))
        missing = kept.missing(range(len(prompts)))
        answers = stack.enter_context(started_peers(config, model)) if missing else {}

        def answer(number: int) -> None:
            found = {name: answers[name](prompts[number]) for name in from_another(names, number)}
            kept.add(Turns(number, {name: found[name] for name in names}))

        def report() -> dict[str, Any]:
            some = [kept.known[number] for number in range(len(prompts)) if number in kept.known]
            return {"peers": about | summary(some, names)}

        yield Peers(frozenset(missing), answer, kept.known.__contains__, report)


@contextlib.contextmanager
def started_peers(config: WaysBenchmark, model: Model) -> Iterator[dict[str, Answer]]:
    """The peers by name: servers of llama.cpp, and transformers in this process; each has answered once."""
    peers.require(dataclasses.replace(config.model, adapter=""), PACKAGES, "config.ways.model")
    drafts = {name: name.removeprefix("llama_cpp").lstrip("_") for name in config.peers if name.startswith("llama_cpp")}
    target = str(peers.files(model)["llama_cpp"]), 1, config.slots
    drafter = str(peers.draft_gguf(model.name)) if "draft_simple" in drafts.values() else ""
    targets = {
        name: (_server(kind or "none", drafter if kind == "draft_simple" else ""), target)
        for name, kind in drafts.items()
    }
    lookups = {"transformers": 0, "transformers_lookup": config.lookup}
    lookups = {name: lookup for name, lookup in lookups.items() if name in config.peers}
    theirs = peers.torch_model(peers.exported(model.name)) if lookups else None
    with started(targets) as ports:
        answers = {name: llama_cpp(port, model.tokenizer, config.max_tokens) for name, port in ports.items()}
        for name, lookup in lookups.items():
            answers[name] = transformers(theirs, model.tokenizer, config.max_tokens, lookup)
        with doing("a first answer of each peer"):
            for name in config.peers:
                answers[name](model.tokenizer.chat([("user", "Hello")]))
        yield answers


def _server(speculation: str, drafter: str) -> Callable[..., None]:
    return functools.partial(peers.llama_cpp_server, speculation=speculation, drafter=drafter)


def llama_cpp(port: int, tokenizer: Tokenizer, max_tokens: int) -> Answer:
    """By llama.cpp's server at a port, which states its drafts."""

    def answer(ids: Sequence[int]) -> Answered:
        body = {"prompt": list(ids), "n_predict": max_tokens, "temperature": 0}
        began = time.perf_counter()
        [reply] = fill_peer.complete(port, [body | {"cache_prompt": False, "return_tokens": True}], 1)
        seconds, timings = time.perf_counter() - began, reply["timings"]
        drafts, kept = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        return _answered(seconds, reply["tokens"], drafts, kept, tokenizer)

    return answer


def transformers(theirs: Any, tokenizer: Tokenizer, max_tokens: int, lookup: int) -> Answer:
    """By `generate` of transformers, which may look up so many tokens at a time; its calls count its drafts."""
    import torch

    options = {"do_sample": False, "max_new_tokens": max_tokens, "pad_token_id": tokenizer.end_of_turn}
    options |= {"eos_token_id": list(tokenizer.stop_ids), **({"prompt_lookup_num_tokens": lookup} if lookup else {})}

    def answer(ids: Sequence[int]) -> Answered:
        fed: list[int] = []  # by call; one token of a call, or the prompt, is no draft
        began = time.perf_counter()
        prompt = torch.tensor([ids])
        counting = theirs.register_forward_pre_hook(
            lambda _, args, options: fed.append(options["input_ids"].shape[1]), with_kwargs=True
        )
        with counting, torch.inference_mode():
            [output] = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options).tolist()
        seconds, new = time.perf_counter() - began, output[len(ids) :]
        return _answered(seconds, new, sum(fed) - len(ids) - len(fed) + 1, len(new) - len(fed), tokenizer)

    return answer


def _answered(seconds: float, ids: Sequence[int], drafts: int, kept: int, tokenizer: Tokenizer) -> Answered:
    text = [id for id in ids if id not in tokenizer.stop_ids]
    return Answered(round(seconds, 4), len(text), drafts, kept, len(text) < len(ids), tokenizer.decode(text))


def summary(turns: Sequence[Turns], names: Sequence[str]) -> dict[str, Any]:
    """Sums by peer; of those with drafts, how many times as fast a token of text is as without, and equal answers."""
    sums: dict[str, dict[str, Any]] = {}
    for name in names:
        mine = [turn.peers[name] for turn in turns]
        sums[name] = {
            field: sum(getattr(one, field) for one in mine) for field in ("tokens", "drafts", "kept", "ended")
        }
        seconds = sum(one.seconds for one in mine)
        sums[name] |= {"seconds": round(seconds, 2), "ms_per_text_token": _ratio(1e3 * seconds, sums[name]["tokens"])}
    for name in names:
        plain = "transformers" if name.startswith("transformers") else "llama_cpp"
        if plain in names and plain != name:
            mine = sums[name]
            mine["times_as_fast"] = _ratio(sums[plain]["ms_per_text_token"], mine["ms_per_text_token"])
            mine["equal"] = sum(turn.peers[name].text == turn.peers[plain].text for turn in turns)
    return {"prompts": len(turns), "ways": sums}


def _ratio(above: float, below: float) -> float:
    return round(above / max(below, 1e-9), 2)
