"""Benchmarks: every thread runs, replays run the same programs, reports are correct. No test checks a time."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.benchmark import programs, steps
from pasta_jax.benchmark import run as benchmark
from pasta_jax.benchmark.settings import BenchmarkSettings, SamplingBenchmark, StepBenchmark, TrainBenchmark
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import empty_state
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.lang.clock import clock, geometric_mean, parallelism
from pasta_jax.lang.program import Program
from pasta_jax.models.config import PRESETS
from pasta_jax.models.parameters import packed_shapes, unstack
from pasta_jax.models.sharding import make_mesh, shard
from pasta_jax.runs.settings import changed
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train.trainable import divide
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import TINY, random_params
from tests.helpers.requires import requires_dev, requires_smollm2
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
DECODING = DecodeConfig(lanes=1, rows=4, slots=128)
TEXT = (
    'Begin <promise topic="a" tokens=2 /><async>one two three</async>'
    '<promise topic="b" tokens=1 /><async>four</async><sync/>end'
)


@pytest.mark.slow
def test_all_threads_run_in_every_step_that_is_timed():
    for rows in (1, 3):
        assert steps.decode_runner(tiny_model(), rows, slots=128, prompt=8, steps=4)() > 0  # it counts the slots itself
    with pytest.raises(PastaError, match=r"do not fit into 32; raise config\.decode\.slots"):
        steps.decode_runner(tiny_model(), 3, slots=32, prompt=8, steps=8)


@pytest.mark.slow
def test_the_timed_events_match_their_names(monkeypatch):
    """By the tokens that a timed call feeds."""
    fed, take = [], steps.run_and_wait

    def noted(model, state, *others):
        before = int(state.pool.fill[0])
        after = take(model, state, *others)
        fed.extend(after.pool.token[0, before : int(after.pool.fill[0])].tolist())
        return after

    runners = steps.event_runners(tiny_model(), slots=128, prompt=8)
    monkeypatch.setattr(steps, "run_and_wait", noted)
    tags, [word, *_] = ByteTokenizer.tags, ByteTokenizer().encode(" word")
    for name, expected in {
        "fork": [tags.close(3), tags.async_],
        "plain": [word] * 2,
        "join": [tags.sync, tags.end_async],
        "in one call": [word] * 8,
        "in many calls": [word] * 8,
    }.items():
        fed.clear()
        assert runners.pop(name)() > 0
        assert sorted(fed) == sorted(expected), name
    assert not runners


@pytest.mark.slow
def test_replays_report_the_clock_of_their_program():
    program = Program.parse(TEXT)
    [replay] = programs.measure(tiny_model(), [program], DECODING, prompt_tokens=8, rounds=1)
    ids = program.ids(ByteTokenizer())
    assert replay.tokens == len(program.strip())
    assert replay.critical_path == replay.steps == clock(ids, ByteTokenizer.tags, 0).critical_path
    assert replay.parallelism == parallelism(ids, ByteTokenizer.tags, 0)
    assert replay.theoretical == replay.tokens / replay.critical_path
    summary = programs.summary([replay, replay])
    assert summary["programs"] == 2
    assert summary["efficiency"] == pytest.approx(summary["realised"] / summary["theoretical"], abs=0.01)


def test_unreadable_programs_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "programs.jsonl"
    good = json.dumps({"program": TEXT})
    for bad, message in [
        ("{", "programs.jsonl: line 2, column 2: not JSON"),
        ('{"text": 1}', "programs.jsonl: line 2: program: missing"),
        ('{"program": "<async>x</async>"}', "programs.jsonl: line 2: program: "),
    ]:
        path.write_text(f"{good}\n{bad}\n")
        with pytest.raises(PastaError, match=message):
            programs.read_programs(path)
    path.write_text("")
    with pytest.raises(PastaError, match="is empty"):
        programs.read_programs(path)
    with pytest.raises(PastaError, match="none"):
        programs.read_programs(tmp_path / "none")


def test_keys_and_values_are_counted_as_the_pool_holds_them():
    kv = empty_state(tiny_model().config, 1, 100, jnp.float32, stacked=False).pool.kv
    assert steps.kv_bytes(tiny_model(), 100) == sum(leaf.nbytes for leaf in jax.tree.leaves(kv))


MIXTURE = dataclasses.replace(TINY, experts=4, active_experts=1, tied_head=False)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_reads_the_active_experts_and_no_table_that_is_only_looked_up(stacked):
    params = random_params(MIXTURE, 1, stacked=stacked)
    layers = MIXTURE.layers * packed_shapes(MIXTURE)["gate_up/kernel"][1] * MIXTURE.embed * 4
    layers += MIXTURE.layers * packed_shapes(MIXTURE)["down/kernel"][2] * MIXTURE.embed * 4
    unread = 3 * layers + params["embed"].nbytes
    every = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert steps.weight_bytes(params, MIXTURE) == every - unread
    assert steps.weight_bytes(random_params(TINY, 1), TINY) == sum(
        leaf.nbytes for leaf in jax.tree.leaves(random_params(TINY, 1))
    )


def test_devices_of_a_mesh_read_a_part_each():
    params = random_params(TINY, 1, stacked=True)
    divided = shard(params, make_mesh(1, 2, jax.devices()[:2]))
    whole, part = (steps.weight_bytes(one, TINY) for one in (params, divided))
    assert whole / 2 <= part < 0.6 * whole  # norms, and what doesn't divide, are everywhere


@requires_smollm2
def test_random_weights_have_the_shape_of_their_preset():
    model = steps.random_model("toy", seed=0)
    assert model.params["embed"].shape == (PRESETS["toy"].vocab, PRESETS["toy"].embed)
    assert len({float(leaf.std()) for leaf in jax.tree.leaves(model.params) if leaf.ndim > 1}) > 3


@requires_smollm2
def test_the_programs_are_spread_as_described():
    tokenizer = load_tokenizer(packages.path("smollm2_135m"))
    items = programs.read_programs(programs.OWN)
    values = [parallelism(program.ids(tokenizer), tokenizer.tags, 0) for program in items]
    lengths = [len(tokenizer.encode(program.strip())) for program in items]
    assert len(items) == 43
    assert min(values) == 1.0
    assert 3.9 < max(values) < 4.5
    assert 2.0 < geometric_mean(values) < 2.2
    assert (min(lengths), max(lengths)) == (120, 563)


def small(monkeypatch, tmp_path, **changes: dict) -> BenchmarkSettings:
    """The settings of a tiny model with the toy task's tokenizer, a few steps each; `changes` by section."""
    shape = dataclasses.replace(TINY, vocab=toy_tokenizer().model_vocab)
    model = Model("tiny", shape, jax.device_put(random_params(shape, 1)), toy_tokenizer())
    monkeypatch.setattr(benchmark, "load", lambda source, **_: model)
    monkeypatch.setattr(benchmark.trainable, "load", lambda source, adapter, seed, mesh: divide(model, adapter, seed))
    files = dataclasses.replace(model, params=jax.tree.map(np.asarray, unstack(model.params)))
    monkeypatch.setattr(benchmark.peers, "read_model", lambda *_: files)
    monkeypatch.setattr(steps, "copy_gb_s", lambda: 10.0)
    small = BenchmarkSettings(
        decode=StepBenchmark((1, 2), slots=64, prompt=8, steps=4, rounds=1),
        train=TrainBenchmark(length=16, rounds=1),
    )
    return changed(small, **changes)


