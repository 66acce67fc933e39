"""Adapters beside one model: lanes with different ones are answered as by each alone, up to the last bits of sums."""

import dataclasses
import functools
import random

import jax
import numpy as np
import pytest

from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.fields.threads import Ask, request_of
from pasta_jax.lang.structure import Positions
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.parameters import stack
from pasta_jax.weights import adapter as lora
from pasta_jax.weights.beside import exchanged, with_adapters
from pasta_jax.weights.for_cpu import CODED, in_panels
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers import models
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.drafters import fitted
from tests.helpers.models import UNTIED, trained

needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="needs a C++ compiler")
TOKENIZER = ByteTokenizer()
SHARED, PACKED = Positions("shared_start"), DecodeConfig(lanes=4, rows=3, slots=96, packed=(4, 8))
TARGETS = {"one": ("qkv", "out", "gate_up", "down"), "two": ("qkv", "out", "gate_up", "down"), "three": ("down",)}


@functools.cache
def base(config: TransformerConfig = UNTIED) -> Model:
    params = models.talkative(config, TOKENIZER) if not config.tied_head else models.random_params(config, 5)
    return Model("talkative", config, jax.device_put(params), TOKENIZER, fingerprint="of these")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three adapters, of which the last has pairs for one kernel alone and a lower rank."""
    folders = {}
    for seed, (name, targets) in enumerate(TARGETS.items()):
        settings = lora.AdapterSettings(rank=3 if len(targets) > 1 else 2, alpha=3.0, targets=targets)
        fresh = lora.new_adapter(base().params, settings, TOKENIZER.tags, seed)
        adapter = trained(fresh, seed, size=0.1)
        folders[name] = tmp_path_factory.mktemp("adapters") / name
        lora.save_adapter(folders[name], adapter, base(), lora.describe(base(), settings, SHARED))
    return folders


def named(folders, *names: str) -> list[str]:
    return [f"{name}={folders[name]}" for name in names]


def held(form: str) -> Model:
    """The base, its matrices in a form."""
    if form == "stacked":
        return dataclasses.replace(base(), params=stack(base().params))
    if form in ("panels", CODED):
        params = in_panels(jax.device_get(base().params), CODED if form == CODED else "float32")
        return dataclasses.replace(base(), params=jax.device_put(params))
    return base()


def requests(count: int, adapters: int, guests: bool = False) -> list[Request]:
    """With biases and penalties, and for each adapter one with `guests`."""
    rng = random.Random(3)
    rules = [Rules(temperature=1.0, seed=seed, max_topic_tokens=3, max_chunk_tokens=9) for seed in range(count)]
    prompts = [tuple(rng.choices(range(97, 123), k=rng.choice([5, 20]))) for _ in range(count)]
    asked = [
        Request(prompt, 50, sequential=n % 6 == 5, rules=rules[n], scored=True, adapter=n % (adapters + 1))
        for n, prompt in enumerate(prompts)
    ]
    asked = [dataclasses.replace(one, bias=((98, 2.0), (99, -3.0)) * (n % 2)) for n, one in enumerate(asked)]
    asked = [one.with_rules(frequency_penalty=0.5 * (n % 3), top_p=1 - 0.1 * (n % 2)) for n, one in enumerate(asked)]
    asks = [Ask((*prompts[0], *own)) for own in (b"a", b"bcd")]
    own = [dataclasses.replace(one, max_tokens=9) for one in asked[: adapters + 1]]
    return asked + [request_of(asks, one) for one in own] * guests


def told(result: Result) -> tuple:
    scores = [*result.scores, *(score for guest in result.guests for score in guest.scores)]
    return result.trace.token.tolist(), result.trace.thread.tolist(), [score and score.own for score in scores]


def assert_told(result: Result, expected: Result, most: float) -> None:
    """Equal tokens, and log-probabilities that differ by so much at most: XLA sums other shapes in another order."""
    assert told(result)[:2] == told(expected)[:2]
    own, others = (np.array([np.nan if one is None else one for one in told(each)[2]]) for each in (result, expected))
    np.testing.assert_allclose(own, others, rtol=0, atol=most)


def test_an_adapter_beside_equals_it_merged(folders):
    together, about = with_adapters(base(), named(folders, "one", "two", "three"))
    assert [(one.name, one.number) for one in about] == [("one", 1), ("two", 2), ("three", 3)]
    asked = requests(16, 3, guests=True)
    answers = generate(together, asked, PACKED)
    for one in about:
        adapter, record = lora.load_adapter(folders[one.name], base())
        params = lora.merge(base().params, adapter, TOKENIZER.tags)
        merged = dataclasses.replace(base(), params=params, positions=record.positions)
        mine = [number for number, request in enumerate(asked) if request.adapter == one.number]
        alone = generate(merged, [dataclasses.replace(asked[number], adapter=0) for number in mine], PACKED)
        for number, expected in zip(mine, alone, strict=True):
            assert_told(answers[number], expected, 1e-4)


@pytest.mark.usefixtures("few_programs")
def test_a_prompt_is_copied_only_from_a_lane_with_the_same_adapter(folders):
    together, _ = with_adapters(base(), named(folders, "one", "two"))
    first = requests(2, 0)[1]
    asked = [dataclasses.replace(first, adapter=adapter) for adapter in (1, 2, 2, 0)]
    results = generate(together, asked, PACKED)
    assert [result.copied for result in results] == [0, 0, len(first.prompt_ids), 0]
    assert told(results[1]) == told(results[2])
    assert len({str(told(result)) for result in results}) == 3


def test_adapters_that_one_server_cannot_have_are_refused_by_name(folders, tmp_path):
    for text in ("one", f"={folders['one']}", "one=", f"a b={folders['one']}"):
        with pytest.raises(PastaError, match=r"config\.adapters: .* no name=path"):
            with_adapters(base(), [text])
    with pytest.raises(PastaError, match=r"config\.adapters: 'one' twice"):
        with_adapters(base(), named(folders, "one", "one"))
    settings = lora.AdapterSettings(rank=2, alpha=2.0)
    fresh = lora.new_adapter(base().params, settings, TOKENIZER.tags, 0)
    lora.save_adapter(tmp_path, fresh, base(), lora.describe(base(), settings, Positions("predicted")))
    with pytest.raises(PastaError, match=r"config\.adapters: other was trained with positions .*predicted"):
        with_adapters(base(), [*named(folders, "one"), f"other={tmp_path}"])
    lora.save_adapter(tmp_path, fresh, base(), lora.describe(base(), settings, None))
    model, about = with_adapters(base(), [*named(folders, "one"), f"other={tmp_path}"])
    assert (model.positions, about[1].positions) == (SHARED, None)


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize(
    "form",
    [
        "kernel",
        pytest.param("panels", marks=needs_kernels),
        pytest.param(CODED, marks=[needs_kernels, pytest.mark.slow]),
        pytest.param("stacked", marks=pytest.mark.slow),
    ],
)
def test_mixed_lanes_are_answered_as_by_each_adapter_alone(form, folders):
    together, _ = with_adapters(held(form), named(folders, "one", "two"))
    asked = requests(12, 2)
    mixed = generate(together, asked, PACKED)
    plain = dataclasses.replace(held(form), positions=SHARED)
    alone = [plain, *(with_adapters(plain, named(folders, name))[0] for name in ("one", "two"))]
    for number, model in enumerate(alone):
        mine = [dataclasses.replace(request, adapter=min(number, 1)) for request in asked if request.adapter == number]
        expected = iter(generate(model, mine, PACKED))
        for request, result in zip(asked, mixed, strict=True):
            if request.adapter == number:
                assert_told(result, next(expected), 1e-6 if form in ("panels", CODED) else 1e-4)
    assert any(len(result.trace.closed) > 1 for result in mixed)
    assert len({told(result)[0][0] for result in mixed}) > 3


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
def test_a_drafter_guesses_beside_adapters_and_changes_no_answer(folders):
    model, _ = with_adapters(fitted(base(), np.arange(0, TOKENIZER.model_vocab, 2)), named(folders, "one", "two"))
    asked = [dataclasses.replace(request, scored=False) for request in requests(12, 2)]
    plain, drafted = (generate(model, asked, dataclasses.replace(PACKED, draft=draft)) for draft in ("off", "drafter"))
    ended = [pair for pair in zip(plain, drafted, strict=True) if pair[0].finish_reason == "stop"]
    assert len(ended) > 2
    for one, other in ended:
        assert one.trace.linear_ids() == other.trace.linear_ids()


def saved(folder, seed: int, rank: int, targets: tuple[str, ...], positions: Positions | None = SHARED) -> None:
    settings = lora.AdapterSettings(rank=rank, alpha=float(rank), targets=targets)
    fresh = lora.new_adapter(base().params, settings, TOKENIZER.tags, seed)
    lora.save_adapter(folder, trained(fresh, seed, size=0.1), base(), lora.describe(base(), settings, positions))


@pytest.mark.parametrize("form", ["kernel", pytest.param("panels", marks=needs_kernels), "stacked"])
def test_an_adapter_that_has_changed_takes_its_own_place_in_shapes_as_they_are(form, tmp_path):
    folders = {name: tmp_path / name for name in ("one", "two")}
    for seed, folder in enumerate(folders.values()):
        saved(folder, seed, 3, TARGETS["one"])
    model, (one, two) = with_adapters(held(form), named(folders, "one", "two"))
    text = named(folders, "two")[0]
    assert exchanged(model, text, two) == (model, two)
    for seed, rank, targets in ((5, 3, TARGETS["one"]), (6, 2, ("down", "qkv"))):
        saved(folders["two"], seed, rank, targets)
        after, new = exchanged(model, text, two)
        afresh, about = with_adapters(held(form), named(folders, "one", "two"))
        assert about == (one, new)
        assert new.fingerprint != two.fingerprint
        shapes = [jax.tree.map(jax.typeof, each.params) for each in (model, after)]
        assert shapes[0] == shapes[1]
        assert jax.tree.all(jax.tree.map(np.array_equal, after.params, afresh.params))


def test_an_adapter_that_does_not_fit_into_its_place_is_refused(tmp_path):
    folder = tmp_path / "one"
    saved(folder, 0, 2, ("down", "out"))
    text = f"one={folder}"
    model, (one,) = with_adapters(base(), [text])
    for change, message in (
        ((1, 4, ("down",)), "has rank 4, and there is room for 2; start the server again"),
        ((1, 2, ("down", "qkv")), "has pairs of qkv, for which there is no room; start the server again"),
        ((1, 2, ("down",), Positions("predicted")), "trained with positions .*predicted.*; start the server again"),
    ):
        saved(folder, *change)
        with pytest.raises(PastaError, match=message):
            exchanged(model, text, one)
    weights = folder / lora.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(PastaError, match="not a complete adapter file"):
        exchanged(model, text, one)
    saved(folder, 1, 1, ("down",), None)
    assert exchanged(model, text, one)[1].positions is None
