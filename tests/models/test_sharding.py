"""The same loop on one device and on meshes of eight simulated ones: equal tokens and traces, no needless transfers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from pasta_jax.decode import generate as decoding
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import generate
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.prefill import begin, start, write
from pasta_jax.decode.replay import script_for
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import empty_state, new_state
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, Rope
from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.parameters import unstack
from pasta_jax.models.sharding import (
    make_mesh,
    rows,
    shard,
    shardings,
    specs,
    to_decode_with,
)
from pasta_jax.tpu.program import collectives, device_bytes
from pasta_jax.weights import adapter as lora
from pasta_jax.weights.for_cpu import by_columns, in_panels
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import UNTIED, talkative
from tests.helpers.replays import replay

pytestmark = pytest.mark.usefixtures("few_programs")
TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags
SETTINGS = DecodeConfig(lanes=8, rows=3, slots=0)
NARROW = UNTIED  # two key/value heads
WIDE = dataclasses.replace(NARROW, heads=16, kv_heads=8)  # eight: every mesh divides heads, ff and vocabulary
MIXED = dataclasses.replace(
    WIDE, experts=6, active_experts=3, router_bias=True, mlp_bias=True, gate_limit=7.0, sinks=True
)
# Layers of several shapes, which can't be stacked; some read the keys and values of others.
UNEVEN = dataclasses.replace(
    WIDE, layers=4, global_every=2, attention_cap=None, attention_scale=1.0, value_norm=True, global_head_dim=16,
    shared_layers=2, wide_shared=True, layer_embed=4, layer_scales=True, rope=Rope(1e6, share=0.25, of_pairs=True),
)  # fmt: skip


@functools.cache
def host_params(config, layout: str):
    """Random weights whose head samples tags often; for decoding only, each kernel is transposed."""
    params = talkative(config, TOKENIZER, stacked=True)
    if layout in ("columns", "panels"):
        return {"columns": by_columns, "panels": in_panels}[layout](unstack(params))
    return params if layout == "stacked" else unstack(params)


def mesh_of(data: int, model: int):
    return make_mesh(data, model, jax.devices()[: data * model])


@functools.cache
def model_on(config, layout: str, mesh: tuple[int, int] | None) -> Model:
    params = host_params(config, layout)
    placed = jax.device_put(params) if mesh is None else shard(params, mesh_of(*mesh))
    return Model("toy", config, placed, TOKENIZER)


# Equal tokens

PROMPTS = [list(b"question"), list(b"why?"), list(b"tell me a story"), list(b"x")]
PROGRAMS = [
    Program.parse(text).ids(TOKENIZER)
    for text in (
        'one <promise topic="a" tokens=2 /><async>some words of it</async> more <promise topic="b" tokens=1 />'
        '<async>xyz</async>text<sync/>after<promise topic="c" tokens=3 /><async>it goes on and on</async>e',
        "plain",
        '<promise topic="" tokens=1 /><async></async><sync/><sync/>z',
        '<promise topic="t" tokens=1 /><async>aaaaaa</async><promise topic="u" tokens=1 /><async>bbbbbbbbbbbb</async>'
        '<promise topic="v" tokens=1 /><async>cccc</async><sync/>',
    )
]
SAMPLINGS = [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 1.0, "top_k": 50, "top_p": 0.9}]
REQUESTS = [  # more than lanes
    Request(tuple(prompt), 40, False, Rules(**sampling, seed=seed, max_topic_tokens=3, max_chunk_tokens=6))
    for seed, (prompt, sampling) in enumerate(zip(PROMPTS * 3, SAMPLINGS * 4, strict=True))
]


@functools.cache
def replayed(config, layout: str, mesh: tuple[int, int] | None):
    return replay(model_on(config, layout, mesh), PROMPTS, PROGRAMS, SETTINGS)


@functools.cache
def sampled(config, layout: str, mesh: tuple[int, int] | None):
    return generate(model_on(config, layout, mesh), REQUESTS, SETTINGS)


@pytest.mark.slow
def test_logits_of_replayed_programs_are_equal_on_a_mesh():
    on_mesh, alone = replayed(WIDE, "unrolled", (1, 8)), replayed(WIDE, "stacked", None)
    for (ours, ours_NxV), (theirs, theirs_NxV) in zip(on_mesh, alone, strict=True):
        for field in ("token", "thread", "step", "position", "linear", "steps"):
            np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
        np.testing.assert_allclose(ours_NxV, theirs_NxV, atol=1e-5, rtol=0)
    assert np.std(alone[0][1]) > 0.1


@pytest.mark.parametrize(
    ("config", "mesh", "layout"),
    [
        pytest.param(WIDE, (2, 4), "stacked", marks=pytest.mark.slow),
        pytest.param(WIDE, (4, 2), "columns", marks=pytest.mark.extended),
        pytest.param(WIDE, (8, 1), "stacked", marks=pytest.mark.extended),
        pytest.param(MIXED, (2, 4), "stacked", marks=pytest.mark.slow),
        pytest.param(MIXED, (4, 2), "unrolled", marks=pytest.mark.extended),
        pytest.param(UNEVEN, (2, 4), "unrolled", marks=pytest.mark.slow),
        pytest.param(NARROW, (2, 4), "columns", marks=pytest.mark.slow),
    ],
    ids=lambda value: {WIDE: "wide", NARROW: "narrow", MIXED: "mixed", UNEVEN: "uneven"}.get(value, str(value)),
)
def test_decoded_tokens_are_equal_on_every_mesh(config, mesh, layout):
    alone = sampled(config, "stacked", None)
    for one, on_mesh in zip(alone, sampled(config, layout, mesh), strict=True):
        assert one.text == on_mesh.text
        for field in ("token", "thread", "step", "position"):
            np.testing.assert_array_equal(getattr(on_mesh.trace, field), getattr(one.trace, field))
    assert sum(len(one.trace.closed) for one in alone) > 2 * len(REQUESTS)  # they forked


@pytest.mark.slow
@pytest.mark.parametrize("config", [WIDE, MIXED], ids=["wide", "mixed"])
def test_decoded_tokens_are_equal_with_our_own_kernels(config):
    """On one device, with the rows of all lanes packed."""
    if kernels.library() is None:
        pytest.skip("needs a C++ compiler")
    expected = sampled(config, "stacked", None)
    ours = generate(model_on(config, "panels", None), REQUESTS, dataclasses.replace(SETTINGS, packed=(8,)))
    assert [one.trace.token.tolist() for one in ours] == [one.trace.token.tolist() for one in expected]


# No needless transfers


@pytest.mark.slow
def test_a_state_keeps_its_sharding_and_nothing_compiles_twice():
    """A step's results have the sharding of its arguments: else every call would move the pool, or compile again."""
    model = model_on(WIDE, "stacked", (2, 4))
    spec = decoding.loop_spec(model, SETTINGS, 256, sequential=False)  # as replaced by few_programs
    sampled(WIDE, "stacked", (2, 4))
    compiled = [function._cache_size() for function in (run, write, begin)]
    state = new_state(model, SETTINGS.lanes, 256)
    expected = shardings(state, mesh_of(2, 4))
    for request in range(2):
        state = start(model, state, request, REQUESTS[request], spec)
        state = run(model.params, state, np.int32(4), np.bool_(False), config=WIDE, spec=spec, script=None)
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == expected
    assert [function._cache_size() for function in (run, write, begin)] == compiled