def fixed(name: str, ms: float, order: list[str]) -> steps.Runner:
    """A runner that takes `ms` and records its turn."""
    return lambda: order.append(name) or ms


def test_the_decode_report_compares_peers_that_ran_beside_ours_by_width(monkeypatch, tmp_path):
    order: list[str] = []
    monkeypatch.setattr(steps, "decode_runner", lambda model, rows, *_: fixed(f"ours/{rows}", 2.0 * rows, order))
    monkeypatch.setattr(benchmark.peers, "require", lambda *_: None)
    monkeypatch.setattr(benchmark.peers, "open_peers", lambda *_: {"transformers": None})
    monkeypatch.setattr(benchmark.peers, "step_runner", lambda _, rows, *__: fixed(f"theirs/{rows}", 4.0, order))
    report = benchmark.decode(small(monkeypatch, tmp_path), with_peers=True)
    assert order == ["ours/1", "theirs/1", "ours/2", "theirs/2"]
    assert report["ms_per_step"] == report["ms_per_step_min"] == {1: 2.0, 2: 4.0}
    assert report["peers"] == {"transformers": {1: 4.0, 2: 4.0}}
    assert report["ours_over_peer"] == {"transformers": {1: 0.5, 2: 1.0}}
    alone = json.loads(benchmark.as_json(benchmark.decode(small(monkeypatch, tmp_path), with_peers=False)))
    assert (alone["benchmark"], alone["copy_gb_s"], alone["ms_per_step"]) == ("decode", 10.0, {"1": 2.0, "2": 4.0})
    assert not alone.keys() & {"peers", "ours_over_peer"}


