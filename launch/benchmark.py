"""Benchmarks; the last line printed is one JSON object. `python -m launch.benchmark decode --config=…`, see configs."""

import dataclasses
import json
import statistics
import sys

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

PEERS = flags.DEFINE_bool(
    "peers", False, "also measure transformers and llama.cpp on the same weights (setup.sh --dev)"
)

PROGRAMS = flags.DEFINE_string("programs", None, "other programs for `interpreter`: JSON lines with a `program` each")


def main(config: ConfigDict, name: str) -> None:
    """Run one benchmark."""
    if name not in BENCHMARKS:
        raise PastaError(f"{name!r}: no such benchmark; choose one of {', '.join(BENCHMARKS)}")
    cli.announce_device()
    print(json.dumps(BENCHMARKS[name](config)))


def decode(config: ConfigDict) -> dict:
    """Milliseconds of a decoding step by threads of one request."""
    from pasta_jax.benchmark import steps as speed

    model = model_of(config)
    asked = config.decode
    runners = {}
    for rows in asked.widths:
        say(f"compiling the step of {rows} row(s)")
        runners[f"ours/{rows}"] = speed.decode_runner(model, rows, asked.slots, asked.prompt, asked.steps)
    if PEERS.value:
        runners |= peer_runners(model, asked)
    # Those that are compared run side by side: a shared host's memory gets faster and slower within seconds.
    runners = dict(sorted(runners.items(), key=lambda named: int(named[0].split("/")[1])))
    copy = speed.copy_gb_s()
    times = speed.interleaved(runners, asked.rounds, say)
    copy = max(copy, speed.copy_gb_s())

    def by_width(who: str, what) -> dict:
        return {rows: round(what(times[f"{who}/{rows}"]), 2) for rows in asked.widths}

    step = by_width("ours", statistics.median)
    weights = speed.weight_bytes(model.params)
    weights_gb_s = weights / step[min(asked.widths)] / 1e6
    peers = {who: by_width(who, statistics.median) for who in ("transformers", "llama_cpp")} if PEERS.value else {}
    report = {
        "benchmark": "decode",
        "model": model.name,
        "dtype": str(model.dtype),
        "slots": asked.slots,
        "prompt": asked.prompt,
        "rounds": asked.rounds,
        "ms_per_step": step,
        "ms_per_step_min": by_width("ours", min),
        "weights_gb": round(weights / 1e9, 3),
        "weights_gb_s": round(weights_gb_s, 1),
        "copy_gb_s": round(copy, 1),
        "share_of_bandwidth": round(weights_gb_s / copy, 2),
    }
    if peers:
        ratios = {
            who: {rows: round(step[rows] / theirs[rows], 2) for rows in asked.widths} for who, theirs in peers.items()
        }
        report |= {"peers": peers, "ours_over_peer": ratios}
    return report


