"""A model's own chat template: fed as other tools render it, or refused in one line; never run in this process."""

import json

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.tokenizers import template
from pasta_jax.tokenizers.chat import FAMILIES, jinja_template
from pasta_jax.tokenizers.tokenizer import load_tokenizer, tokenizer_fingerprint
from pasta_jax.weights import export
from tests.helpers.tiny_tokenizers import LLAMA3_SPECIALS, SMOLLM2_SPECIALS, in_folder, train_bpe

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DATED = CHATML.replace(
    "{% for", "{{ bos_token }}{{ '<|im_start|>date\n' + strftime_now('%Y') + '<|im_end|>\n' }}{% for", 1
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + CHATML.replace(
    "m['content']", "m['content'] | trim"
)
CONVERSATIONS = (
    [("user", "  Why is the sky blue? <|im_end|>\n")],
    [("system", "Be brief."), ("user", "Why?"), ("assistant", " So.\n"), ("user", "And?")],
)


# As of models that share their control pieces with no other family: pieces, the last one ends a text, and a template.
_PHI = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
_MISTRAL = (
    "{{ bos_token }}{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else none %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' }}{% if loop.last and system is not none %}"
    "{{ system + '\n\n' }}{% endif %}{{ m['content'] + '[/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
_GRANITE = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|start_of_role|>system<|end_of_role|>Today is ' "
    "+ strftime_now('%B %d, %Y') + '.<|end_of_text|>\n' }}{% endif %}{% for m in messages %}"
    "{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
_OLMO = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}"
    "{{ eos_token + '\n' if m['role'] == 'assistant' else '\n' }}{% endfor %}<|assistant|>\n"
)
_LLAMA2 = (
    "{% for m in messages if m['role'] != 'system' %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' "
    "+ m['content'].strip() + ' [/INST]' }}{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
# Its texts lose the line breaks before them alone, and it asks whether functions are none.
_QWQ = (
    "{% if tools is none and documents is none %}{{ '<|start|>system\n' }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content.lstrip('\n') }}{% endif %}{{ '<|stop|>\n' }}{% endif %}{% for m in messages %}"
    "{% if m.role != 'system' %}{{ '<|start|>' + m.role + '\n' + m.content.lstrip('\n').rstrip('\n') "
    "+ '<|stop|>\n' }}{% endif %}{% endfor %}{{ '<|start|>assistant\n' }}"
)
OTHERS = {
    "llama2": (["<unk>", "<s>", "</s>"], _LLAMA2),
    "qwq": (["<|start|>", "<|stop|>"], _QWQ),
    "phi": (
        ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
        _PHI + "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    ),
    "mistral": (["<unk>", "[INST]", "[/INST]", "<s>", "</s>"], _MISTRAL),
    "granite": (["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], _GRANITE),
    "olmo": (["<|pad|>", "<|endoftext|>"], _OLMO),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_of_another_family_is_fed_by_its_template_alone(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    pieces, source = OTHERS[kind]
    ours = in_folder(tmp_path, source, pieces=pieces)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    conversations = [CONVERSATIONS[1], CONVERSATIONS[1][1:], [("user", "\n \nWhy is the sky blue?\n \n")]]
    for messages in conversations[1:] if kind in ("mistral", "llama2") else conversations:
        turns = [{"role": role, "content": text} for role, text in messages]
        assert ours.chat(messages) == theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert ours.decode(ours.chat([("user", pieces[-1])])).count(pieces[-1]) == 1
    assert ours.stop_ids[-1] == theirs.eos_token_id
    assert ours.end_of_turn == theirs.convert_tokens_to_ids("<|end|>" if kind == "phi" else pieces[-1])
    assert ours.prompt_ids("Once upon a time") == ours.encode("Once upon a time")
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text("{}")
    export.write(tmp_path / "export", ours)
    again = load_tokenizer(tmp_path / "export/tokenizer.json")
    assert again.chat(conversations[1]) == ours.chat(conversations[1])
    assert (again.stop_ids, again.tags, again.model_vocab) == (ours.stop_ids, ours.tags, ours.model_vocab)
    assert tokenizer_fingerprint(again) == tokenizer_fingerprint(ours)
    if kind in ("mistral", "llama2"):
        with pytest.raises(PastaError, match="no place for one before questions"):
            ours.chat(conversations[0])


@pytest.mark.parametrize("is_in_config", [False, True])
def test_pieces_that_swallow_blanks_do_so_in_a_chat(is_in_config, tmp_path):
    transformers = pytest.importorskip("transformers")
    pieces, source = OTHERS["phi"]  # Phi 3's has line breaks, which its pieces swallow
    source = (
        source.replace("+ '|>' +", "+ '|>\n' +").replace("'<|end|>'", "'<|end|>\n'").replace("t|>' }}", "t|>\n' }}")
    )
    without = in_folder(tmp_path, source, pieces=pieces)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        token |= {"rstrip": token["content"] in pieces[:3], "lstrip": token["content"] == "<|end|>"}
    if is_in_config:  # which wins
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config["added_tokens_decoder"] = {one.pop("id"): one for one in spec["added_tokens"]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [("user", "  Why is the sky blue?\n"), ("assistant", " So.\n"), ("user", "\nAnd?")]
    turns = [{"role": role, "content": text} for role, text in messages]
    expected = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert ours.chat(messages) == expected != without.chat(messages)
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text("{}")
    export.write(tmp_path / "export", ours)
    assert load_tokenizer(tmp_path / "export/tokenizer.json").chat(messages) == expected


def test_a_model_of_a_known_family_may_be_tuned_with_a_template_of_another(tmp_path):
    transformers = pytest.importorskip("transformers")
    bos, *others = LLAMA3_SPECIALS
    pieces = [*others, "<|im_start|>", bos, "<|im_end|>"]
    ours = in_folder(tmp_path, "{{ bos_token }}" + CHATML, pieces=pieces)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.name == "llama3"
    for messages in ([("user", "Why is the sky blue?")], CONVERSATIONS[1]):
        turns = [{"role": role, "content": text} for role, text in messages]
        assert ours.chat(messages) == theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert ours.end_of_turn == theirs.eos_token_id


@pytest.mark.parametrize(("named", "more"), [([402, 403, 405, 7, 10**6], [403]), (403, [403]), (None, [])])
def test_answers_end_where_generation_config_says_so_too(tmp_path, named, more):
    own = in_folder(tmp_path, CHATML).stop_ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert load_tokenizer(tmp_path / "tokenizer.json").stop_ids == (*own, *more)


def test_a_base_model_of_another_family_completes_texts_and_is_not_chatted_with(tmp_path):
    tokenizer = in_folder(tmp_path, None, pieces=OTHERS["olmo"][0])
    assert tokenizer.prompt_ids("Once upon a time")
    with pytest.raises(PastaError, match=r"no chat template, as base models have none; add .* False where .*generate"):
        tokenizer.chat([("user", "Hi!")])


@pytest.mark.parametrize("form", ["file", "config", "list"])
@pytest.mark.parametrize("source", [CHATML, DATED, STRICT], ids=["plain", "dated", "strict"])
def test_ids_are_those_of_transformers(tmp_path, source, form):
    transformers = pytest.importorskip("transformers")
    ours = in_folder(tmp_path / "model", source, form)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    for messages in CONVERSATIONS:
        turns = [{"role": role, "content": text} for role, text in messages]
        if source == STRICT and messages[0][0] == "system":
            with pytest.raises(PastaError, match="no place for one before questions"):
                ours.chat(messages)
            continue
        if "<|im_end|>" in messages[0][1]:  # text stays text here; there it becomes a control piece
            ids = ours.chat(messages)
            assert (
                ids.count(ours.end_of_turn)
                == theirs.apply_chat_template(turns, return_dict=False).count(ours.end_of_turn) - 1
            )
            continue
        assert ours.chat(messages) == theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert "SmolLM" not in ours.decode(ours.chat([("user", "Hi!")]))
    assert ours.jinja == source


# Qwen 3 and R1 forget what was thought; others strip, mark what is learnt from, or have their own system message.
_ANSWER = (
    "{%% if m['role'] == 'assistant' and '</think>' in text %%}"
    "{%% set text = text.split('</think>')[-1]%s %%}{%% endif %%}"
)
_SHOWN = CHATML.replace("%}{{ '<|im", "%}{% set text = m['content'] %}{{ '<|im", 1).replace("m['content'] +", "text +")
UNUSUAL = {
    "forgets": _SHOWN.replace("{{", _ANSWER % ".lstrip('\n')" + "{{", 1),
    "forgets, and keeps breaks": _SHOWN.replace("{{", _ANSWER % "" + "{{", 1),
    "strips": CHATML.replace("m['content']", "(m['content'].rstrip() if m['role'] == 'system' else m['content'])"),
    "marks": CHATML.replace("{{ '<|im_start|>' +", "{% generation %}{{ '<|im_start|>' +", 1).replace(
        "'\n' }}{% endfor", "'\n' }}{% endgeneration %}{% endfor", 1
    ),
    "fixed": CHATML.replace("{% for", "{{ '<|im_start|>system\nOne.<|im_end|>\n' }}{% for", 1).replace(
        "in messages %}", "in messages if m['role'] != 'system' %}", 1
    ),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_templates_do_to_messages_is_learnt(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    ours = in_folder(tmp_path / "model", UNUSUAL[kind])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    turns = [("user", " Why?\n"), ("assistant", "<think>\nHm.\n</think>\n\nSo.\n"), ("user", "And </think>?")]
    for messages in (turns, [("system", "  Be brief. \n"), *turns]):
        if kind == "fixed" and len(messages) > len(turns):
            with pytest.raises(PastaError, match="no place for one before questions"):
                ours.chat(messages)
            continue
        asked = [{"role": role, "content": text} for role, text in messages]
        assert ours.chat(messages) == theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert ("Hm." in ours.decode(ours.chat(turns))) == ("forgets" not in kind)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_familys_own_template_is_recognised_however_it_is_written(family):
    source = jinja_template(family)
    tokens = {"bos_token": family.bos or ""}
    assert template.learned(source, tokens, family, "here") is None
    assert template.learned(source + "{# written otherwise #}", tokens, family, "here") is None


def test_a_model_without_a_template_says_so_and_keeps_its_fingerprint(tmp_path, capsys):
    alone = tmp_path / "tokenizer.json"
    alone.write_text(train_bpe(SMOLLM2_SPECIALS))
    family = load_tokenizer(alone)
    base = in_folder(tmp_path / "base", None)
    assert capsys.readouterr().err == ""
    assert base.chat([("user", "Hi!")]) == family.chat([("user", "Hi!")])
    assert base.chat([("user", "Hi!")])
    assert capsys.readouterr().err.count("no chat template, as base models have none; using that of smollm2") == 1
    own = in_folder(tmp_path / "own", CHATML)
    assert tokenizer_fingerprint(base) == tokenizer_fingerprint(family) != tokenizer_fingerprint(own)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("[user] {{ messages[0].content }}\n", "it doesn't place every message once"),
        (CHATML.replace("<|im_end|>", "\\n\\n"), r"answers don't end with <\|im_end\|>"),
        (CHATML.replace("m['content']", "m['content'] | upper"), "it doesn't place every message once"),
        (CHATML.replace("{% for", "{{ messages | length }}{% for", 1), "it does more than to place messages"),
        ("{{ raise_exception('no') }}", "it raises an error for plain questions"),
        ("{% for", "it can't be rendered"),
        pytest.param(  # takes all of its five seconds
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "it can't be rendered",
            marks=pytest.mark.slow,
        ),
        ("{{ 'x' * 10**12 }}", "it raises an error"),
        ("{{ 'x' * 10**5 }}", "it renders more than"),
        ("{{ 'x' * 10**8 }}", "it renders more than"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "it raises an error"),
        ("x" * (template.MOST_BYTES + 1), "it has more than"),
    ],
)
def test_a_template_that_does_something_else_is_refused_when_it_is_used(tmp_path, source, reason):
    tokenizer = in_folder(tmp_path / "model", source)
    assert tokenizer.encode("Hi!")
    with pytest.raises(PastaError, match=reason):
        tokenizer.chat([("user", "Hi!")])


def test_what_a_template_renders_is_cut_before_it_reaches_this_process(monkeypatch):
    whole = []
    monkeypatch.setattr(template.json, "loads", lambda text, loads=json.loads: whole.append(len(text)) or loads(text))
    with pytest.raises(PastaError, match="renders more than"):
        template.rendered("{{ 'x' * 10**8 }}", {}, [{"messages": []}], "here")
    assert whole[0] < 10 * template.MOST_RENDERED


@pytest.mark.parametrize("name", [["default"], {}, None, 3])
def test_templates_with_names_that_are_none_are_left_aside(tmp_path, name):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": name, "template": "x"}]}))
    assert template.in_folder(tmp_path)[0] is None


def test_the_names_of_pieces_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    source = "{{ bos_token }}{{ a_token }}{{ b_token }}" + _OLMO
    in_folder(tmp_path, source, pieces=["<a>", "<b>", "<|pad|>", "<|endoftext|>"])
    more = {"a_token": "<a>", "extra_special_tokens": {"b_token": "<b>"}}
    older = {"bos_token": {"content": "<|pad|>"}, "eos_token": "<|endoftext|>"}
    turns = [{"role": role, "content": text} for role, text in CONVERSATIONS[1]]
    newer = {"bos_token": "<b>", "eos_token": "<|endoftext|>", "added_tokens_decoder": {}}
    for named in ({"bos_token": "<b>"}, newer):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(more | named))
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
        expected = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert load_tokenizer(tmp_path / "tokenizer.json").chat(CONVERSATIONS[1]) == expected


@pytest.mark.parametrize("source", [CHATML, None], ids=["own", "family's"])
def test_a_role_of_no_template_is_refused(tmp_path, source):
    with pytest.raises(PastaError, match="message 2: role 'narrator'"):
        in_folder(tmp_path, source).chat([("user", "Why?"), ("narrator", "So."), ("user", "And?")])