def test_the_prefill_report_compares_peers_that_ran_beside_ours_by_length(monkeypatch, tmp_path):
    order: list[str] = []
    monkeypatch.setattr(benchmark.peers, "require", lambda *_: None)
    monkeypatch.setattr(benchmark.peers, "open_peers", lambda *_: {"llama_cpp": None})
    monkeypatch.setattr(benchmark.peers, "prefill_runner", lambda _, length: fixed(f"theirs/{length}", 4.0, order))
    prefill = {"lengths": (8, 24), "slots": 32, "rounds": 1}
    alone = benchmark.prefill(small(monkeypatch, tmp_path, prefill=prefill), with_peers=False)
    assert min(alone["ms"].values()) > 0
    assert alone["peers"] is None
    monkeypatch.setattr(steps, "prefill_runner", lambda model, slots, prompt: fixed(f"ours/{prompt}", prompt, order))
    report = benchmark.prefill(small(monkeypatch, tmp_path, prefill=prefill), with_peers=True)
    assert order == ["ours/8", "theirs/8", "ours/24", "theirs/24"]
    assert (report["ms"], report["tokens_per_s"]) == ({8: 8.0, 24: 24.0}, {8: 1000.0, 24: 1000.0})
    assert report["ours_over_peer"] == {"llama_cpp": {8: 2.0, 24: 6.0}}
    with pytest.raises(PastaError, match=r"prefill.lengths: 32 tokens don't fit 32 slots; raise slots"):
        benchmark.prefill(small(monkeypatch, tmp_path, prefill=prefill | {"lengths": (32,)}), with_peers=False)


def test_peers_that_are_not_installed_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark.peers.importlib.util, "find_spec", lambda name: None)
    for run in (benchmark.decode, benchmark.prefill, benchmark.train):
        with pytest.raises(PastaError, match=r"--peers needs torch: bash launch/setup.sh --dev"):
            run(small(monkeypatch, tmp_path), with_peers=True)


def test_peers_are_refused_for_weights_that_they_would_not_read(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark.peers.importlib.util, "find_spec", lambda name: name)
    for model in ({"preset": "gemma_7b"}, {"path": "runs/toy/model"}, {"adapter": "adapter.safetensors"}):
        for run in (benchmark.decode, benchmark.prefill, benchmark.train):
            with pytest.raises(PastaError, match="--peers: the peers read packaged weights only"):
                run(small(monkeypatch, tmp_path, model=model), with_peers=True)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"rank": 2}, r"set --config\.model\.dtype=bfloat16"),
        ({"products": "bfloat16"}, r"config\.train\.products=float32"),
    ],
)
def test_training_is_compared_with_peers_of_its_dtype_only(monkeypatch, tmp_path, train, message):
    monkeypatch.setattr(benchmark.peers, "require", lambda *_: None)
    with pytest.raises(PastaError, match=message):
        benchmark.train(small(monkeypatch, tmp_path, train=train), with_peers=True)


def test_a_draft_has_the_price_of_a_step_that_was_measured(monkeypatch, tmp_path):
    with pytest.raises(PastaError, match=r"config\.drafts\.rows=16: no step of as many has a price"):
        benchmark.draft(small(monkeypatch, tmp_path, drafts={"rows": 16}))


def test_prompts_that_leave_too_little_of_the_slots_are_told(capsys):
    requests = [Request((1,) * length, 20, sequential=True) for length in (4, 50)]
    steps.refuse_cut(tiny_model(), requests, 64, "config.ways.slots")
    assert "config.ways.slots=64: 1 of 2 prompts leave less than max_tokens" in capsys.readouterr().err
    with pytest.raises(PastaError, match="prompt 1: 50 tokens, but the pool of 48"):
        steps.refuse_cut(tiny_model(), requests, 48, "config.ways.slots")