def test_rows_are_packed_only_where_one_device_computes_them():
    config = dataclasses.replace(SETTINGS, lanes=2, slots=128, packed=(4,), forks="admitted")
    specs = {
        sizes: decoding.loop_spec(model_on(WIDE, "stacked", sizes), config, 128, sequential=False)
        for sizes in (None, (1, 2), (2, 1))
    }
    assert {sizes: bool(spec.packed and spec.priced) for sizes, spec in specs.items()} == {
        None: True,
        (1, 2): True,
        (2, 1): False,
    }


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (1, 2), pytest.param((2, 1), marks=pytest.mark.extended)])
def test_a_loop_with_everything_compiles_once_on_a_mesh(sizes):
    """Biases, log-probabilities, drafts and prices begin where a step leaves them."""
    model = model_on(WIDE, "stacked", sizes)
    config = dataclasses.replace(SETTINGS, lanes=2, slots=128, packed=(4,), forks="admitted", draft="lookup")
    spec = decoding.loop_spec(model, config, 128, sequential=False, extras=True)
    loop = DeviceLoop(model, spec, config.lanes, 128, prices=np.ones(len(spec.priced_rows)))
    compiled = run._cache_size()
    for number, request in enumerate(REQUESTS[:3]):
        loop.submit(number, dataclasses.replace(request, scored=True, bias=((5, 1.0),)), 8)
    while loop.is_busy:
        for _ in loop.round():
            pass
    assert run._cache_size() == compiled


