"""Answer a prompt, or a file of them: text as it is decoded, results, traces and pictures. See configs/decode.py."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError
from pasta_jax.files import write_whole
from pasta_jax.pipelines.prompts import read_baseline, read_program, read_prompt, read_prompts_file

PROMPT = flags.DEFINE_string(
    "prompt", None, "the question, or with chat off the text to continue; - reads it from stdin"
)
PROMPTS_FILE = flags.DEFINE_string(
    "prompts_file", None, "JSON lines with a field prompt or instruction, or one JSON list (AlpacaEval's)"
)
PROGRAM = flags.DEFINE_string("program", None, "replay: a file with an answer in PASTA-LANG, forced instead of sampled")
SEQUENTIAL = flags.DEFINE_bool("sequential", None, "forbid the tags: the baseline (overrides the config)")
ROWS = flags.DEFINE_integer("rows", None, "threads of a request at a time (overrides the config)")
LANES = flags.DEFINE_integer("lanes", None, "requests at a time (overrides the config)")
LIVE = flags.DEFINE_enum(
    "live", "auto", ["auto", "yes", "no"], "show threads side by side while they run; auto: on a terminal"
)
JSON = flags.DEFINE_bool("json", False, "print JSON, one object an answer, instead of text")
OUTPUT = flags.DEFINE_string(  # other scripts have one too, and a test process may import both
    "output", None, "write the results here, JSON lines in the order of the prompts", allow_override=True
)
BASELINE = flags.DEFINE_string("baseline", None, "the --output of a --sequential run on the same prompts, for speedups")
TRACE = flags.DEFINE_string("trace", None, "write the trace here (docs/TRACE.md); several: name-0001.json, …")
PERFETTO = flags.DEFINE_string("perfetto", None, "write Chrome trace events here, for ui.perfetto.dev")
HTML = flags.DEFINE_string("html", None, "write a page here that shows the answer, its threads and what they saw")
SVG = flags.DEFINE_string("svg", None, "write a picture of the answer and its timeline here")


@dataclasses.dataclass
class Job:
    """What the command line asks for."""

    places: list[str]  # how errors name each prompt
    prompts: list[str]
    baseline: list[int] | None
    files: dict[str, Path]  # trace, perfetto, html, svg
    output: Path | None


def main(config: ConfigDict) -> None:
    """Load, decode, print and write."""
    job = read_job()
    program = read_program(Path(PROGRAM.value)) if PROGRAM.value is not None else None
    override(config)
    began = time.perf_counter()
    cli.announce_device()

    from pasta_jax.models.weights import load_model

    model = load_model(config.model.preset, config.model.path, only_decoding=True)
    settings = settings_of(config)
    requests = [
        request_for(model, config, settings, place, prompt)
        for place, prompt in zip(job.places, job.prompts, strict=True)
    ]
    loaded = time.perf_counter()
    if program is None:
        from pasta_jax.decode.generate import stream

        items = stream(model, requests, settings, config.round_steps)
    else:
        from pasta_jax.decode.replay import replay_stream

        print(f"replay: the answer is that of {PROGRAM.value}, {model.name} did not write it", file=sys.stderr)
        ids = program.ids(model.tokenizer)
        items = replay_stream(model, requests[0].prompt_ids, ids, settings, config.round_steps)
    if len(requests) == 1:
        sequential = config.request.sequential and program is None
        answer_one(job, items, model.tokenizer.tags, sequential, began, loaded)
    else:
        answer_many(job, items, config.request.sequential)


def read_job() -> Job:
    """Check the flags that don't depend on the model, before anything slow begins."""
    if PROMPT.value is not None and PROMPTS_FILE.value is not None:
        raise PastaError("--prompt and --prompts_file: give one of the two")
    if PROMPTS_FILE.value is not None:
        places, prompts = map(list, zip(*read_prompts_file(Path(PROMPTS_FILE.value)), strict=True))
    else:
        places, prompts = ["--prompt"], [read_prompt(PROMPT.value)]
    if PROGRAM.value is not None:
        if len(prompts) > 1:
            raise PastaError("--program: it answers one prompt; give --prompt")
        if SEQUENTIAL.value:
            raise PastaError("--sequential: a replay says what its program says; drop --sequential or --program")
    if LIVE.value == "yes" and (len(prompts) > 1 or JSON.value):
        raise PastaError("--live=yes: it shows one prompt's text; drop it, or --prompts_file and --json")
    named = {"output": OUTPUT, "trace": TRACE, "perfetto": PERFETTO, "html": HTML, "svg": SVG}
    files = {name: Path(flag.value) for name, flag in named.items() if flag.value is not None}
    for name, path in files.items():
        make_room(name, path)
    if len(set(files.values())) < len(files):
        raise PastaError(f"--{' --'.join(files)}: two of them name the same file; give each its own")
    baseline = read_baseline(Path(BASELINE.value), prompts) if BASELINE.value is not None else None
    return Job(places, prompts, baseline, files, files.pop("output", None))


