"""Tokenizers of every kind and family: ids, round trips, chat templates, saved files."""

import random

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.tokenizers import tokenizer as module
from pasta_jax.tokenizers.tokenizer import Detokenizer, Tokenizer, load_tokenizer
from tests.helpers.examples import examples
from tests.helpers.requires import requires_dev, requires_gemma, requires_qwen, requires_smollm2
from tests.helpers.texts import CONVERSATIONS, MARKS, TEMPLATED, TEXTS
from tests.helpers.tiny_tokenizers import PREFIXED, SMOLLM2_SPECIALS, TINY, train_bpe, train_llama3, train_sentencepiece

SMOLLM2 = pytest.param("smollm2", marks=requires_smollm2)
GEMMA = pytest.param("gemma", marks=requires_gemma)
QWEN = pytest.param("qwen", marks=requires_qwen)
LLAMA_CPP = [name for name in TINY if name.endswith(".gguf") and name != "gemma.gguf"]
EVERY = [*TINY, SMOLLM2, GEMMA]


@pytest.fixture(scope="session")
def load(tmp_path_factory):
    """A tokenizer by its name in EVERY, loaded once."""
    folder, loaded = tmp_path_factory.mktemp("tokenizers"), {}

    def path(name: str):
        if name in TINY:
            (folder / name).write_bytes(TINY[name]())
            return folder / name
        presets = {"smollm2": "smollm2_135m", "gemma": "gemma3_270m", "qwen": "qwen2_5_coder_1_5b"}
        return packages.path(presets[name])

    def load(name: str) -> Tokenizer:
        if name not in loaded:
            loaded[name] = path(name), load_tokenizer(path(name))
        return loaded[name][1]

    load.path = lambda name: load(name) and loaded[name][0]
    return load


