"""The Python API on a tiny model: every form of prompt, options, streaming, how answers are displayed, refusals."""

import dataclasses
import subprocess
import sys
import threading
import types
import typing
import xml.etree.ElementTree as xml
from collections.abc import Generator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import pasta_jax as pasta
from pasta_jax import api, progress
from pasta_jax.device import devices
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.teaching import run
from tests.helpers.traces import PROGRAM, script_of, tiny_model, traced

ROOT = Path(__file__).parent.parent
QUICK = {"max_tokens": 12, "temperature": 1.0, "rows": 3}
pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.fixture(scope="module")
def model() -> pasta.Model:
    """Trained on the tags, as far as the API can tell."""
    return dataclasses.replace(tiny_model(), positions=PREDICTED)


def test_one_prompt_has_one_answer_and_a_list_has_a_list(model):
    answer = pasta.generate(model, "why?", **QUICK)
    assert isinstance(answer, pasta.Answer)
    assert str(answer) == answer.text == answer.trace.program().strip()
    assert answer.finish_reason in ("stop", "length")
    assert [thread.number for thread in answer.threads] == list(range(len(answer.trace.closed)))
    assert answer.trace.prompt == "why?"
    assert repr(answer).startswith("Answer(")

    answers = pasta.generate(model, ["how?", "why?"], **QUICK)
    assert [answer.index for answer in answers] == [0, 1]
    assert [answer.trace.prompt for answer in answers] == ["how?", "why?"]
    assert answers[1].text == answer.text
    assert pasta.generate(model, [], **QUICK) == []


def test_text_messages_and_ids_are_the_same_prompt(model):
    ids = model.tokenizer.chat([("user", "why?")])
    system = model.tokenizer.chat([("system", "be short"), ("user", "why?")])
    prompts = ["why?", ids, np.array(ids), jnp.array(ids), [("user", "why?")], [{"role": "user", "content": "why?"}]]
    answers = [pasta.generate(model, prompt, **QUICK) for prompt in prompts]
    assert {answer.trace.prompt_ids for answer in answers} == {tuple(ids)}
    assert len({answer.text for answer in answers}) == 1
    decoded = model.tokenizer.decode(ids)
    assert [answer.trace.prompt for answer in answers] == ["why?", *[decoded] * 3, "why?", "why?"]
    assert not any(answer.trace.replayed for answer in answers)

    for pair in (prompts[1:3], prompts[2:4], np.array([ids, ids]), prompts[4:]):
        assert {answer.text for answer in pasta.generate(model, pair, **QUICK)} == {answers[0].text}
    with_system = pasta.generate(
        model, ["why?", [("system", "be short"), ("user", "why?")]], **QUICK, system="be short"
    )
    assert {answer.trace.prompt_ids for answer in with_system} == {tuple(system)}
    assert pasta.generate(model, "why?", chat=False, **QUICK).trace.prompt_ids == tuple(
        model.tokenizer.prompt_ids("why?")
    )


def test_options_may_be_scalars_of_numpy(model):
    options = {"max_tokens": 12, "temperature": 0.5, "sequential": True, "seed": 7}
    types = {"max_tokens": np.int64, "temperature": np.float64, "sequential": np.bool_, "seed": np.uint32}
    given = {name: types[name](value) for name, value in options.items()}
    assert pasta.generate(model, "why?", **given).text == pasta.generate(model, "why?", **options).text
    del given["sequential"], options["sequential"]
    [reply], [expected] = (pasta.ask(model, "why?", ["x"], rows=4, **one) for one in (given, options))
    assert reply == expected