def make_room(flag: str, path: Path) -> None:
    """The folder a file goes to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PastaError(f"--{flag}={path}: {error.strerror}; give a file in a folder that you may write") from None
    if path.is_dir() or not path.name:
        raise PastaError(f"--{flag}={path}: it is a folder; give a file")


def override(config: ConfigDict) -> None:
    """Flags that stand for config keys."""
    if SEQUENTIAL.value is not None:
        config.request.sequential = SEQUENTIAL.value
    if ROWS.value is not None:
        config.decoding.rows = ROWS.value
    if LANES.value is not None:
        config.decoding.lanes = LANES.value


def request_for(model, config: ConfigDict, settings, place: str, prompt: str):
    """The request a config and a prompt describe; one that cannot be answered is refused by its place."""
    from pasta_jax.decode.generate import Request, slots_for
    from pasta_jax.decode.sampling import Sampling

    asked = config.request
    sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.seed)
    messages = [("system", config.system)] if config.system else []
    try:
        ids = model.tokenizer.chat([*messages, ("user", prompt)]) if config.chat else model.tokenizer.prompt_ids(prompt)
        request = Request(
            prompt_ids=tuple(ids),
            max_tokens=asked.max_tokens,
            sampling=sampling,
            sequential=asked.sequential,
            max_topic_tokens=asked.max_topic_tokens,
            max_chunk_tokens=asked.max_chunk_tokens,
        )
        slots_for(model, [request], settings)
    except PastaError as error:
        raise PastaError(f"{place}: {str(error).removeprefix('prompt 0: ')}") from None
    return request


def settings_of(config: ConfigDict):
    """The decoding settings of a config."""
    from pasta_jax.decode.generate import DecodeConfig

    return DecodeConfig(**config.decoding.to_dict())


def answer_one(job: Job, items: Iterator, tags, sequential: bool, began: float, loaded: float) -> None:
    """Tell one answer while it is decoded, then sum it up."""
    from rich.console import Console

    from pasta_jax.decode.generate import Result
    from pasta_jax.decode.transcript import Transcript
    from pasta_jax.view.picture import visible
    from pasta_jax.view.terminal import LiveView, finished

    console = Console(highlight=False, force_terminal=True if LIVE.value == "yes" else None)
    live = LIVE.value == "yes" or (LIVE.value == "auto" and sys.stdout.isatty() and not sequential and not JSON.value)
    safe = visible if sys.stdout.isatty() else str
    first = None
    if live:
        with LiveView(tags, console) as view:
            for item in items:
                if isinstance(item, Result):
                    break
                first = first or time.perf_counter()
                view.push(item)
    else:
        transcript = Transcript(tags)
        for item in items:
            if isinstance(item, Result):
                break
            first = first or time.perf_counter()
            text = transcript.push(item.thread, item.token, item.step, item.text)
            if text and not JSON.value:
                print(safe(text), end="", flush=True)
    result = _asked(item, job)
    first = first or time.perf_counter()
    if live:
        console.print(finished(result.trace, console.width), soft_wrap=True)
    elif not JSON.value:
        print(safe(transcript.rest(result.text)))
    record = record_of(job, result, sequential)
    if JSON.value:
        print(json.dumps(record | {"load_s": round(loaded - began, 3)}, ensure_ascii=False))
    if job.output:
        write_whole(job.output, json.dumps(record, ensure_ascii=False) + "\n")
    write_pictures(job, result)
    print(
        f"[{result.finish_reason}: {summary(job, result, sequential)}; first token after {first - began:.1f} s, "
        f"{loaded - began:.1f} s of them loading]",
        file=sys.stderr,
    )


def answer_many(job: Job, items: Iterator, sequential: bool) -> None:
    """Results in the order of the prompts, each as soon as it and all before it are there."""
    from tqdm import tqdm

    from pasta_jax.decode.generate import Result

    total, waiting, records = len(job.prompts), {}, []
    part = job.output.with_name(job.output.name + ".part") if job.output else None
    began = time.perf_counter()
    progress = tqdm(total=total, desc="answers", file=sys.stderr) if sys.stderr.isatty() else None
    with part.open("w", encoding="utf-8") if part else nullcontext() as out:
        for item in items:
            if not isinstance(item, Result):
                continue
            waiting[item.request] = _asked(item, job)
            while (number := len(records)) in waiting:
                result = waiting.pop(number)
                record = record_of(job, result, sequential)
                records.append(record)
                write_pictures(job, result)
                line = json.dumps(record, ensure_ascii=False)
                if out:
                    print(line, file=out, flush=True)
                elif JSON.value:
                    print(line, flush=True)
                else:
                    print(f"=== {number + 1}: {' '.join(result.trace.prompt.split())}\n{result.text}\n", flush=True)
            if progress is not None:
                progress.update()
            else:
                done = len(records) + len(waiting)
                if done * 20 // total > (done - 1) * 20 // total:
                    print(f"answered {done} of {total}", file=sys.stderr, flush=True)
    if progress is not None:
        progress.close()
    if part:
        part.replace(job.output)
    print(f"[{summary_of_many(records, time.perf_counter() - began)}]", file=sys.stderr)


def _asked(result, job: Job):
    """The result with the question in the user's own words in its trace."""
    prompt = job.prompts[result.request]
    return dataclasses.replace(result, trace=dataclasses.replace(result.trace, prompt=prompt))


