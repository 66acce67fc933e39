"""The benchmarks measure what they say: every thread runs, the runs are the same programs, and the counts are right.

Nothing here looks at a time.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import pytest

from configs.benchmark import get_config
from launch import benchmark
from pasta_jax.benchmark import programs as structures
from pasta_jax.benchmark import steps as speed
from pasta_jax.data.toy_tokenizer import toy_tokenizer
from pasta_jax.decode.generate import DecodeConfig
from pasta_jax.decode.state import empty_state
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock, geometric_mean, parallelism
from pasta_jax.lang.program import Program
from pasta_jax.models.config import PRESETS
from pasta_jax.models.weights import PACKAGED, Model
from tests.byte_tokenizer import ByteTokenizer
from tests.models import TINY, random_params
from tests.requires import requires_smollm2

SETTINGS = DecodeConfig(lanes=1, rows=4, slots=128)
TEXT = (
    'Begin <promise topic="a" tokens=2 /><async>one two three</async>'
    '<promise topic="b" tokens=1 /><async>four</async><sync/>end'
)


@functools.cache
def toy() -> Model:
    config = dataclasses.replace(PRESETS["toy"], layers=1)
    return Model("toy", config, jax.tree.map(jnp.asarray, random_params(config, 1)), ByteTokenizer())


def test_all_threads_run_in_every_step_that_is_timed():
    for rows in (1, 3):
        assert speed.decode_runner(toy(), rows, slots=128, prompt=8, steps=4)() > 0  # it counts the slots itself
    with pytest.raises(ValueError, match="do not fit into 32"):
        speed.decode_runner(toy(), 3, slots=32, prompt=8, steps=8)


def test_the_timed_events_are_what_their_names_say():
    times = speed.interleaved(speed.event_runners(toy(), slots=128, prompt=8), rounds=2, report=lambda line: None)
    assert {name: len(found) for name, found in times.items()} == {
        "fork": 2, "plain": 2, "join": 2, "in one call": 2, "in many calls": 2,
    }  # fmt: skip


def test_pairs_hold_the_clock_of_their_program():
    program = Program.parse(TEXT)
    [pair] = structures.measure(toy(), [program], SETTINGS, prompt_tokens=8, rounds=1, say=lambda line: None)
    ids = program.ids(ByteTokenizer())
    assert pair.tokens == len(program.strip())
    assert pair.critical_path == pair.steps == clock(ids, ByteTokenizer.tags, 0).critical_path
    assert pair.parallelism == parallelism(ids, ByteTokenizer.tags, 0)
    assert pair.theoretical == pair.tokens / pair.critical_path
    found = structures.summary([pair, pair])
    assert found["programs"] == 2
    assert found["efficiency"] == pytest.approx(found["realised"] / found["theoretical"], abs=0.01)


def test_unreadable_programs_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "programs.jsonl"
    good = json.dumps({"program": TEXT})
    for bad, message in [
        ("{", "programs.jsonl:2, column 2: not JSON"),
        ('{"text": 1}', 'programs.jsonl:2: has no "program"'),
        ('{"program": "<async>x</async>"}', "programs.jsonl:2: program: "),
    ]:
        path.write_text(f"{good}\n{bad}\n")
        with pytest.raises(PastaError, match=message):
            structures.read_programs(path)
    path.write_text("")
    with pytest.raises(PastaError, match="is empty"):
        structures.read_programs(path)
    with pytest.raises(PastaError, match="none"):
        structures.read_programs(tmp_path / "none")


def test_keys_and_values_are_counted_as_the_pool_holds_them():
    kv = empty_state(toy().config, 1, 100, jnp.float32, stacked=False).pool.kv
    assert speed.kv_bytes(toy(), 100) == sum(leaf.nbytes for leaf in jax.tree.leaves(kv))


@requires_smollm2
def test_random_weights_have_the_shape_of_their_preset():
    model = speed.random_model("toy", seed=0)
    assert model.params["embed"].shape == (PRESETS["toy"].vocab, PRESETS["toy"].embed)
    assert len({float(leaf.std()) for leaf in jax.tree.leaves(model.params) if leaf.ndim > 1}) > 3


@requires_smollm2
def test_the_committed_programs_are_spread_as_described(request):
    from pasta_jax.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(PACKAGED["smollm2_135m"]())
    programs = structures.read_programs(request.config.rootpath / "configs" / "structures.jsonl")
    ids = [program.ids(tokenizer) for program in programs]
    found = [parallelism(one, tokenizer.tags, 0) for one in ids]
    lengths = [len(tokenizer.encode(program.strip())) for program in programs]
    assert len(programs) >= 40
    assert min(found) == 1.0
    assert 3.9 < max(found) < 4.5
    assert 2.0 < geometric_mean(found) < 2.2
    assert 100 <= min(lengths) <= max(lengths) <= 600


def test_sampling_counts_every_answer_at_every_number_of_lanes(tmp_path, monkeypatch):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"instruction": f"Say {n}.", "output": "One."}) + "\n" for n in range(3)))
    config = get_config("smollm2_135m")
    config.sampling.update(source=str(path), lanes=(1, 4), count=2, waves=1.0, max_tokens=6, rows=2, slots=128)
    shape = dataclasses.replace(TINY, vocab=toy_tokenizer().model_vocab)
    model = Model("tiny", shape, jax.tree.map(jnp.asarray, random_params(shape, 1)), toy_tokenizer())
    monkeypatch.setattr(benchmark, "model_of", lambda config: model)
    report = benchmark.sampling(config)
    assert [found["answers"] for found in report["lanes"].values()] == [2, 4]
    for found in report["lanes"].values():
        assert found["answers"] <= found["tokens"] <= 6 * found["answers"] + found["answers"]
        assert found["hours_of_2000_prompts"] >= 0
