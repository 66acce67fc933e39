"""`python -m tests.drafted [--count=N] [--log=FILE] [--kernels]`: random programs with drafts, and by the oracle.

The oracle decodes each request without drafts, a cache or lanes. Requests differ in sampler, penalties, budgets and
rules for topics; loops in rows (1 to 16), lanes, and whether rows are packed or forks admitted. Half of them have a
drafter. Rows are free or dear at random, so that steps have many drafts, some or none. An answer that ends by itself
must be the oracle's; of one that is cut off, all that its threads wrote must be. A difference stops the command. The
log, a line per hundred programs, is where it goes on. Those of one compiled loop follow each other; several processes
with logs of their own share the work by --part=1/4 and so on.
"""

import dataclasses
import json
import os
import random
import subprocess
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # the programs are small

import numpy as np
from absl import app, flags

from pasta_jax.decode import device_loop
from pasta_jax.decode.generate import generate
from pasta_jax.decode.guesses import Guesser
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import STOP
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.oracle import decoding
from pasta_jax.weights.prepare import for_decoding
from tests.decode.test_sampled_programs import TOKENIZER, random_request, talkative
from tests.helpers.drafters import fitted

COUNT = flags.DEFINE_integer("count", 10_000, "programs in all")
LOG = flags.DEFINE_string("log", "runs/drafted.jsonl", "a line per piece")
PART = flags.DEFINE_string("part", "1/1", "which share of the pieces")
KERNELS = flags.DEFINE_bool("kernels", False, "decode, and ask the oracle, by our own kernels; with a log of its own")
PIECE, BATCH = 100, 20
LOOPS = (
    DecodeConfig(lanes=8, rows=1, slots=80),
    DecodeConfig(lanes=4, rows=2, slots=80, packed=(2, 4, 8, 16)),
    DecodeConfig(lanes=8, rows=4, slots=80),
    DecodeConfig(lanes=2, rows=5, slots=80, packed=(1, 2, 3, 4, 8)),
    DecodeConfig(lanes=1, rows=8, slots=80, widths=(3, 6)),
    DecodeConfig(lanes=2, rows=16, slots=80, widths=(2, 4, 8)),
    DecodeConfig(lanes=3, rows=16, slots=80, packed=(4, 8, 12)),
    DecodeConfig(lanes=4, rows=4, slots=80, packed=(4, 6, 8), forks="admitted"),
    DecodeConfig(lanes=1, rows=8, slots=80, widths=(3, 6), forks="admitted"),
)
DRAFTS = "lookup", "drafter"
MODEL = fitted(talkative(), np.arange(0, 384, 2))  # its drafter is right now and then
Guesser.cost = 0.0


def requests_of(rng: random.Random, config: DecodeConfig) -> list[Request]:
    requests = [random_request(rng) for _ in range(PIECE)]
    penalties = ({}, {}, {"frequency_penalty": 0.5}, {"presence_penalty": -0.7})
    requests = [request.with_rules(**rng.choice(penalties)) for request in requests]
    return [dataclasses.replace(request, sequential=request.sequential or config.rows == 1) for request in requests]


def difference(result: Result, outcome: decoding.Outcome, request: Request, config: DecodeConfig) -> str | None:
    """What of the answer isn't the oracle's."""
    ours = result.trace
    theirs = decoding.trace_of(outcome, request, TOKENIZER, ours.model, config.rows, ours.policy)
    if theirs.finish == STOP or ours.finish == STOP:
        same = (
            ours.linear_ids() == theirs.linear_ids() and ours.closed == theirs.closed and ours.finish == theirs.finish
        )
        return None if same else "answer"
    for number in range(min(len(ours.closed), len(theirs.closed))):
        shorter, longer = sorted((ours.thread_ids(number), theirs.thread_ids(number)), key=len)
        if longer[: len(shorter)] != shorter:
            return f"thread {number} of an answer that was cut off"
    return None


def drafts_of(number: int) -> str:
    """What drafts in a piece."""
    return DRAFTS[number // len(LOOPS) % len(DRAFTS)]


def piece(number: int) -> dict[str, object]:
    """Figures of one piece."""
    rng, config, began = random.Random(f"drafted {number}"), LOOPS[number % len(LOOPS)], time.perf_counter()
    requests, dear = requests_of(rng, config), rng.choice((0.0, 0.0, 0.2, 1.0))
    device_loop.KEPT = rng.choice((0.0, 0.0, 0.12, 0.5))
    device_loop.prices_of = lambda model, state, spec: (state, np.array(spec.priced_rows, float) ** dear)
    results = generate(MODEL, requests, dataclasses.replace(config, draft=drafts_of(number)))
    drafted_s, order = time.perf_counter() - began, sorted(range(PIECE), key=lambda at: results[at].trace.steps)
    outcomes = {}
    for start in range(0, PIECE, BATCH):
        batch = order[start : start + BATCH]
        outcomes |= dict(zip(batch, decoding.sampled(MODEL, [requests[at] for at in batch], config), strict=True))
    for at, (request, result) in enumerate(zip(requests, results, strict=True)):
        if problem := difference(result, outcomes[at], request, config):
            raise SystemExit(f"piece {number}, request {at}: {problem} differs; {request}, {config}")
    return {
        "piece": number,
        "loop": number % len(LOOPS),
        "draft": drafts_of(number),
        "dear": dear,
        "ended": sum(result.finish_reason == "stop" for result in results),
        "chunks": sum(len(result.trace.closed) - 1 for result in results),
        "tokens": sum(len(result.trace.token) for result in results),
        "fed": sum(result.drafts_fed for result in results),
        "kept": sum(result.drafts_kept for result in results),
        "drafted_s": round(drafted_s, 1),
        "s": round(time.perf_counter() - began, 1),
    }


def main(_: list[str]) -> None:
    """Go on where the log ends; print the sums."""
    global MODEL
    if KERNELS.value:
        MODEL = for_decoding(MODEL)
        assert uses_kernels(MODEL.params)
    log = Path(LOG.value)
    log.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    part, parts = map(int, PART.value.split("/"))
    numbers = sorted(range(COUNT.value // PIECE), key=lambda number: (number % len(LOOPS), drafts_of(number)))
    share = numbers[(part - 1) * len(numbers) // parts : part * len(numbers) // parts]
    known = {line["piece"] for line in done}
    for number in filter(lambda one: one not in known, share):
        done.append(piece(number) | {"commit": commit.strip()})
        with log.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(done[-1], flush=True)
    sums = {name: sum(line[name] for line in done) for name in ("ended", "chunks", "tokens", "fed", "kept")}
    print(f"{PIECE * len(done)} programs, all equal: {sums}")


if __name__ == "__main__":
    app.run(main)
