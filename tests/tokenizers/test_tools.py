"""Calls and results in a chat: fed as transformers renders them, or in words, and never as control ids."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.tokenizers.tools import as_transformers, in_words
from tests.helpers.examples import examples
from tests.helpers.requires import requires_qwen
from tests.helpers.texts import MARKS, SAMPLES
from tests.helpers.tiny_tokenizers import CALLING, in_folder

TRIMMED = CALLING.replace("m.content + '\\n</", "(m.content | trim) + '\\n</")
SPELLED = CALLING.replace("| tojson", "| tojson(ensure_ascii=False)")
ONLY_AFTER_A_RESULT = (
    "{{- '<|im_start|>assistant' }}{%- if messages[loop.index0 - 1].role == 'tool' and not m.content %}"
    "{{- m.tool_calls[0].id }}{%- endif %}"
)


def call(name: str, arguments: str = '{"a": "é <b>", "n": [1, 2.5]}') -> list[tuple[str, str]]:
    return [("name", name), ("arguments", arguments)]


SYSTEM, ASK = ("system", " Be brief.\n"), ("user", " Why is the sky blue?\n")
CONVERSATIONS = [
    [ASK, *call("weather"), ("result", " 18 degrees\n")],
    [ASK, *call("weather", "{}"), *call("größe"), ("result", "18"), ("result", ""), ASK],
    [SYSTEM, ASK, ("assistant", "Wait."), *call("weather"), ("result", "18"), *call("weather"), ("result", "19"),
     ("assistant", "19."), ASK, *call("weather"), ("result", "20")],
]  # fmt: skip


@pytest.mark.parametrize("source", [CALLING, TRIMMED, SPELLED], ids=["plain", "trimmed", "spelled"])
def test_ids_are_those_of_transformers(tmp_path, source):
    transformers = pytest.importorskip("transformers")
    ours = in_folder(tmp_path, source)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for conversation in CONVERSATIONS:
        turns = as_transformers(conversation)
        assert ours.chat(conversation) == theirs.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=False
        )


# As Qwen 3's: answers before the last question lose what was thought for them.
FORGETFUL = (
    "{%- set users = namespace(left=messages | map(attribute='role') | select('eq', 'user') | list | count) %}"
) + CALLING.replace(
    r"{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}",
    r"{%- if m.role == 'user' %}{%- set users.left = users.left - 1 %}{%- endif %}"
    r"{%- set last = m.content.split('</think>')[-1].lstrip('\n') if users.left else m.content %}"
    r"{{- '<|im_start|>' + m.role + '\n' + (m.content if m.role == 'user' else last) + '<|im_end|>\n' }}",
)
assert "users.left - 1" in FORGETFUL


def test_an_answers_thoughts_are_forgotten_beside_calls_too(tmp_path):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    ours = in_folder(tmp_path, FORGETFUL)
    answer = ("assistant", "<think>\nHot?\n</think>\n\nYes.")
    for conversation in (
        [ASK, answer, ASK, *call("weather"), ("result", "18")],
        [ASK, *call("weather"), ("result", "18"), answer, ASK],
        [ASK, answer, ASK],
    ):
        [expected], _ = utils.render_jinja_template(
            [as_transformers(conversation)], chat_template=FORGETFUL, add_generation_prompt=True
        )
        assert "".join(part for _, part in ours.parts(conversation)) == expected
        assert "Hot?" not in expected


def test_arguments_are_written_as_templates_write_them_however_a_client_does(tmp_path):
    ours = in_folder(tmp_path, CALLING)
    spelled = '{"city":"Z\\u00fcrich"}', '{ "city" : "Zürich" }'
    found = [ours.decode(ours.chat([ASK, *call("weather", one), ("result", "18")])) for one in spelled]
    assert found[0] == found[1]
    assert '"arguments": {"city": "Zürich"}}' in found[0]
    assert '"arguments": no JSON}' in ours.decode(ours.chat([ASK, *call("weather", "no JSON"), ("result", "18")]))


@requires_qwen
def test_qwens_own_template_places_calls_and_results():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    path = packages.path("qwen2_5_coder_1_5b")
    source, tokenizer = GGUF.open(path).metadata["tokenizer.chat_template"], load_tokenizer(path)
    begun, ended = tokenizer.vocabulary.spelled["<tool_call>"], tokenizer.vocabulary.spelled["</tool_call>"]
    for conversation in CONVERSATIONS:
        turns = as_transformers(conversation)
        [expected], _ = utils.render_jinja_template([turns], chat_template=source, add_generation_prompt=True)
        assert "".join(part for _, part in tokenizer.parts(conversation)) == expected
        ids, calls = tokenizer.chat(conversation), sum(kind == "name" for kind, _ in conversation)
        assert ids.count(begun) == ids.count(ended) == calls


def control_ids(tokenizer, conversation) -> Counter:
    spelled = {*tokenizer.vocabulary.spelled.values()}
    return Counter(id for id in tokenizer.chat(conversation) if id in spelled or tokenizer.tags.is_tag(id))


@pytest.fixture(scope="module")
def with_and_without(tmp_path_factory):
    return [in_folder(tmp_path_factory.mktemp("models") / name, source) for name, source in
            (("with", CALLING), ("without", None))]  # fmt: skip


@examples(50)
@given(st.lists(st.sampled_from([*MARKS, *SAMPLES, "<sync/>"]), min_size=6, max_size=6))
def test_no_name_arguments_or_result_becomes_a_control_id(with_and_without, texts):
    kinds = ("user", "assistant", "name", "arguments", "result", "user")
    for tokenizer in with_and_without:
        harmless = control_ids(tokenizer, [(kind, "a") for kind in kinds])
        assert control_ids(tokenizer, list(zip(kinds, texts, strict=True))) == harmless


def test_without_a_place_in_the_template_they_are_turns_in_words(tmp_path):
    conversation = CONVERSATIONS[1]
    said = [
        ASK,
        ("assistant", 'Call weather with {}\n\nCall größe with {"a": "é <b>", "n": [1, 2.5]}'),
        ("user", "weather returned: 18\n\ngröße returned: \n\n Why is the sky blue?\n"),
    ]
    assert in_words(conversation) == said
    assert in_words(CONVERSATIONS[2])[2:4] == [
        ("assistant", 'Wait.\n\nCall weather with {"a": "é <b>", "n": [1, 2.5]}'),
        ("user", "weather returned: 18"),
    ]
    tokenizer = in_folder(tmp_path, None)
    assert tokenizer.chat(conversation) == tokenizer.chat(said)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'\\n<result>\\n'", "'\\n<result id=' + m.tool_call_id + '>\\n'"),
        ("'\\n<result>\\n'", "'\\n<result of=' + m.name + '>\\n'"),
        ("'\\n<result>\\n'", "loop.index | string"),
        ("'\\n</result>'", "raise_exception('no results')"),
        (
            "{{- '<|im_start|>assistant' }}",
            "{{- '<|im_start|>assistant' + ('' if m.content else m.tool_calls[0].id) }}",
        ),
        ("{{- '<|im_start|>assistant' }}", ONLY_AFTER_A_RESULT),
        ("call.function.arguments | tojson", "call.function.arguments | tojson(indent=1)"),
        ("call.function.arguments | tojson", "call.function.arguments | items | list"),
        ("{%- for call in m.tool_calls %}", "{%- for call in m.tool_calls[:1] %}"),
        ("m.role == 'tool'", "false"),
    ],
)
def test_a_template_that_does_something_else_with_them_is_answered_in_words(tmp_path, old, new):
    assert CALLING.count(old) == 1 or old == "m.role == 'tool'"
    tokenizer = in_folder(tmp_path, CALLING.replace(old, new))
    for conversation in CONVERSATIONS:
        assert tokenizer.chat(conversation) == tokenizer.chat(in_words(conversation))


@pytest.mark.parametrize(
    ("conversation", "place"),
    [
        ([ASK, *call("weather")], "message 4: 'user' after 'arguments'"),  # the end
        ([ASK, *call("weather"), *call("weather"), ("result", "18"), ASK], "message 7: 'user' after 'result'"),
        ([ASK, *call("weather"), *call("weather"), ("result", "18"), *call("weather")], "message 7: 'name' after"),
        ([ASK, ("name", "weather"), ("result", "18")], "message 3: 'result' after 'name'"),
        ([ASK, ("name", "weather"), ASK], "message 3: 'user' after 'name'"),
        ([ASK, ("arguments", "{}"), ("result", "18")], "message 2: 'arguments' after 'user'"),
        ([("result", "18"), ASK], "message 1: 'result' at the beginning"),
        ([ASK, *call("weather"), ("result", "18"), ("tool", "a"), ASK], "message 5: 'tool' after 'result'"),
        ([ASK, *call("weather"), ("result", "18"), ("assistant", "a")], "no open question"),
    ],
)
def test_conversations_out_of_order_are_refused(with_and_without, conversation, place):
    for tokenizer in with_and_without:
        with pytest.raises(PastaError, match=place):
            tokenizer.chat(conversation)


def test_a_call_before_the_first_question_is_refused_where_the_template_has_no_place_for_it(with_and_without):
    conversation = [*call("weather"), ("result", "18")]
    with pytest.raises(PastaError, match="a user's message comes first"):
        with_and_without[0].chat(conversation)
    assert with_and_without[1].chat(conversation)