def possible(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the vocabulary has all bytes of the text; only SmolLM2's lacks some."""
    single = {data for data in tokenizer.vocabulary.data if len(data) == 1}
    missing = [byte for byte in range(256) if bytes([byte]) not in single]
    return not set(text.encode()) & set(missing)


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of ids with control pieces by name."""
    names = {id: name for name, id in tokenizer.vocabulary.control.items()}
    return b"".join(names[id].encode() if id in names else tokenizer.piece(id) for id in ids).decode()


def begun(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that begins a prompt."""
    return tokenizer.encode(tokenizer.vocabulary.opened(text, True))


# Ids.


@requires_gemma
def test_gemma_golden_ids(load):
    gemma = load("gemma")
    assert gemma.prompt_ids("The capital of France is") == [2, 818, 5279, 529, 7001, 563]
    assert gemma.prompt_ids("Once upon a time, there was a little girl named Lily who") == [
        *(2, 14946, 3324, 496, 990, 236764, 993, 691, 496, 2268, 3953, 7489, 60708, 1015)
    ]
    assert (gemma.name, gemma.vocab_size, gemma.model_vocab) == ("gemma", 262_144, 262_144)
    assert (gemma.tags.base, gemma.bos, gemma.end_of_turn, gemma.stop_ids) == (6, 2, 106, (106, 1))


@requires_smollm2
def test_smollm2_golden_ids(load):
    smollm2 = load("smollm2")
    assert smollm2.prompt_ids("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert (smollm2.name, smollm2.vocab_size, smollm2.model_vocab) == ("smollm2", 49_152, 49_280)
    assert (smollm2.tags.base, smollm2.bos, smollm2.end_of_turn, smollm2.stop_ids) == (49_152, None, 2, (2, 0))


@requires_dev("cyllama")
@pytest.mark.parametrize("name", [*LLAMA_CPP, SMOLLM2, GEMMA, QWEN])
def test_ids_equal_llama_cpp(load, name):
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    model = llama_cpp.LlamaModel(str(load.path(name)), llama_cpp.LlamaModelParams())
    vocab, ours = model.get_vocab(), load(name)
    # llama.cpp parses `</s>` as an end mark anywhere; in Gemma's vocabulary it is an HTML tag. Where words end at
    # capitals, it takes combining marks for other signs, unlike those models' tokenizer.json.
    unequal = ("</s>", "\u0301") if name in ("gpt-4o.gguf", "tekken.gguf") else ("</s>",)
    texts = [text for text in TEXTS if possible(ours, text) and not any(one in text for one in unequal)]
    assert len(texts) > 200
    for text in texts:
        assert begun(ours, text) == vocab.tokenize(text, False, False)
    if name == "prefixed.gguf":
        for messages, whole in zip(CONVERSATIONS, TEMPLATED["gemma"], strict=True):
            if "<" not in messages[0][1]:
                assert ours.chat(messages) == vocab.tokenize(whole, False, True)
        return
    for messages in CONVERSATIONS[:1] + CONVERSATIONS[2:]:  # it would parse the marks in the second one's text
        ids = ours.chat(messages)
        assert ids == vocab.tokenize(spelled(ours, ids), False, True)


@pytest.mark.parametrize("name", ["gemma.model", "gemma.gguf", "prefixed.model", "prefixed.gguf"])
def test_ids_equal_sentencepiece(load, name):
    proto = train_sentencepiece(**(PREFIXED if "prefixed" in name else {}))
    direct = sentencepiece.SentencePieceProcessor(model_proto=proto)
    texts = [text for text in TEXTS if not any(mark in text for mark in ("_of_turn>", "<unused"))]
    assert len(texts) > 200
    for text in texts:
        assert begun(load(name), text) == direct.encode(text)


@pytest.mark.parametrize("name", ["smollm2.json", "llama3.json", "llama3.gguf", SMOLLM2])
def test_ids_equal_tokenizers(load, name):
    ours = load(name)
    if name == "smollm2":
        metadata = GGUF.open(load.path(name)).metadata
        vocab = {text: id for id, text in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = [tuple(pair.split()) for pair in metadata["tokenizer.ggml.merges"]]
        direct = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        direct.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, bytes_])
    else:
        direct = tokenizers.Tokenizer.from_str(train_llama3() if "llama3" in name else train_bpe(SMOLLM2_SPECIALS))
    texts = [text for text in TEXTS if possible(ours, text) and not any(mark in text for mark in MARKS[9:18])]
    assert len(texts) > 150
    for text in texts:
        assert ours.encode(text) == direct.encode(text, add_special_tokens=False).ids


# Round trips.


@pytest.mark.parametrize("name", EVERY)
@examples(150)
@given(parts=st.lists(st.sampled_from(MARKS) | st.text()))
def test_any_text_is_restored_and_never_has_control_or_tag_ids(load, name, parts):
    tokenizer, text = load(name), "".join(parts)
    if not possible(tokenizer, text):
        with pytest.raises(PastaError, match="has no ids; remove it"):
            tokenizer.encode(text)
        return
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.vocabulary.control.values())
    assert not any(tokenizer.tags.is_tag(id) for id in ids)
    assert all(0 <= id < tokenizer.vocab_size for id in ids)


@pytest.mark.parametrize("name", ["gemma.model", "llama3.json"])
def test_invalid_unicode_is_located(load, name):
    with pytest.raises(PastaError, match=r"^character 3 of the text is '\\udcff', which is not valid Unicode; "):
        load(name).encode("é \udcff")


@requires_smollm2
def test_characters_without_ids_are_located(load):
    """SmolLM2's vocabulary lacks these bytes; the library would drop them silently."""
    for character in ["\x04", "\x06", "\x13", "\x14", "\x16", "\x1d", "\U00050000", "\U00090000"]:
        with pytest.raises(PastaError, match=r"^character 3 of the text is '\\.*', for which smollm2 has no ids; "):
            load("smollm2").encode(f"é {character} b")


# Ids to text.