@pytest.mark.parametrize(
    ("config", "reduced"),
    [(WIDE, ["out", "down"]), pytest.param(NARROW, ["down"], marks=pytest.mark.slow)],
    ids=["wide", "narrow"],
)
def test_a_step_reuses_the_pool_and_moves_no_part_of_it(config, reduced):
    model = model_on(config, "stacked", (2, 4))
    state = new_state(model, SETTINGS.lanes, 256)
    spec = decoding.loop_spec(model, SETTINGS, 256, sequential=False)  # those of `sampled`: compiled already
    program = run.lower(model.params, state, np.int32(1), np.bool_(False), config=config, spec=spec).compile()
    assert program.memory_analysis().alias_size_in_bytes >= device_bytes(state)

    operations = collectives(program.as_text())
    # Nothing longer than the new keys or values of a step, or its hidden states.
    new = SETTINGS.lanes * SETTINGS.rows * max(config.embed, config.kv_heads * config.head_dim) * 4
    assert max(one.bytes for one in operations) <= new < device_bytes(state.pool.kv) / config.layers / 8
    in_layers = [one.kind for one in operations if one.in_layers]
    assert in_layers.count("all-reduce") == len(reduced) * len(spec.widths)


# Rules


def paths(tree) -> dict[str, P]:
    """The spec of every leaf by its path."""
    flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, P))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): one for path, one in flat}


def shapes_of(preset: str, stacked: bool):
    init = functools.partial(transformer.init, PRESETS[preset], stacked=stacked)
    return jax.eval_shape(init, jax.random.key(0))


def test_parameters_are_sharded_by_the_rules():
    actual = paths(specs(shapes_of("gemma_7b", True), mesh_of(1, 8)))
    assert actual == {
        "embed": P("model"),
        "final_norm/weight": P(),
        "layers/attn_norm/weight": P(),
        "layers/mlp_norm/weight": P(),
        "layers/qkv/kernel": P(None, "model"),
        "layers/out/kernel": P(None, None, "model"),
        "layers/gate_up/kernel": P(None, "model"),
        "layers/down/kernel": P(None, None, "model"),
    }
    unrolled = paths(specs(shapes_of("gemma_7b", False), mesh_of(1, 8)))
    assert unrolled["layers/27/qkv/kernel"] == unrolled["layers/27/gate_up/kernel"] == P("model")
    assert unrolled["layers/27/out/kernel"] == unrolled["layers/27/down/kernel"] == P(None, "model")


@pytest.mark.parametrize(("config", "divided"), [(WIDE, True), (NARROW, False)], ids=["wide", "narrow"])
def test_parameters_for_decoding_only_are_sharded_by_the_same_rules(config, divided):
    actual = paths(specs(host_params(config, "columns"), mesh_of(1, 8)))
    assert {path: one for path, one in actual.items() if "norm" not in path and not path.startswith("layers/0")} == {
        "embed": P("model"),
        "head/columns": P(None, "model"),
        "layers/1/qkv/columns": P(None, "model") if divided else P(),
        "layers/1/out/columns": P("model") if divided else P(),
        "layers/1/gate_up/columns": P(None, "model"),
        "layers/1/down/columns": P("model"),
    }


@pytest.mark.parametrize("preset", ["gemma_2b", "gemma3_270m", "smollm2_135m"])
def test_what_a_mesh_does_not_divide_is_replicated(preset):
    actual = paths(specs(shapes_of(preset, True), mesh_of(1, 8)))
    assert actual["layers/qkv/kernel"] == actual["layers/out/kernel"] == P()
    assert actual["layers/gate_up/kernel"] == P(None, "model")
    assert actual["embed"] == P("model")
    state = jax.eval_shape(lambda: empty_state(PRESETS[preset], 4, 256, jnp.float32, True))
    assert paths(specs(state, mesh_of(1, 8)))["pool/kv/0"] == P()
    assert paths(specs(state, mesh_of(8, 1)))["pool/kv/0"] == P()  # four lanes on eight devices


