"""Fixed programs decoded asynchronously and, as their plain text, sequentially: the speedup that is realised."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jax

from pasta_jax.benchmark.steps import run_and_wait
from pasta_jax.decode.replay import prepare
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import read
from pasta_jax.files.validated import MIB
from pasta_jax.lang.clock import clock, geometric_mean, parallelism, theoretical_speedup
from pasta_jax.lang.program import LangError, Program
from pasta_jax.progress import Progress
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model

Decoded = TypeVar("Decoded")

OWN = Path(__file__).with_name("programs.jsonl")


@dataclasses.dataclass(frozen=True)
class Replay:
    """One program: its theoretical figures and its measured times."""

    tokens: int  # of the stripped text, decoded sequentially
    critical_path: int
    steps: int  # of the asynchronous run, whose rows are limited
    parallelism: float
    sequential_s: float
    asynchronous_s: float

    @property
    def theoretical(self) -> float:
        """Speedup in steps, with unlimited rows."""
        return theoretical_speedup(self.tokens, self.critical_path)

    @property
    def realised(self) -> float:
        """Speedup in seconds."""
        return self.sequential_s / self.asynchronous_s


@dataclasses.dataclass(frozen=True)
class _Row:
    """A line of the file."""

    program: str


def read_programs(path: Path) -> list[Program]:
    """Programs from a JSON-lines file with a `program` field each, in surface form."""
    fix = "use a JSON-lines file with one program per line"
    programs = []
    for place, row in read(path, _Row, 4 * MIB, fix):
        try:
            programs.append(Program.parse(row.program))
        except LangError as error:
            raise PastaError(f"{place}: program: {error}") from None
    if not programs:
        raise PastaError(f"{path}: is empty; {fix}")
    return programs


def refuse_longer(programs: Sequence[Program], tokenizer: Tokenizer, slots: int, prompt: int) -> None:
    """Raise if one of them doesn't fit beside a prompt of so many tokens: it would be cut off."""
    longest = max(len(program.ids(tokenizer)) for program in programs)
    if prompt + longest > slots:
        raise PastaError(
            f"the longest program has {longest} ids, which don't fit {slots} slots beside a prompt of {prompt}; raise "
            "config.interpreter.slots"
        )


def prompt_of(tokenizer: Tokenizer, count: int) -> list[int]:
    """A prompt of so many tokens. Its text does not matter, since the answer's tokens are forced."""
    return (tokenizer.encode(" word") * count)[:count]


def both_ways(
    model: Model,
    program: Program,
    settings: DecodeConfig,
    rounds: int,
    decode: Callable[[Sequence[int], DecodeConfig], Decoded],
    turn: int = 0,
) -> tuple[list[Decoded], list[Decoded]]:
    """What `decode` returns for a program and, sequentially, for its plain text: the two take turns in beginning a
    round, of which the first one compiles and doesn't count. With an odd `turn`, the other one begins."""
    plain = model.tokenizer.encode(program.strip())
    ways = ((program.ids(model.tokenizer), settings), (plain, dataclasses.replace(settings, rows=1)))
    decoded: list[list[Decoded]] = [[], []]
    for round in range(rounds + 1):
        for way in (0, 1) if (round + turn) % 2 else (1, 0):
            decoded[way].append(decode(*ways[way]))
    return decoded[0][1:], decoded[1][1:]


def timed(model: Model, prompt: Sequence[int], ids: Sequence[int], settings: DecodeConfig) -> tuple[float, int]:
    """Seconds and steps of one replay, without the prompt's prefill."""
    state, spec, script = prepare(model, [prompt], [ids], settings, keep_hidden=False)
    jax.block_until_ready(state)
    began = time.perf_counter()
    state = run_and_wait(model, state, 2**30, spec, script)
    return time.perf_counter() - began, int(state.step[0])


def measure(
    model: Model, programs: Sequence[Program], settings: DecodeConfig, prompt_tokens: int, rounds: int
) -> list[Replay]:
    """Every program both ways; medians over the rounds."""
    tokenizer = model.tokenizer
    prompt = prompt_of(tokenizer, prompt_tokens)
    replays = []
    with Progress("programs", len(programs)) as progress:
        for number, program in enumerate(programs):
            asynchronous, sequential = both_ways(
                model, program, settings, rounds, lambda ids, config: timed(model, prompt, ids, config), number
            )
            linear = program.ids(tokenizer)
            replay = Replay(
                tokens=len(tokenizer.encode(program.strip())),
                critical_path=clock(linear, tokenizer.tags, 0).critical_path,
                steps=asynchronous[-1][1],
                parallelism=parallelism(linear, tokenizer.tags, 0),
                sequential_s=statistics.median(seconds for seconds, _ in sequential),
                asynchronous_s=statistics.median(seconds for seconds, _ in asynchronous),
            )
            replays.append(replay)
            progress.note = (
                f"{replay.tokens} tokens, critical path {replay.critical_path}, "
                f"theoretical {replay.theoretical:.2f}, realised {replay.realised:.2f}"
            )
            progress.add()
    return replays


def summary(replays: Sequence[Replay]) -> dict[str, float]:
    """Geometric means over programs, rounded."""
    theoretical = geometric_mean([replay.theoretical for replay in replays])
    realised = geometric_mean([replay.realised for replay in replays])
    return {
        "programs": len(replays),
        "parallelism": round(geometric_mean([replay.parallelism for replay in replays]), 3),
        "theoretical": round(theoretical, 3),
        "realised": round(realised, 3),
        "efficiency": round(realised / theoretical, 3),
        "steps_over_critical_path": round(
            geometric_mean([replay.steps / replay.critical_path for replay in replays]), 3
        ),
    }