@pytest.mark.parametrize("name", EVERY)
def test_control_and_tag_ids_decode_to_nothing(load, name):
    tokenizer = load(name)
    silent = [*tokenizer.vocabulary.control.values(), *range(tokenizer.tags.base, tokenizer.tags.end)]
    assert tokenizer.decode([*silent, *tokenizer.encode("a"), tokenizer.tags.sync, tokenizer.model_vocab - 1]) in (
        "a",
        "a" + tokenizer.piece(tokenizer.model_vocab - 1).decode(errors="replace"),
    )
    for id in (-1, tokenizer.model_vocab):
        with pytest.raises(PastaError, match=f"id {id} is not one of the {tokenizer.model_vocab} of "):
            tokenizer.decode([id])


@pytest.mark.parametrize("name", ["smollm2.json", "smollm2.gguf"])
def test_added_pieces_that_are_not_control_pieces_have_text(load, name):
    tokenizer = load(name)
    assert tokenizer.vocabulary.control.keys() == set(SMOLLM2_SPECIALS)
    id = tokenizer.vocabulary.data.index(b"<tool>")
    assert tokenizer.decode([id]) == "<tool>"
    assert id not in tokenizer.encode("<tool>")


@pytest.mark.parametrize("name", EVERY)
def test_detokenizer_equals_decode(load, name):
    """On random ids: mostly single bytes, so that characters are cut in every way."""
    tokenizer, draw = load(name), random.Random(0)
    single = [id for id, data in enumerate(tokenizer.vocabulary.data) if len(data) == 1]
    silent = [*tokenizer.vocabulary.control.values(), tokenizer.tags.async_]
    for _ in range(200):
        ids = [
            draw.choice([*draw.choices(single, k=6), *silent, draw.randrange(tokenizer.model_vocab)]) for _ in range(40)
        ]
        stream = Detokenizer(tokenizer)
        pieces = [stream.push(id) for id in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["gemma.model", "smollm2.json"])
def test_detokenizer_never_splits_a_character(load, name):
    tokenizer = load(name)
    ids = tokenizer.encode("𓀀")
    assert len(ids) == 4
    stream = Detokenizer(tokenizer)
    assert [stream.push(id) for id in (ids[0], tokenizer.tags.sync, *ids[1:])] == ["", "", "", "", "𓀀"]
    assert stream.push(ids[0]) == ""
    assert stream.flush() == "\ufffd"


# Conversations.


@pytest.mark.parametrize("name", [name for name in EVERY if "prefixed" not in str(name)])  # its blanks show
def test_conversations_follow_the_familys_template(load, name):
    tokenizer = load(name)
    for messages, expected in zip(CONVERSATIONS, TEMPLATED[tokenizer.name], strict=True):
        ids = tokenizer.chat(messages)
        assert spelled(tokenizer, ids) == expected
        marks = {tokenizer.vocabulary.control[mark] for mark in tokenizer.family.marks}
        turns = len(messages) + (tokenizer.name == "smollm2" and messages[0][0] != "system")
        turns -= tokenizer.name == "gemma" and messages[0][0] == "system"
        assert sum(id in marks for id in ids) == sum(
            (tokenizer.bos is not None, turns + 1, turns, (turns + 1) * (tokenizer.family.header is not None))
        )


def test_messages_in_any_order_are_turns_or_paragraphs_of_one(load):
    """As OpenAI's API takes them. Gemma's own template refuses these, the other two write a turn for each."""
    messages = [("system", "a"), ("system", "b"), ("user", " c"), ("user", "d"), ("assistant", "e"), ("user", "f")]
    smollm2, llama3 = load("smollm2.json"), load("llama3.json")
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    assert spelled(smollm2, smollm2.chat(messages)) == f"{turns}<|im_start|>assistant\n"
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    turns = "".join(f"{header.format(role)}{text.strip()}<|eot_id|>" for role, text in messages)
    assert spelled(llama3, llama3.chat(messages)) == f"<|begin_of_text|>{turns}{header.format('assistant')}"
    gemma = load("gemma.model")
    assert gemma.chat(messages) == gemma.chat([("user", "a\n\nb\n\nc\n\nd"), ("assistant", "e"), ("user", "f")])
    greeted = [("system", "a"), ("assistant", "b"), ("user", "c")]
    assert gemma.chat(greeted) == gemma.chat([("user", "a"), *greeted[1:]])