@pytest.mark.parametrize("stacked", [True, False])
def test_a_state_is_sharded_by_the_rules(stacked):
    state = jax.eval_shape(lambda: empty_state(WIDE, 4, 256, jnp.float32, stacked, keep_hidden=True))
    actual = paths(specs(state, mesh_of(2, 4)))
    keys_values = [one for path, one in actual.items() if path.startswith("pool/kv/")]
    assert keys_values == ([P(None, "data", "model")] * 2 if stacked else [P("data", "model")] * 4)
    assert {one for path, one in actual.items() if not path.startswith("pool/kv/")} == {P("data")}
    script = script_for(PROGRAMS, TAGS, TOKENIZER.end_of_turn, 256)
    assert set(paths(specs(script, mesh_of(2, 4))).values()) == {P("data")}


@pytest.mark.parametrize("stacked", [True, False])
def test_adapters_and_optimizer_states_are_sharded_like_their_parameters(stacked):
    mesh, params = mesh_of(2, 4), host_params(WIDE, "stacked" if stacked else "unrolled")
    adapter = lora.new_adapter(params, lora.AdapterSettings(rank=2, alpha=1.0), TAGS, seed=0)
    where = paths(specs(params, mesh))
    prefix = "layers/" if stacked else "layers/1/"
    lead = (None,) * stacked
    pairs = paths(specs(adapter, mesh))
    whole = ("tag_rows/embed", *(prefix + one for one in ("qkv/lora_a", "out/lora_a", "out/lora_b", "down/lora_b")))
    assert {pairs[path] for path in whole} == {P()}
    assert pairs[prefix + "qkv/lora_b"] == pairs[prefix + "gate_up/lora_b"] == P(*lead, "model")
    assert pairs[prefix + "down/lora_a"] == P(*lead, None, "model")
    attached = jax.eval_shape(lambda *trees: lora.attach(*trees, TAGS), params, adapter)
    del attached["tags_at"]  # a number
    assert paths(specs(attached, mesh)) == where | pairs
    moments = paths(specs(jax.eval_shape(optax.adamw(1e-3).init, params), mesh))
    assert moments == {"0/count": P()} | {f"0/{m}/{path}": one for m in ("mu", "nu") for path, one in where.items()}


def test_a_leaf_without_a_rule_is_an_error_that_names_it():
    state = jax.eval_shape(lambda: empty_state(WIDE, 4, 256, jnp.float32, True))
    for tree, message in (
        ({"layers": ({"mixer": {"kernel": np.zeros((4, 4))}},)}, "layers/0/mixer/kernel: no sharding rule"),
        ({"my_embed": np.zeros((4, 4))}, "my_embed: no sharding rule"),
        ({"pool": {"chunks": state.live}}, "pool/chunks: no sharding rule"),
        ({"embed": np.zeros(4)}, "embed: its sharding rule has 2 dimensions, the array 1"),
        ({"out": {"kernel": np.zeros((4, 4))}}, "out/kernel: no qkv/kernel beside it"),
    ):
        with pytest.raises(PastaError, match=message):
            specs(tree, mesh_of(2, 4))


@pytest.mark.parametrize("stacked", [True, False])
def test_fsdp_divides_parameters_and_moments_over_data_too(stacked):
    mesh, params = make_mesh(2, 4, axis="fsdp"), host_params(WIDE, "stacked" if stacked else "unrolled")
    where = paths(specs(jax.eval_shape(optax.adamw(1e-3).init, params), mesh))
    lead, prefix = (None,) * stacked, "layers/" if stacked else "layers/1/"
    for moment in ("mu", "nu"):
        assert where[f"0/{moment}/embed"] == where[f"0/{moment}/head"] == P("model", "fsdp")
        of_layers = {name: where[f"0/{moment}/{prefix}{name}/kernel"] for name in ("qkv", "gate_up", "out", "down")}
        assert of_layers["qkv"] == P(*lead, "model", None, None, "fsdp")
        assert of_layers["gate_up"] == P(*lead, "model", "fsdp")
        assert of_layers["out"] == of_layers["down"] == P(*lead, "fsdp", "model")
    assert rows(mesh).spec == P("fsdp")
    narrow = paths(specs(shapes_of("gemma_2b", True), mesh))  # one key/value head
    assert narrow["layers/qkv/kernel"] == P(None, None, None, None, "fsdp")
    assert narrow["layers/out/kernel"] == P(None, "fsdp")
    divided = shard({"embed": params["embed"]}, mesh)
    whole = to_decode_with(divided)["embed"]
    assert whole.sharding.spec == P("model")
    assert set(whole.sharding.mesh.shape) == {"data", "model"}
    np.testing.assert_array_equal(whole, params["embed"])