def baseline_of(job: Job, request: int) -> int | None:
    """Tokens of the sequential answer to the same prompt, where they are known and any."""
    return job.baseline[request] or None if job.baseline is not None else None


def record_of(job: Job, result, sequential: bool) -> dict:
    """One line of --output."""
    trace, baseline = result.trace, baseline_of(job, result.request)
    record = {
        "index": result.request,
        "prompt": trace.prompt,
        "text": result.text,
        "program": trace.program().render(),
        "model": trace.model,
        "sequential": sequential,
        "replayed": trace.replayed,
        "finish_reason": result.finish_reason,
        "prompt_tokens": len(trace.prompt_ids),
        "tokens": len(trace.token),
        "text_tokens": trace.text_tokens,
        "chunks": len(trace.closed) - 1,
        "steps": trace.steps,
        "critical_path": trace.critical_path,
        "parallelism": round(trace.parallelism, 4),
        "prefill_ms": trace.prefill_ms,
        "decode_ms": round(trace.decode_ms, 3),
    }
    if baseline and trace.critical_path:
        record |= {"baseline_tokens": baseline, "theoretical_speedup": round(trace.speedup(baseline), 4)}
    return record


def write_pictures(job: Job, result) -> None:
    """The files that show one answer."""
    from pasta_jax.decode.trace_file import to_json
    from pasta_jax.view.page import page
    from pasta_jax.view.perfetto import to_perfetto
    from pasta_jax.view.picture import picture

    trace, baseline = result.trace, baseline_of(job, result.request)
    makers = {
        "trace": lambda: to_json(trace),
        "perfetto": lambda: json.dumps(to_perfetto(trace), ensure_ascii=False),
        "html": lambda: page(trace, baseline),
        "svg": lambda: picture(trace),
    }
    for name, path in job.files.items():
        if len(job.prompts) > 1:
            path = path.with_name(f"{path.stem}-{result.request + 1:04}{path.suffix}")
        write_whole(path, makers[name]())


def summary(job: Job, result, sequential: bool) -> str:
    """One answer's figures."""
    trace, baseline = result.trace, baseline_of(job, result.request)
    said = f"{len(trace.token)} tokens in {trace.steps} steps"
    if not sequential:
        said += f" (critical path {trace.critical_path}, parallelism {trace.parallelism:.2f})"
    if baseline and trace.critical_path:
        said += f", theoretical speedup {trace.speedup(baseline):.2f} over {baseline} sequential tokens"
    if trace.decode_ms > 0:
        said += f", {1000 * len(trace.token) / trace.decode_ms:.0f} tokens/s"
    return said


def summary_of_many(records: list[dict], seconds: float) -> str:
    """All answers' figures; means are geometric, over answers that are not empty."""
    from pasta_jax.lang.clock import geometric_mean

    tokens = sum(record["tokens"] for record in records)
    said = f"{len(records)} answers, {tokens} tokens in {seconds:.1f} s, compiling included"
    for key in ("parallelism", "theoretical_speedup"):
        values = [record[key] for record in records if record.get(key)]
        if values:
            said += f", {key.replace('_', ' ')} {geometric_mean(values):.2f}"
    return said


if __name__ == "__main__":
    cli.run(main, default_config="configs/decode.py")