def test_a_stream_yields_each_token_and_then_the_answer(model):
    prompts = ["why?", "how?"]
    items = list(pasta.stream(model, prompts, **QUICK))
    answers = {item.index: item for item in items if isinstance(item, pasta.Answer)}
    last = {item.index if isinstance(item, pasta.Answer) else item.request: item for item in items}
    assert last == answers
    expected = pasta.generate(model, prompts, **QUICK)
    assert answers.keys() == {0, 1}
    for index, answer in answers.items():
        events = [item for item in items if isinstance(item, pasta.Event) and item.request == index]
        assert [event.token for event in events] == answer.trace.token.tolist()
        assert [event.thread for event in events] == answer.trace.thread.tolist()
        assert answer.text == expected[index].text
        assert answer.trace.prompt == prompts[index]


def test_the_text_is_streamed_in_reading_order_and_known_by_thread(model):
    answer = pasta.generate(model, "why?", **QUICK)
    pieces = list(pasta.stream_text(model, "why?", **QUICK))
    assert "".join(pieces) == answer.text
    assert len(pieces) > 1
    trace, _ = traced(script_of(PROGRAM))
    whole = pasta.Answer(0, PROGRAM.strip(), "stop", trace)
    assert [whole.text_of(number) for number in range(4)] == [
        "One. Both. End.", "the first of two chunks", "and a second", "never joined",
    ]  # fmt: skip


def test_an_answer_ends_before_the_first_stop_text_in_reading_order(model):
    options = QUICK | {"max_tokens": 40}
    prompts = ["why?", "how?"]
    whole = [answer.text for answer in pasta.generate(model, prompts, **options)]
    assert pasta.generate(model, prompts, stop=[], **options)[0].text == whole[0]
    for stop in [whole[0][3:5], whole[0][-1], whole[1][2], "absent", [whole[0][4:6], whole[1][5:9], whole[0][1:4]]]:
        expected = [until(text, [stop] if isinstance(stop, str) else stop) for text in whole]
        answers = pasta.generate(model, prompts, stop=stop, **options)
        assert [answer.text for answer in answers] == expected
        for answer, text in zip(answers, whole, strict=True):
            assert answer.finish_reason == "stop" or answer.text == text
        items = list(pasta.stream(model, prompts, stop=stop, **options))
        streamed = {item.index: item for item in items if isinstance(item, pasta.Answer)}
        for index, prompt in enumerate(prompts):
            assert streamed[index].text == expected[index]
            assert "".join(pasta.stream_text(model, prompt, stop=stop, **options)) == expected[index]
            tokens = [item.token for item in items if isinstance(item, pasta.Event) and item.request == index]
            trace = streamed[index].trace
            assert tokens == trace.token[: len(tokens)].tolist()
            assert len(trace.token) <= 40


def test_a_stopped_answer_is_not_decoded_to_its_end(model):
    whole = pasta.generate(model, "why?", max_tokens=200, temperature=1.0, rows=3, sequential=True)
    stopped = pasta.generate(
        model, "why?", max_tokens=200, temperature=1.0, rows=3, sequential=True, stop=whole.text[1]
    )
    assert len(whole.trace.token) == 200
    assert len(stopped.trace.token) < 40


