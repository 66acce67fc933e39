"""Models as configs name them: with recorded positions, with an adapter, and refused when one doesn't fit the other."""

import dataclasses
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import POLICIES, Positions
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.models.sharding import make_mesh, shardings
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import huggingface
from pasta_jax.weights.generation_config import FILE, read_defaults
from pasta_jax.weights.load import export_model, fingerprint_of, read_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load, load_with_adapter
from tests.helpers.loading import load_model
from tests.helpers.models import random_params, trained

TOKENIZER = toy_tokenizer()
LLAMA = TransformerConfig(
    vocab=TOKENIZER.model_vocab, layers=2, embed=16, ff=24, heads=2, kv_heads=1, head_dim=8, context=256,
    rope=Rope(10_000.0), norm_eps=1e-5, activation="silu", tied_head=False,
)  # fmt: skip
SETTINGS = lora.AdapterSettings(rank=2, alpha=4.0)
# One of each policy, the one that is never decoded with included
POSITIONS = [Positions(policy, 13 if policy == "constant" else 40) for policy in POLICIES]


def named(path, adapter="", policy="", constant=40) -> ModelSource:
    return ModelSource(path=str(path), adapter=str(adapter), policy=policy, constant=constant)


def export(folder, positions, seed=1):
    """A model in a folder."""
    params = jax.device_put(random_params(LLAMA, seed))
    export_model(Model("toy", LLAMA, params, TOKENIZER, positions), folder)
    return folder


def save(path, base: Model, positions, seed=0):
    """An adapter as training would leave it, saved."""
    adapter = trained(lora.new_adapter(base.params, SETTINGS, base.tokenizer.tags, seed), seed)
    lora.save_adapter(path, adapter, base, lora.describe(base, SETTINGS, positions))
    return path, adapter


@pytest.mark.parametrize("is_equal", [False, True])
def test_a_head_that_differs_from_the_embedding_is_not_tied_to_it(is_equal, tmp_path):
    config, weights = export(tmp_path, POSITIONS[0]) / "config.json", tmp_path / "model.safetensors"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    arrays = load_file(weights)
    if is_equal:
        save_file(arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"].copy()}, weights)
    model = load_model("", str(tmp_path))
    assert model.config.tied_head == is_equal
    assert is_equal or np.array_equal(model.params["head"], arrays["lm_head.weight"])


@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_a_model_knows_its_positions_and_refuses_others(positions, tmp_path):
    folder = export(tmp_path / "model", positions)
    assert load(named(folder)).positions == positions
    assert load(named(folder, policy=positions.policy, constant=positions.constant)).positions == positions
    other = "shared_start" if positions.policy == "predicted" else "predicted"
    with pytest.raises(PastaError, match=f"model: trained with positions {positions}, not {other}; leave `policy`"):
        load(named(folder, policy=other))


def test_the_constant_counts_under_its_own_policy_only_and_without_positions_any_is_accepted(tmp_path):
    folder = export(tmp_path / "shared", Positions("shared_start", 13))
    assert load(named(folder, policy="shared_start")).positions == Positions("shared_start", 13)
    folder = export(tmp_path / "none", None)
    assert load(named(folder)).positions is None
    assert load(named(folder, policy="constant", constant=7)).positions == Positions("constant", 7)
    for policy, problem in (("late", "unknown position policy 'late'"), ("constant", "constant 13, not constant 40")):
        with pytest.raises(PastaError, match=problem):
            load(named(export(tmp_path / policy, Positions("constant", 13)), policy=policy))


@pytest.mark.parametrize("positions", [*POSITIONS, None], ids=str)
def test_an_adapter_sets_the_models_positions(positions, tmp_path):
    folder = export(tmp_path / "model", Positions("shared_start"))
    base = load_model("", str(folder))
    path, _ = save(tmp_path / "a", base, positions)
    assert load(named(folder, path)).positions == positions
    assert load_with_adapter(named(folder, path))[0].positions == positions
    if positions is not None and positions.policy != "predicted":
        with pytest.raises(PastaError, match=rf"/a: trained with positions {positions}, not predicted"):
            load(named(folder, path, policy="predicted"))


def test_the_options_beside_an_adapter_come_before_those_beside_its_base(tmp_path):
    folder = export(tmp_path / "model", None)
    (folder / FILE).write_text('{"do_sample": true, "temperature": 0.5}')
    path, _ = save(tmp_path / "adapter", load_model("", str(folder)), None)
    assert load(named(folder)).defaults == load(named(folder, path)).defaults == Defaults(temperature=0.5)
    assert read_defaults(path) == Defaults(temperature=0.5)
    (path / FILE).write_text('{"pasta_jax": {"max_topic_words": 3}}')
    assert load(named(folder, path)).defaults == Defaults(max_topic_words=3)
    assert load_with_adapter(named(folder, path))[0].defaults == Defaults(max_topic_words=3)
    base = dataclasses.replace(load_model("", str(folder)), defaults=Defaults())
    plain, _ = save(tmp_path / "plain", base, Positions())
    assert load(named(folder, plain)).defaults == Defaults(), "as the run states, not as its base is sampled"


def test_the_folder_of_a_run_stands_for_the_model_or_the_adapter_in_it(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text('{"train": {}}')  # the settings
    folder = export(tmp_path / "run/model", Positions())
    assert load(named(tmp_path / "run")).fingerprint == load(named(folder)).fingerprint
    path, _ = save(tmp_path / "run/adapter", load_model("", str(folder)), Positions())
    whole, alone = load(named(tmp_path / "run", tmp_path / "run")), load(named(folder, path))
    assert whole.fingerprint == alone.fingerprint != load(named(folder)).fingerprint
    assert whole.source == str(folder)


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_is_merged_as_exported_or_loaded_beside_its_base_to_train_further(stacked, tmp_path):
    folder = export(tmp_path / "model", None)
    base = load_model("", str(folder), stacked=stacked)
    path, adapter = save(tmp_path / "a", base, Positions("oracle"))
    merged = lora.merge(base.params, adapter, TOKENIZER.tags)
    export_model(dataclasses.replace(base, params=merged, positions=Positions("oracle")), tmp_path / "merged")
    expected, model = load(named(tmp_path / "merged")), load(named(folder, path))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), model.params, expected.params)
    assert model.fingerprint != base.fingerprint
    decoding = load(named(folder, path), only_decoding=True)
    columns = decoding.params["layers"][1]["down"]["columns"]
    np.testing.assert_array_equal(columns, model.params["layers"][1]["down"]["kernel"].T)

    beside, again, about = load_with_adapter(named(folder, path), stacked=stacked)
    jax.tree.map(np.testing.assert_array_equal, beside.params, base.params)
    jax.tree.map(np.testing.assert_array_equal, again, adapter)
    assert (about.rank, about.alpha, about.targets) == (SETTINGS.rank, SETTINGS.alpha, SETTINGS.targets)
    assert beside.fingerprint == about.base_fingerprint == base.fingerprint
    with pytest.raises(PastaError, match="no adapter named"):
        load_with_adapter(named(folder))


