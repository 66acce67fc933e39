"""The files of an export beside its weights: `transformers` reads them as we do, and we read them back unchanged."""

import json
import os
import stat

import jax
import numpy as np
import pytest

from pasta_jax.files import safetensors
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.tokenizers.tokenizer import load_tokenizer, tokenizer_fingerprint
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights import export
from pasta_jax.weights.generation_config import PLAIN, read_defaults
from pasta_jax.weights.load import export_model, tokenizer_file
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Defaults
from tests.helpers.loading import load_model
from tests.helpers.models import random_params, uncached
from tests.helpers.requires import requires_dev
from tests.helpers.tiny_tokenizers import LLAMA3_SPECIALS, PREFIXED, SMOLLM2_SPECIALS, train_bpe, train_sentencepiece

LLAMA = TransformerConfig(
    vocab=toy_tokenizer().model_vocab, layers=1, embed=16, ff=16, heads=2, kv_heads=1, head_dim=8, context=256,
    rope=Rope(10_000.0), norm_eps=1e-5, activation="silu", tied_head=True,
)  # fmt: skip
CONVERSATIONS = [
    [("user", "What is the capital of Italy?")],
    [("system", " Be  brief. "), ("user", "  Größe?\n"), ("assistant", "\n42 \n"), ("user", "Why 20245, I'll ask?")],
]
TEXTS = [
    "The capital of France is Paris;  what\n\n\nelse? 12345 Größe 東京 😀",
    " a",
    "def f(x):\n\treturn x  # 3 <b>",
    "[SYNC] <async>",
]


def files(kind: str) -> tuple[str, bytes]:
    """A tokenizer's file."""
    if kind == "gemma":
        return "tokenizer.model", train_sentencepiece()
    specials = {"smollm2": SMOLLM2_SPECIALS, "llama3": LLAMA3_SPECIALS}[kind]
    return "tokenizer.json", train_bpe(specials, added=("<repo_name_2>",)).encode()


@pytest.fixture(params=["gemma", "smollm2", "llama3", "toy"], scope="module")
def exported(request, tmp_path_factory):
    """A tokenizer, and the folder that it was exported to."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "toy":
        tokenizer = toy_tokenizer()
    else:
        name, content = files(request.param)
        (folder / name).write_bytes(content)
        tokenizer = load_tokenizer(folder / name)
    export.write(folder / "export", tokenizer)
    return tokenizer, folder / "export"


def test_a_unigram_model_is_one_for_transformers_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(model_type="unigram", vocab_size=430))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    export.write(tmp_path / "export", tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    for text in [TEXTS[0].replace("\n\n\n", "\n"), *TEXTS[1:3]]:  # of three line breaks, either two may be one piece
        assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_an_export_whose_tags_are_appended_is_read_back(tmp_path, kind):
    """Its tokenizer.json has them as added pieces, beyond those of the tokenizer.model beside it."""
    size = {"vocab_size": 360} if kind == "unigram" else {}
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(unused=0, model_type=kind, **size))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    assert tokenizer.tags.base == tokenizer.vocab_size
    export.write(tmp_path / "export", tokenizer)
    tokenizer.save(tmp_path / "export")
    file = tokenizer_file(tmp_path / "export")
    assert file.name == "tokenizer.model"
    for one in [file, file.with_name("tokenizer.json")][: 2 if kind == "bpe" else 1]:  # we read no Unigram in JSON
        back = load_tokenizer(one)
        assert (back.tags, back.vocab_size) == (tokenizer.tags, tokenizer.vocab_size)
        assert tokenizer_fingerprint(back) == tokenizer_fingerprint(tokenizer)
        for text in TEXTS:
            assert back.encode(text) == tokenizer.encode(text)


def test_a_text_begins_without_the_blank_that_its_model_puts_there(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece(**PREFIXED))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    export.write(tmp_path / "export", tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    ids = theirs.encode("the capital", add_special_tokens=False)
    assert theirs.decode(ids) == "the capital"


def test_our_reader_gets_the_same_tokenizer_back(exported):
    tokenizer, folder = exported
    back = load_tokenizer(folder / tokenizer.vocabulary.file)
    assert (back.tags, back.vocab_size, back.model_vocab) == (
        tokenizer.tags,
        tokenizer.vocab_size,
        tokenizer.model_vocab,
    )
    assert tokenizer_fingerprint(back) == tokenizer_fingerprint(tokenizer)
    assert back.encode("<|SYNC|> <|PROMISE|>") == tokenizer.encode("<|SYNC|> <|PROMISE|>")
    again = folder.with_name("again")
    export.write(again, back)
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_tags_are_special_tokens(exported):
    tokenizer, folder = exported
    spec = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token for token in spec["added_tokens"]}
    for tag in range(tokenizer.tags.base, tokenizer.tags.end):
        name = tokenizer.tags.piece(tag)
        assert (added[tag]["content"], added[tag]["special"], spec["model"]["vocab"][name]) == (name, True, tag)


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
def test_transformers_has_the_same_ids(exported):
    from transformers import AutoTokenizer

    tokenizer, folder = exported
    theirs = AutoTokenizer.from_pretrained(folder)
    for messages in CONVERSATIONS:
        chat = [{"role": role, "content": text} for role, text in messages]
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ids == tokenizer.chat(messages)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.prompt_ids(text)
        assert theirs.decode(tokenizer.encode(text)) == text
    tags = list(range(tokenizer.tags.base, tokenizer.tags.end))
    assert theirs.convert_ids_to_tokens(tags) == list(map(tokenizer.tags.piece, tags))
    assert theirs.eos_token_id == tokenizer.end_of_turn


@pytest.mark.parametrize(
    "defaults", [PLAIN, Defaults(0.6, 40, 0.9), Defaults(max_topic_words=3), Defaults(0.6)], ids=str
)
def test_an_exports_options_are_the_models(defaults, tmp_path):
    export.write(tmp_path, toy_tokenizer(), defaults)
    assert read_defaults(tmp_path) == defaults


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
def test_transformers_answers_from_an_exported_folder(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = toy_tokenizer()
    ours = Model("toy", LLAMA, jax.device_put(random_params(LLAMA, 1)), tokenizer)
    export_model(ours, tmp_path)
    theirs, model = AutoTokenizer.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == list(tokenizer.stop_ids)
    chat = [{"role": "user", "content": "Hi!"}]
    ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    answer = model.generate(**ids, do_sample=False, max_new_tokens=3)[0].tolist()
    for count in range(ids["input_ids"].shape[1], len(answer)):
        assert uncached(ours, answer[:count], at=[count - 1])[0].argmax() == answer[count]
    assert len(answer) == ids["input_ids"].shape[1] + 3 or answer[-1] in tokenizer.stop_ids
    assert load_model("", str(tmp_path)).tokenizer.tags == tokenizer.tags


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_weights_are_as_readable_as_the_umask_allows(umask, tmp_path):
    before = os.umask(umask)
    try:
        safetensors.write(tmp_path / "a.safetensors", {"x": np.zeros(3, np.float32)}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o666 & ~umask