def until(text: str, stops: list[str]) -> str:
    """The text before the stop text that is complete first."""
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def test_compiling_is_announced(model, monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(progress, "say", lambda line: line.startswith("compiling") and said.set())
    for name in ("SILENCE_S", "BRIEF_S"):
        monkeypatch.setattr(progress, name, 0.0)

    def decode(*_):
        with progress.doing("compiling"):
            assert said.wait(20)
        return []

    monkeypatch.setattr(api.decoding, "generate", decode)
    assert pasta.generate(model, ["why?"]) == []


def test_a_model_without_the_tags_decodes_sequentially_unless_told_otherwise(model):
    def rows(model: pasta.Model, **options) -> int:
        return pasta.generate(model, "why?", **QUICK, **options).trace.rows

    assert rows(model) == 3
    assert rows(model, sequential=True) == 1
    assert rows(tiny_model()) == 1
    assert rows(tiny_model(), sequential=False) == 3


def test_seeds_and_temperature_reach_the_sampler(model):
    texts = {pasta.generate(model, "why?", **QUICK, seed=seed).text for seed in (0, 0, 1, 2)}
    assert len(texts) == 3
    greedy = {pasta.generate(model, "why?", max_tokens=12, rows=3, seed=seed).text for seed in (0, 1)}
    narrow = {pasta.generate(model, "why?", **QUICK, top_k=1, seed=seed).text for seed in (0, 1)}
    assert len(greedy) == 1
    assert narrow == greedy


def test_the_page_names_every_option():
    page = (ROOT / "docs/API.md").read_text()
    assert not [field.name for field in dataclasses.fields(api.Options) if f"`{field.name}`" not in page]


def test_a_model_is_named_without_its_weights(model):
    assert "tiny" in repr(model)
    assert len(repr(model)) < 1500


# How an answer is displayed


@pytest.fixture
def answer() -> pasta.Answer:
    trace, _ = traced(script_of(PROGRAM))
    return pasta.Answer(0, PROGRAM.strip(), "stop", trace)


def test_in_a_notebook_an_answer_is_a_picture(answer, monkeypatch):
    assert xml.fromstring(answer._repr_svg_()).tag == "{http://www.w3.org/2000/svg}svg"
    image = xml.fromstring(answer._repr_html_().removesuffix(">") + "/>")
    assert image.tag == "img"
    assert image.get("alt") == PROGRAM.strip()
    assert image.get("src").startswith("data:image/svg+xml;base64,")

    displayed = []
    notebook = types.SimpleNamespace(
        get_ipython=lambda: types.SimpleNamespace(kernel=None), display=types.SimpleNamespace(display=displayed.append)
    )
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    answer.show()
    assert displayed == [answer]


def test_on_a_terminal_an_answer_is_text_and_a_timeline(answer, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    answer.show()
    shown = capsys.readouterr().out
    assert PROGRAM.strip() in shown
    assert "█" in shown


# The package


def test_importing_the_package_or_the_language_does_not_load_jax():
    code = "import sys, pasta_jax, pasta_jax.lang.program; print('jax' in sys.modules, dir(pasta_jax))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert output.startswith("False")
    assert dir(pasta) == sorted([*pasta.__all__, "__version__"])
    assert str(dir(pasta)) in output


def test_the_package_exports_the_api():
    assert all(getattr(pasta, name) is getattr(api, name) for name in pasta.__all__ if name != "teach")
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        pasta.generat  # noqa: B018


def test_what_is_called_is_typed():
    """By type checkers, which read the package's types if it says so."""
    assert (Path(pasta.__file__).parent / "py.typed").is_file()
    for function, item in ((pasta.stream, pasta.Event | pasta.Answer), (pasta.stream_text, str)):
        assert typing.get_type_hints(function)["return"] == Generator[item, None, None]
    for cls, name in ((pasta.Answer, "trace"), (pasta.Answer, "finish_reason"), (pasta.Filled, "fields")):
        [kind, *_] = typing.get_args(hint := typing.get_type_hints(cls)[name]) or [hint]
        assert kind is str or getattr(pasta, kind.__name__) is kind


def test_loading_and_teaching_display_what_goes_on(monkeypatch, tmp_path):
    """As what is decoded."""
    before = threading.enumerate()

    def watchers(*_: object, **__: object) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    monkeypatch.setattr(api, "load", watchers)
    monkeypatch.setattr(run, "run", watchers)
    assert pasta.load_model("smollm2_135m") == ["break_silence"]
    before = threading.enumerate()
    assert pasta.teach("smollm2_135m", ["why?"], tmp_path) == ["break_silence"]


# Refusals


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (" ", {}, "prompt 0: the text is blank; write a question"),
        (["why?", ""], {}, "prompt 1: the text is blank"),
        ("why?", {"stop": ""}, "stop"),
        ("why?", {"stop": ["a"] * 5}, "stop"),
        (None, {}, "prompt 0: expected text, token ids or messages, got NoneType"),
        ([None], {}, "prompt 0: expected text"),
        ({"role": "user", "content": "why?"}, {}, "prompt 0: message 1: expected"),
        ([[]], {}, "prompt 0: empty"),
        ([3, "x"], {}, "prompt 0: message 1: expected"),
        ([{"role": "user"}], {}, 'prompt 0: message 1: expected .role, text. or {"role": ..., "content": ...}'),
        ("x" * 600, {}, "prompt 0: 607 tokens, but the context of 512 must"),
        (b"why?", {}, "prompt 0: is bytes; decode it"),
        ([10**6], {}, "prompt 0: token id 1000000 is not below 384"),
        ("\ud83d", {}, "prompt 0: the user message: not valid Unicode"),
        ("\ud83d", {"chat": False}, "prompt 0: the text: not valid Unicode"),
        ("x", {"system": "\ud83d"}, "prompt 0: the system message: not valid Unicode"),
        ("x", {"max_token": 5}, "generate.max_token: unknown key; known keys are "),
        ("x", {"max_tokens": 0}, "generate.max_tokens: expected `int` >= 1"),
        ("x", {"temperature": "hot"}, r"generate.temperature: expected `float \| null`, got `str`"),
        ("x", {"seed": -1}, "generate.seed: expected `int.*` >= 0"),
        ([("system", "a"), ("user", "b")], {"system": "c"}, "prompt 0: system: .* of its own; leave one out"),
        ("x", {"rows": 1}, "rows 1: chunks need a row besides main's"),
    ],
)
def test_invalid_prompts_and_options_are_refused_at_the_call(model, prompt, options, message):
    with pytest.raises(pasta.PastaError, match=message) as refused:
        pasta.stream(model, prompt, **options)
    assert "\n" not in str(refused.value)


