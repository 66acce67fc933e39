"""Ids on the Hugging Face Hub, with its own client: offline, over a cache as the client writes it."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

import pasta_jax as pasta
from pasta_jax.annotate import pipeline
from pasta_jax.errors import PastaError
from pasta_jax.files import hub
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.tokenizers.tokenizer import tokenizer_fingerprint
from pasta_jax.weights.adapter import describe, new_adapter, save_adapter
from pasta_jax.weights.load import export_model, read_model
from pasta_jax.weights.settings import AdapterSettings, ModelSource
from pasta_jax.weights.source import load_with_adapter
from tests.helpers.models import babbler

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A model and an adapter of it."""
    folder, settings = tmp_path_factory.mktemp("hub"), AdapterSettings(rank=1, alpha=1.0)
    export_model(dataclasses.replace(babbler(), positions=None), folder / "model")
    base = read_model("", str(folder / "model"))
    adapter = new_adapter(base.params, settings, base.tokenizer.tags, 0)
    save_adapter(folder / "adapter", adapter, base, describe(base, settings, PREDICTED))
    return folder


@pytest.fixture
def cache(folders, tmp_path, monkeypatch) -> Path:
    """The client's cache with both, and no folder of that name where we are."""
    for name in ("model", "adapter"):
        repository = tmp_path / "cache" / f"models--some.org--{name}-1.5"
        shutil.copytree(folders / name, repository / "snapshots" / REVISION)
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text(REVISION)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.mark.parametrize("revision", ["", "@main", f"@{REVISION}"])
def test_an_id_is_read_like_a_folder(revision, cache, folders):
    model = read_model("", f"some.org/model-1.5{revision}")
    assert model.fingerprint == read_model("", str(folders / "model")).fingerprint
    assert model.name == f"model-1.5{revision}"


def test_annotation_finds_the_tokenizer_of_an_id_and_of_a_run(cache, folders):
    shutil.copytree(folders / "model", "run/model")
    expected = tokenizer_fingerprint(read_model("", str(folders / "model")).tokenizer)
    for path in ("some.org/model-1.5", "run"):
        assert tokenizer_fingerprint(pipeline.tokenizer_for(ModelSource(path=path))) == expected


def test_models_and_adapters_are_found_in_the_home_folder(cache, folders, monkeypatch):
    monkeypatch.setenv("HOME", str(folders))
    model, _, about = load_with_adapter(ModelSource(path="~/model", adapter="~/adapter"))
    assert (model.positions, model.source) == (about.positions, str(folders / "model"))
    assert pasta.load_model("~/model").source == str(folders / "model")


def test_an_adapter_has_an_id_too_and_the_api_takes_ids(cache):
    model, _, about = load_with_adapter(ModelSource(path="some.org/model-1.5", adapter="some.org/adapter-1.5"))
    assert model.positions == about.positions == PREDICTED
    assert model.source == "some.org/model-1.5"
    assert pasta.load_model("some.org/model-1.5").name == "model-1.5"


@pytest.mark.parametrize("name", ["some.org/other", "some.org/model-1.5@v2"])
def test_what_the_hub_does_not_provide_is_refused_in_one_line(name, cache):
    with pytest.raises(PastaError, match=r"no such path, and the Hub didn't provide it \(LocalEntryNotFound") as caught:
        read_model("", name)
    assert "\n" not in str(caught.value)


def test_a_path_whose_folder_exists_is_no_id(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    Path("some.org").mkdir()
    for name in ("some.org/model-1.5", "model", "/some.org/model-1.5", "some.org/a/b", "./some/model", "../a"):
        with pytest.raises(PastaError, match="not found; use a GGUF file"):
            read_model("", name)


def test_only_files_without_code_are_fetched_and_no_weights_twice(cache, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **options: asked.update(options, name=name) or str(cache)
    )
    assert hub.local("some.org/model-1.5@v2") == cache
    assert (asked["name"], asked["revision"]) == ("some.org/model-1.5", "v2")
    assert not {"*", "*.bin", "*.pt", "*.py"} & set(asked["allow_patterns"])
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    files = ["model-1.safetensors", "adapter/adapter_model.safetensors", "config.json", "chat_template.jinja"]
    copies = ["original/model--1.safetensors", "original/config.json", "consolidated.safetensors"]
    assert list(filter_repo_objects(files + copies, **patterns)) == files