@requires_dev("torch")
@pytest.mark.extended
def test_steps_of_transformers_are_taken_in_a_process_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark.peers, "require", lambda *_: None)
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))  # for the process that exports, too
    small(monkeypatch, tmp_path)
    benchmark.peers.exported("tiny")  # which has no package for that process to read
    report = benchmark.train(small(monkeypatch, tmp_path), with_peers=True)
    assert report["ms_per_step"]["transformers"] > 0
    (tmp_path / "peers/tiny/config.json").write_text("{}")
    with pytest.raises(PastaError, match=r"^transformers: its process ended with exit code 1; see above$"):
        benchmark.train(small(monkeypatch, tmp_path), with_peers=True)


def test_the_interpreter_report_combines_steps_events_and_replays(monkeypatch, tmp_path):
    path = tmp_path / "programs.jsonl"
    path.write_text(json.dumps({"program": TEXT}))
    interpreter = {"programs": str(path), "rows": 2, "widths": (2,), "rounds": 1, "event_rounds": 1}
    monkeypatch.setattr(steps, "decode_runner", lambda model, rows, *_: lambda: 2.0 * rows)
    times = {"fork": 5.0, "plain": 4.0, "join": 4.5, "in one call": 2.0, "in many calls": 2.25}
    monkeypatch.setattr(steps, "event_runners", lambda *_: {name: lambda ms=ms: ms for name, ms in times.items()})
    replay = programs.Replay(
        tokens=60, critical_path=20, steps=22, parallelism=3.0, sequential_s=3.0, asynchronous_s=2.0
    )
    monkeypatch.setattr(programs, "measure", lambda model, items, *_: [replay for _ in items])
    report = benchmark.interpreter(small(monkeypatch, tmp_path, interpreter=interpreter))
    assert (report["programs"], report["rows"], report["parallelism"]) == (1, 2, 3.0)
    assert (report["theoretical"], report["realised"], report["efficiency"]) == (3.0, 1.5, 0.5)
    assert report["steps_over_critical_path"] == 1.1
    assert (report["ms_per_step"], report["in_one_row_steps"]) == ({1: 2.0, 2: 4.0}, {1: 1.0, 2: 2.0})
    assert (report["ms_of_a_plain_step_of_2_rows"], report["fork_ms"], report["join_ms"]) == (4.0, 1.0, 0.5)
    assert report["host_overhead_ms"] == 0.25
    interpreter |= {"slots": 64, "prompt": 50}
    with pytest.raises(
        PastaError, match=r"the longest program has \d+ ids, which don't fit 64 slots beside a prompt of 50"
    ):
        benchmark.interpreter(small(monkeypatch, tmp_path, interpreter=interpreter))


@pytest.mark.extended
def test_sampling_counts_every_answer_at_every_number_of_lanes(monkeypatch, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"instruction": f"Say {n}.", "output": "One."}) + "\n" for n in range(3)))
    sampling = {
        "source": str(path), "lanes": (1, 4), "count": 2, "waves": 1.0, "max_tokens": 6, "rows": 2, "slots": 128
    }  # fmt: skip
    report = benchmark.sampling(small(monkeypatch, tmp_path, sampling=sampling))
    assert ([lanes["answers"] for lanes in report["lanes"].values()], report["seed"]) == ([2, 4], 0)
    for lanes in report["lanes"].values():
        assert lanes["answers"] <= lanes["tokens"] <= 6 * lanes["answers"] + lanes["answers"]


def test_a_source_without_a_prompt_is_refused_before_a_model_is_loaded(monkeypatch, tmp_path):
    (tmp_path / "none.jsonl").write_text('{"instruction": 1}\n')
    monkeypatch.setattr(benchmark, "load_or_make", pytest.fail)
    settings = BenchmarkSettings(sampling=SamplingBenchmark(source=str(tmp_path / "none.jsonl")))
    with pytest.raises(PastaError, match=r"^config\.sampling\.source: .*none\.jsonl has no usable record"):
        benchmark.sampling(settings)


def test_settings_out_of_range_are_refused(monkeypatch, tmp_path):
    with pytest.raises(PastaError, match=r"config.decode.widths: "):
        small(monkeypatch, tmp_path, decode={"widths": ()})
    with pytest.raises(PastaError, match=r"config.train.rows: "):
        small(monkeypatch, tmp_path, train={"rows": 0})