def test_a_stream_of_text_is_that_of_one_prompt(model):
    for prompts in (["why?"], ["why?", "how?"], [[("user", "why?")]], [[1, 2]]):
        with pytest.raises(pasta.PastaError, match="prompt: stream_text answers one prompt; use stream"):
            pasta.stream_text(model, prompts, **QUICK)


def test_a_remedy_is_one_that_the_api_has(model, monkeypatch):
    with pytest.raises(pasta.PastaError, match=r"ask.aftr: unknown key; known keys are") as refused:
        pasta.ask(model, "a", ["b"], aftr=1)
    assert not {"fork", "fork_items", "instruction"} & {*str(refused.value).replace(",", "").split()}
    monkeypatch.setattr(devices, "bytes_of", lambda _: 1)
    for call in (lambda: pasta.generate(model, "a"), lambda: pasta.fill(model, "a", {"b": str})):
        with pytest.raises(pasta.PastaError, match=r"lower lanes or max_tokens$"):
            call()


def test_a_model_that_is_neither_preset_nor_file_is_refused(tmp_path):
    with pytest.raises(pasta.PastaError, match=r"model 'smollm': neither .*; pass its path, or one of .*smollm2_135m"):
        pasta.load_model("smollm")
    with pytest.raises(pasta.PastaError, match=r"model 'gemma_7b': neither .*; pass its path") as refused:
        pasta.load_model("gemma_7b")  # an architecture without packaged weights
    assert "gemma_2b" not in str(refused.value)
    with pytest.raises(pasta.PastaError, match="model None: expected a preset"):
        pasta.load_model(None)
    with pytest.raises(pasta.PastaError, match=r"load_model\.dtype: unknown value 'int8'; choose from auto"):
        pasta.load_model("smollm2_135m", dtype="int8")
    with pytest.raises(pasta.PastaError, match="mesh 5: expected what make_mesh returns"):
        pasta.load_model("smollm2_135m", mesh=5)
    with pytest.raises(pasta.PastaError, match=r"config\.json"):
        pasta.load_model(tmp_path)