@requires_smollm2
@requires_dev("jinja2")
def test_smollm2_conversations_equal_its_own_template(load):
    import jinja2

    template = jinja2.Template(GGUF.open(load.path("smollm2")).metadata["tokenizer.chat_template"])
    for messages, expected in zip(CONVERSATIONS, TEMPLATED["smollm2"], strict=True):
        turns = [{"role": role, "content": text} for role, text in messages]
        assert template.render(messages=turns, add_generation_prompt=True) == expected


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "of 0 messages has no open question"),
        ([("system", "a")], "of 1 messages has"),
        ([("user", "a"), ("assistant", "b")], "of 2 messages has"),
        ([("assistant", "a"), ("user", "b")], "message 1: an answer"),
        ([("user", "a"), ("tool", "b"), ("user", "c")], "message 2: role 'tool'"),
    ],
)
def test_conversations_out_of_order_are_refused(load, messages, reason):
    with pytest.raises(PastaError, match=reason):
        load("gemma.model").chat(messages)


# Files.


@pytest.mark.parametrize("name", EVERY)
def test_saved_equals_loaded_and_restores_texts(load, name, tmp_path):
    first = load(name)
    path = first.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    second = load_tokenizer(path)
    assert second.vocabulary.data == first.vocabulary.data
    assert second.vocabulary.control == first.vocabulary.control
    assert (second.tags, second.model_vocab, second.family) == (first.tags, first.model_vocab, first.family)
    for text in TEXTS:
        if possible(first, text):
            assert second.encode(text) == (ids := first.encode(text))
            assert second.decode(ids) == text


@pytest.mark.parametrize("name", ["smollm2.json", "llama3.gguf"])
def test_other_tools_read_a_saved_bpe(load, name, tmp_path):
    ours = load(name)
    theirs = tokenizers.Tokenizer.from_file(str(ours.save(tmp_path)))
    messages = CONVERSATIONS[2]
    ids = ours.chat(messages)
    assert theirs.encode(spelled(ours, ids), add_special_tokens=False).ids == ids
    assert theirs.decode(ids) == ours.decode(ids)


@pytest.mark.parametrize("name", ["gemma.model", "gemma.gguf"])
def test_other_tools_read_a_saved_sentencepiece(load, name, tmp_path):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(load(name).save(tmp_path)))
    assert (theirs.eos_id(), theirs.bos_id(), theirs.unk_id()) == (1, 2, 3)
    assert theirs.encode("Give three  tips") == load(name).encode("Give three  tips")


@pytest.mark.parametrize(("unused", "appended"), [(67, True), (68, False), (70, False)])
def test_tags_are_on_unused_pieces_if_there_are_enough(tmp_path, unused, appended):
    (tmp_path / "m").write_bytes(train_sentencepiece(unused=unused))
    tokenizer = load_tokenizer(tmp_path / "m")
    size = 420 + unused
    assert tokenizer.vocab_size == size
    if appended:
        assert (tokenizer.tags.base, tokenizer.model_vocab) == (size, 640)
        assert tokenizer.model_vocab >= tokenizer.tags.end
    else:
        assert (tokenizer.tags.base, tokenizer.model_vocab) == (tokenizer.vocabulary.control["<unused0>"], size)


def test_the_first_run_is_of_consecutive_ids():
    assert module.first_run([9, 1, 2, 5, 6, 7, 8], 3) == 5
    assert module.first_run([3, 2, 1], 3) == 1
    assert module.first_run([1, 2, 4, 5], 3) is None
    assert module.first_run([], 3) is None


def test_llama3_tags_skip_the_lone_reserved_pieces(load):
    tokenizer = load("llama3.json")
    assert tokenizer.tags.base == tokenizer.vocabulary.control["<|reserved_special_token_1|>"]
    assert tokenizer.tags.end - tokenizer.tags.base == NUM_TAGS
