"""Given programs decoded asynchronously and, as their own text, sequentially, in pairs: what the clock really saves."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from pasta_jax.decode.generate import DecodeConfig
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.replay import prepare
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock, geometric_mean, parallelism, theoretical_speedup
from pasta_jax.lang.program import LangError, Program
from pasta_jax.models.weights import Model


@dataclasses.dataclass(frozen=True)
class Pair:
    """One program: what the clock says and what the clock on the wall said."""

    tokens: int  # of the stripped text, decoded sequentially
    critical_path: int
    steps: int  # what the asynchronous run took with its rows
    parallelism: float
    sequential_s: float
    asynchronous_s: float

    @property
    def theoretical(self) -> float:
        """Speedup by steps, with unlimited rows."""
        return theoretical_speedup(self.tokens, self.critical_path)

    @property
    def realised(self) -> float:
        """Speedup by seconds."""
        return self.sequential_s / self.asynchronous_s


def read_programs(path: Path) -> list[Program]:
    """Programs from a JSON-lines file with a `program` field each, in surface form."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PastaError(f"{path}: {error}; give a JSON-lines file with a program a line") from None
    programs = []
    for number, line in enumerate(lines, start=1):
        try:
            programs.append(Program.parse(json.loads(line)["program"]))
        except json.JSONDecodeError as error:
            where = f"{path}:{number}, column {error.colno}"
            raise PastaError(f"{where}: not JSON ({error.msg}); write one object a line") from None
        except (KeyError, TypeError):
            raise PastaError(f'{path}:{number}: has no "program"; write {{"program": "…"}}') from None
        except LangError as error:
            raise PastaError(f"{path}:{number}: program: {error}") from None
    if not programs:
        raise PastaError(f"{path}: is empty; give a JSON-lines file with a program a line")
    return programs


def timed(
    model: Model, prompt: Sequence[int], ids: Sequence[int], settings: DecodeConfig, length: int
) -> tuple[float, int]:
    """Seconds and steps of one forced run, the prompt's prefill left out; the script is padded to `length`."""
    state, rules, script = prepare(model, [prompt], [ids], settings, keep_hidden=False)
    missing = length - script.tokens.shape[1]
    if missing < 0:
        raise PastaError(f"a program of {len(ids)} ids does not fit into {length}; raise --config.interpreter.slots")
    script = dataclasses.replace(script, tokens=jnp.pad(script.tokens, ((0, 0), (0, missing)), mode="edge"))
    jax.block_until_ready(state)
    began = time.perf_counter()
    never = jnp.bool(False)
    state = run(model.params, state, jnp.int32(2**30), never, config=model.config, rules=rules, script=script)
    jax.block_until_ready(state)
    return time.perf_counter() - began, int(state.step[0])


def measure(
    model: Model,
    programs: Sequence[Program],
    settings: DecodeConfig,
    prompt_tokens: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[Pair]:
    """Every program both ways, alternating; the first round compiles and isn't counted, the others' median is."""
    tokenizer = model.tokenizer
    prompt = (tokenizer.encode(" word") * prompt_tokens)[:prompt_tokens]
    sequential = dataclasses.replace(settings, rows=1)
    pairs = []
    for number, program in enumerate(programs, start=1):
        both, one = program.ids(tokenizer), tokenizer.encode(program.strip())
        times = {"asynchronous": [], "sequential": []}
        steps = {}
        for _ in range(rounds + 1):
            for name, ids, how in (("asynchronous", both, settings), ("sequential", one, sequential)):
                seconds, steps[name] = timed(model, prompt, ids, how, settings.slots)
                times[name].append(seconds)
        median = {name: statistics.median(found[1:]) for name, found in times.items()}
        pairs.append(
            Pair(
                tokens=len(one),
                critical_path=clock(both, tokenizer.tags, 0).critical_path,
                steps=steps["asynchronous"],
                parallelism=parallelism(both, tokenizer.tags, 0),
                sequential_s=median["sequential"],
                asynchronous_s=median["asynchronous"],
            )
        )
        last = pairs[-1]
        say(
            f"program {number}/{len(programs)}: {last.tokens} tokens, critical path {last.critical_path}, "
            f"theoretical {last.theoretical:.2f}, realised {last.realised:.2f}"
        )
    return pairs


def summary(pairs: Sequence[Pair]) -> dict:
    """Geometric means over programs."""
    theoretical = geometric_mean([pair.theoretical for pair in pairs])
    realised = geometric_mean([pair.realised for pair in pairs])
    return {
        "programs": len(pairs),
        "parallelism": round(geometric_mean([pair.parallelism for pair in pairs]), 3),
        "theoretical": round(theoretical, 3),
        "realised": round(realised, 3),
        "efficiency": round(realised / theoretical, 3),
        "steps_over_critical_path": round(geometric_mean([pair.steps / pair.critical_path for pair in pairs]), 3),
    }