def interpreter(config: ConfigDict) -> dict:
    """What asynchronous decoding of given programs realises of what the step clock promises."""
    from pathlib import Path

    from pasta_jax.benchmark import programs as structures
    from pasta_jax.benchmark import steps as speed
    from pasta_jax.decode.generate import DecodeConfig

    asked = config.interpreter
    programs = structures.read_programs(Path(PROGRAMS.value or asked.programs))
    model = model_of(config)
    decode_asked = config.decode
    widths = {
        str(rows): speed.decode_runner(model, rows, asked.slots, asked.prompt, decode_asked.steps)
        for rows in asked.widths
    }
    step = speed.interleaved(widths, decode_asked.rounds, say)
    events = speed.interleaved(speed.event_runners(model, asked.slots, asked.prompt), asked.event_rounds, say)

    def more(name: str, than: str) -> float:
        """Milliseconds that one event takes more than another, by turns, so that a drifting machine hits both."""
        return statistics.median(a - b for a, b in zip(events[name], events[than], strict=True))

    # What a step of one row must read at least, at half of the steps measured.
    least_gb = (speed.weight_bytes(model.params) + speed.kv_bytes(model, asked.prompt + decode_asked.steps // 2)) / 1e9
    copy = speed.copy_gb_s()
    one_row = statistics.median(step[str(min(asked.widths))])
    settings = DecodeConfig(lanes=1, rows=asked.rows, slots=asked.slots, widths=tuple(asked.widths))
    pairs = structures.measure(model, programs, settings, asked.prompt, asked.rounds, say)
    return {
        "benchmark": "interpreter",
        "model": model.name,
        "dtype": str(model.dtype),
        "rows": asked.rows,
        **structures.summary(pairs),
        "ms_per_step": {rows: round(statistics.median(times), 2) for rows, times in step.items()},
        "in_one_row_steps": {rows: round(statistics.median(times) / one_row, 3) for rows, times in step.items()},
        "step_reads_gb": round(least_gb, 3),
        "copy_gb_s": round(copy, 1),
        "step_over_reading": round(one_row / (1e3 * least_gb / copy), 2),
        "ms_of_a_plain_step_of_2_rows": round(statistics.median(events["plain"]), 2),
        "fork_ms": round(more("fork", "plain"), 2),
        "join_ms": round(more("join", "plain"), 2),
        "host_overhead_ms": round(more("in many calls", "in one call"), 2),
    }


def train(config: ConfigDict) -> dict:
    """Milliseconds of a training step over all parameters."""
    import jax

    from pasta_jax.benchmark import steps as speed
    from pasta_jax.models.weights import load_model, platform_dtype
    from pasta_jax.train.loss import Scoring
    from pasta_jax.train.optimizer import OptimizerConfig
    from pasta_jax.train.speed import flops_per_token, peak_flops, step_runner

    asked = config.train
    # Master weights are float32; what the model computes in is the platform's.
    model = load_model(config.model.preset, config.model.path, dtype="float32")
    scoring = Scoring(model.config, model.tokenizer.tags, platform_dtype(), asked.slice, asked.block, asked.remat)
    plan = OptimizerConfig(10**6, 1e-5, warmup=0, weight_decay=0.01, clip=asked.clip, b1=0.9, b2=0.999, eps=1e-8)
    shape = (asked.rows, asked.length, asked.steps)
    runners = {"ours": step_runner(model, *shape, scoring, plan)}
    if PEERS.value:
        need("torch", "transformers")
        from pasta_jax.benchmark.peer_training import transformers_step_runner

        runners["transformers"] = transformers_step_runner(model, *shape, asked.clip)
    times = {who: statistics.median(ms) for who, ms in speed.interleaved(runners, asked.rounds, say).items()}
    tokens = asked.rows * asked.length
    per_s = {who: 1e3 * tokens / ms for who, ms in times.items()}
    operations = flops_per_token(model.params, model.config, asked.length, adapter=False) * per_s["ours"]
    peak = peak_flops(jax.devices())
    report = {
        "benchmark": "train",
        "model": model.name,
        "dtype": str(platform_dtype().dtype),
        "rows": asked.rows,
        "length": asked.length,
        "remat": asked.remat,
        "rounds": asked.rounds,
        "ms_per_step": {who: round(ms) for who, ms in times.items()},
        "tokens_per_s": {who: round(tokens, 1) for who, tokens in per_s.items()},
        "tflops": round(operations / 1e12, 4),
        "mfu": "unknown" if peak is None else round(operations / peak, 4),
    }
    if PEERS.value:
        report["ours_over_peer"] = round(times["ours"] / times["transformers"], 2)
    return report


def sampling(config: ConfigDict) -> dict:
    """Tokens a second of several answers to each of many prompts, by lanes; what the preference stage begins with."""
    import time

    from pasta_jax.data.pairs import Pair
    from pasta_jax.data.sources import read
    from pasta_jax.decode.generate import DecodeConfig, Request
    from pasta_jax.decode.sampling import Sampling
    from pasta_jax.evaluate.candidates import Prompt, sample

    asked = config.sampling
    model = model_of(config)
    pairs = [pair for pair in read(asked.source) if isinstance(pair, Pair)]
    prompts = [Prompt(pair.system, pair.instruction, pair.response) for pair in pairs]
    request = Request((), asked.max_tokens, Sampling(temperature=1.0, seed=asked.seed), False, 12, 638)
    by_lanes = {}
    for lanes in asked.lanes:
        settings = DecodeConfig(lanes, asked.rows, asked.slots, ())
        wanted = prompts[: max(1, round(asked.waves * lanes / asked.count))]
        list(sample(model, prompts[:1], 0, 2, settings, dataclasses.replace(request, max_tokens=2)))  # compiles
        began = time.perf_counter()
        answers = [
            answer for _, several in sample(model, wanted, 0, asked.count, settings, request) for answer in several
        ]
        seconds = time.perf_counter() - began
        tokens = sum(len(answer.ids) for answer in answers)
        by_lanes[lanes] = {
            "answers": len(answers),
            "cut_off": sum(not answer.whole for answer in answers),
            "tokens": tokens,
            "s": round(seconds, 1),
            "tokens_per_s": round(tokens / seconds, 1),
            "hours_of_2000_prompts": round(2000 * asked.count * seconds / len(answers) / 3600, 2),
        }
        say(f"{lanes} lane(s): {json.dumps(by_lanes[lanes])}")
    return {
        "benchmark": "sampling",
        "model": model.name,
        "dtype": str(model.dtype),
        "answers_a_prompt": asked.count,
        "max_tokens": asked.max_tokens,
        "rows": asked.rows,
        "slots": asked.slots,
        "lanes": by_lanes,
    }


def need(*modules: str) -> None:
    """Refuse --peers where the peers aren't installed."""
    import importlib.util

    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise PastaError(f"--peers needs {module}: bash launch/setup.sh --dev")


def model_of(config: ConfigDict):
    """The model to measure; random weights of its shape where the config says so."""
    from pasta_jax.benchmark import steps as speed
    from pasta_jax.models.weights import load_model

    if config.random_weights:
        return speed.random_model(config.model.preset, seed=0)
    return load_model(config.model.preset, config.model.path, only_decoding=True)


def peer_runners(model, asked: ConfigDict) -> dict:
    """The same steps by other runtimes."""
    need("torch", "transformers", "cyllama", "gguf")
    from pasta_jax.benchmark import peers
    from pasta_jax.models.weights import PACKAGED, load_model

    if model.name not in PACKAGED:
        raise PastaError(f"--peers: {model.name} is not one of the packaged models {', '.join(PACKAGED)}")
    model = load_model(model.name, "")  # with its kernels as files have them
    runners = {}
    for rows in asked.widths:
        say(f"preparing the peers' step of {rows} row(s)")
        runners[f"transformers/{rows}"] = peers.transformers_runner(model, rows, asked.prompt, asked.steps)
        runners[f"llama_cpp/{rows}"] = peers.llama_cpp_runner(model, rows, asked.slots, asked.prompt, asked.steps)
    return runners


def say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)


BENCHMARKS = {"decode": decode, "interpreter": interpreter, "train": train, "sampling": sampling}

if __name__ == "__main__":
    cli.run(main, default_config="configs/benchmark.py", argument="which benchmark")