@pytest.mark.parametrize("stacked", [False, True])
def test_a_model_is_read_into_its_shards_array_by_array(stacked, tmp_path, monkeypatch):
    """With an adapter, and equal to the model of one device."""
    folder = export(tmp_path / "model", Positions())
    path, _ = save(tmp_path / "a", load_model("", str(folder)), Positions())
    alone = load(named(folder, path), stacked=stacked)
    read, arrays, most = huggingface.Files.read, [], []

    def watched(self, name):
        array = read(self, name)
        if "layers" in name:
            arrays.append(weakref.ref(array))
            most.append(sum(one() is not None for one in arrays))
        return array

    monkeypatch.setattr(huggingface.Files, "read", watched)
    mesh = make_mesh(2, 4)
    on_mesh = load(named(folder, path), stacked=stacked, mesh=mesh)
    assert on_mesh.fingerprint == alone.fingerprint
    jax.tree.map(np.testing.assert_array_equal, on_mesh.params, alone.params)
    assert jax.tree.map(lambda leaf: leaf.sharding, on_mesh.params) == shardings(alone.params, mesh)
    assert max(most) <= 4  # query, key and value, and perhaps one that is going
    # For the shards; norms for two fingerprints, the base's and the merged model's, and for this the merged kernels.
    assert len(most) == LLAMA.layers * (9 + 2 * 2 + 7)
    base, adapter, _ = load_with_adapter(named(folder, path), stacked=stacked, mesh=mesh)
    assert base.params["embed"].sharding == on_mesh.params["embed"].sharding
    assert lora.merge(base.params, adapter, TOKENIZER.tags)["embed"].shape == alone.params["embed"].shape


def test_codes_of_8_bits_are_refused_on_a_mesh(tmp_path):
    with pytest.raises(PastaError, match="dtype q8: runs on one device"):
        load(named(export(tmp_path / "model", None)), dtype="q8", only_decoding=True, mesh=make_mesh(1, 8))


def test_an_adapter_on_another_base_is_refused(tmp_path):
    base = load_model("", str(export(tmp_path / "model", None)))
    path, _ = save(tmp_path / "a", base, Positions())
    other = export(tmp_path / "elsewhere" / "model", None, seed=2)
    for read in (load, load_with_adapter):
        with pytest.raises(PastaError, match=r"/a: an adapter for other weights of model"):
            read(named(other, path))
    merged = load(named(tmp_path / "model", path))
    assert merged.fingerprint not in (base.fingerprint, "")


def test_the_fingerprint_covers_the_weights_but_not_the_tags(tmp_path):
    model = read_model("", str(export(tmp_path / "model", Positions())))
    assert read_model("", str(export(tmp_path / "copy", None))).fingerprint == model.fingerprint
    assert load_model("", str(tmp_path / "model"), dtype=jnp.bfloat16, stacked=True).fingerprint == model.fingerprint

    def of(config=model.config, **params):
        return fingerprint_of(config, model.params | params, TOKENIZER)

    tags, embed = TOKENIZER.tags, model.params["embed"]
    retagged = np.array(embed)
    retagged[tags.base : tags.end] += 1
    assert of(embed=retagged) == model.fingerprint
    assert of(embed=np.pad(embed, ((0, 60), (0, 0)))) == model.fingerprint
    assert of(dataclasses.replace(model.config, context=999, vocab=9)) == model.fingerprint
    assert of(dataclasses.replace(model.config, norm_eps=1e-6)) != model.fingerprint
    assert of(embed=embed + 1) != model.fingerprint
    layers = jax.tree.map(np.array, model.params["layers"])
    layers[1]["down"]["kernel"] *= 1.5
    assert of(layers=layers) != model.fingerprint
