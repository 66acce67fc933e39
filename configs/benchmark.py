"""Measure this machine: the cost of a decoding step, and the speedup that asynchronous decoding realises.

    python -m launch.benchmark decode --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark prefill --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark rounding --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark interpreter --config=configs/benchmark.py:smollm2_135m [--programs=FILE]
    python -m launch.benchmark train --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark sampling --config=configs/benchmark.py:smollm2_135m
    python -m launch.benchmark serve --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark load --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark forks --config=configs/benchmark.py:smollm2_135m
    python -m launch.benchmark fill --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark drafts --config=configs/benchmark.py:smollm2_135m --config.drafts.answers=FOLDER
    python -m launch.benchmark ways --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark profile --config=configs/benchmark.py:smollm2_135m [--programs=FILE]

The last line of each is one JSON object. `decode` takes about two minutes on two CPU cores, four to five with --peers
(transformers on torch and llama.cpp on the same weights in float32, interleaved in the same run; launch/setup.sh
--dev). On two cores of a Zen 5, a step of one row takes 11.9 ms and one of eight 12.9; with --config.model.dtype=q4,
from the blocks of the packaged file, which the peer llama.cpp then reads too, they take 3.25 and 5.62. `prefill`
reads prompts of 128 and 512 tokens: a minute. `rounding` compares next-token distributions with inputs of 16 and 8
bits, and llama.cpp's, with those of unrounded inputs: a minute. `interpreter` replays 43 programs (parallelism 1.0 to
4.4, answers of 120 to 563 tokens; random combinations of phrases) asynchronously and, as their plain text,
sequentially, without the prompt's prefill: 15 minutes with --config.interpreter.rounds=1. `train` runs steps over all
parameters, with --peers also those of transformers on torch: about two minutes; with --config.train.rank=16 over an
adapter's beside a base in --config.model.dtype, with --peers also those of peft. `sampling` answers prompts ten times
each at temperature 1, by continuous batching over 1, 8, 32 and 128 lanes, and estimates the time for 2,000 prompts: six
minutes. `serve` starts our server with the adapter that forks: forks off, eager and admitted, and with --peers
llama.cpp's with the same weights in float32 and as packaged; 1, 2, 4 and 8 clients stream answers to the same
questions. `load` asks them 40 questions at random times (Poisson, so many a second), and prints the times to the first
token and to the end, and the tokens of answers that came in time. `forks` compares the three ways in one process,
without HTTP. `fill` reads the fields of a schema out of texts with 4, 8, 16 and 32 facts: forked, as one JSON text
under the same automaton, and with a request for each field, with --peers also by llama.cpp's server with a grammar and
its slots; a file in --config.fill.records lets the same command go on. `drafts` simulates the decoding of recorded
answers (traces of launch.decode in a folder, or the file answers-model.jsonl of launch.evaluate): with forks, with
drafts of which 0.3 to 0.7 are right, and with both, as many drafts as pay by the milliseconds that a step of so many
rows takes. `ways` measures the same with real drafts: sequential and forked answers without and with them, the same
prompts in turn; it stops after --config.ways.minutes, and the same command goes on from its log. With --peers, each
prompt is then answered by llama.cpp and by transformers, without drafts and with theirs (n-grams, prompt lookup, the
same model in Q4_0): greedily, and from the base model without the adapter; --config.ways.peers names them. Beside other
work, these peers take many times as long, since their threads wait for each other: leave the machine to them, or one
core (taskset). `profile` prints where the time of a step goes (products, attention, writes, sampling, …) and that of an
answer, between theoretical and realised speedup; it writes pictures, and traces for ui.perfetto.dev, to
--config.profile.folder. It has read the profiler's events on CPUs only.

`:gemma_7b_random` has the paper's shape and random weights created on the device (17 GB in bfloat16, SmolLM2's
tokenizer): for accelerators. It has not been run on one yet.
"""

from pasta_jax.benchmark.settings import BenchmarkSettings, ServeBenchmark
from pasta_jax.runs.settings import changed
from pasta_jax.weights.settings import ModelSource


def smollm2_135m() -> BenchmarkSettings:
    """SmolLM2-135M-Instruct."""
    in_threads = ModelSource("smollm2_135m", adapter="pasta", dtype="platform")
    return BenchmarkSettings(serve=ServeBenchmark(threads=in_threads))


def gemma3_270m() -> BenchmarkSettings:
    """Gemma 3 270M; setup.sh --gemma."""
    ways = dict(model=ModelSource("gemma3_270m"), log="runs/ways_gemma3.jsonl")
    return changed(BenchmarkSettings(), model=dict(preset="gemma3_270m"), ways=ways)


def qwen2_5_coder_1_5b() -> BenchmarkSettings:
    """Qwen2.5-Coder-1.5B-Instruct from its file's own blocks; setup.sh --qwen."""
    forks = ModelSource("qwen2_5_coder_1_5b", adapter="qwen2_5_coder_1_5b", bits=8)
    model = dict(preset="qwen2_5_coder_1_5b", dtype="q4")
    return changed(BenchmarkSettings(), model=model, ways=dict(model=forks, log="runs/ways_qwen.jsonl"))


def gemma_7b_random() -> BenchmarkSettings:
    """The paper's shape with random weights, for accelerators."""
    return changed(BenchmarkSettings(), model=dict(preset="gemma_7b"), random_weights=True)
