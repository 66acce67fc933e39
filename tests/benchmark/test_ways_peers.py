"""Peers answer the prompts of `ways` in turn, their drafts are counted, and their own log lets a stopped run go on."""

import contextlib
import dataclasses
import json

import pytest

from pasta_jax.benchmark import ways, ways_peers
from pasta_jax.benchmark.settings import BenchmarkSettings, WaysBenchmark
from pasta_jax.benchmark.ways_peers import Answered
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.questions import Question, QuestionSet
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.requires import requires_dev, requires_smollm2
from tests.helpers.traces import tiny_model

NAMES = ("llama_cpp", "llama_cpp_ngram_mod", "transformers_lookup")
PROMPTS = [[1], [2], [3]]


def scripted(monkeypatch) -> list[str]:
    """Peers that take twice as long without drafts; one answers the last prompt otherwise. Their turns, as taken."""
    turns: list[str] = []

    def answer(name, ids):
        turns.append(name)
        number = int(ids[-1])
        seconds, text = (2.0, "same") if name == "llama_cpp" else (1.0, "same" if number < 3 else "other")
        return Answered(seconds, 100, 10 * (seconds < 2), 5 * (seconds < 2), number > 1, text)

    @contextlib.contextmanager
    def started_peers(config, model):
        turns.append("started")
        yield {name: lambda ids, name=name: answer(name, ids) for name in config.peers}

    monkeypatch.setattr(ways_peers, "started_peers", started_peers)
    return turns


def config_of(tmp_path, **changes) -> WaysBenchmark:
    return WaysBenchmark(peers=NAMES, log=str(tmp_path / "ways.jsonl"), **changes)


def test_peers_take_turns_and_a_stopped_run_goes_on(monkeypatch, tmp_path):
    turns = scripted(monkeypatch)
    config = config_of(tmp_path)
    with ways_peers.opened(config, tiny_model(), PROMPTS, "three") as theirs:
        assert theirs.missing == {0, 1, 2}
        assert theirs.report()["peers"]["prompts"] == 0
        theirs.answer(0)
        theirs.answer(1)
    one, two, three = NAMES
    assert turns == ["started", one, two, three, two, three, one]
    with ways_peers.opened(config, tiny_model(), PROMPTS, "three") as theirs:
        assert theirs.missing == {2}
        theirs.answer(2)
        report = theirs.report()["peers"]
    del turns[:]
    with ways_peers.opened(config, tiny_model(), PROMPTS, "three") as theirs:
        assert theirs.report()["peers"] == report
    assert turns == []  # nothing starts
    lines = (tmp_path / "ways_peers.jsonl").read_text().splitlines()
    assert [json.loads(line).get("number") for line in lines] == [None, 0, 1, 2]
    fewer = dataclasses.replace(config, peers=NAMES[:2])
    with pytest.raises(PastaError, match="begun with peers="), ways_peers.opened(fewer, tiny_model(), PROMPTS, "three"):
        pass

    assert report["prompts"] == 3
    assert report["precision"] == {"llama_cpp": "float32", "transformers": "float32"}  # that of the tiny model
    plain, drafted, alone = (report["ways"][name] for name in NAMES)
    assert plain == {"tokens": 300, "drafts": 0, "kept": 0, "ended": 2, "seconds": 6.0, "ms_per_text_token": 20.0}
    assert drafted == plain | {
        "drafts": 30, "kept": 15, "seconds": 3.0, "ms_per_text_token": 10.0, "times_as_fast": 2.0, "equal": 2,
    }  # fmt: skip
    assert "equal" not in alone  # to what transformers answers without drafts, which it is not asked


def test_a_log_of_our_own_ways_gets_the_answers_of_peers(monkeypatch, tmp_path):
    questions = tuple(Question("alpaca_eval", number, f"{number}", "") for number in range(3))

    def question_sets(prompts):
        return {"alpaca_eval": QuestionSet(questions[: prompts.alpaca_eval], "three")}

    monkeypatch.setattr(ways, "question_sets", question_sets)
    monkeypatch.setattr(ways, "load", lambda source, only_decoding: tiny_model())
    turns, figures = scripted(monkeypatch), ways.Figures(1.0, 0.5, 9, 9, 9, 0, 0, 0, dict.fromkeys(ways.KINDS, (0, 9)))
    monkeypatch.setattr(ways, "_loop", lambda *_: turns.append("loop"))
    monkeypatch.setattr(ways, "_answered", lambda *_: None)

    def group(loops, asked, number):
        turns.append(f"ours {number}")
        return ways.Group(number, len(asked), dict.fromkeys(ways.WAYS, figures), 2, 2)

    monkeypatch.setattr(ways, "_group", group)
    config = config_of(tmp_path, prompts=2)
    ours = ways.measure(BenchmarkSettings(ways=config))
    assert "peers" not in ours
    del turns[:]
    report = ways.measure(BenchmarkSettings(ways=config), with_peers=True)
    assert report.pop("peers")["prompts"] == 2
    assert report == ours
    assert turns == ["started", *NAMES, *NAMES[1:], NAMES[0]]
    del turns[:]
    report = ways.measure(BenchmarkSettings(ways=dataclasses.replace(config, prompts=3)), with_peers=True)
    assert (report["groups"], report["peers"]["prompts"]) == (3, 3)
    assert turns == ["started", *["loop"] * len(ways.WAYS), "ours 2", NAMES[2], *NAMES[:2]]


def test_peers_are_refused_for_several_prompts_at_a_time_and_for_weights_that_they_would_not_read(tmp_path):
    with (
        pytest.raises(PastaError, match=r"config.ways.clients: the peers answer one prompt at a time"),
        ways_peers.opened(config_of(tmp_path, clients=2), tiny_model(), PROMPTS, "three"),
    ):
        pass
    config = config_of(tmp_path, model=ModelSource("gemma_7b", adapter="mine"))
    with (
        pytest.raises(PastaError, match=r"read packaged weights only .* leave config.ways.model.path empty"),
        ways_peers.started_peers(config, tiny_model()),
    ):
        pass


def test_a_reply_of_llama_cpp_is_counted_without_its_end(monkeypatch):
    asked, tokenizer = [], ByteTokenizer()

    def complete(port, bodies, slots):
        asked.extend(bodies)
        return [{"tokens": [*b"text", tokenizer.end_of_turn], "timings": timings} for _ in bodies]

    monkeypatch.setattr(ways_peers.fill_peer, "complete", complete)
    answer = ways_peers.llama_cpp(80, tokenizer, 40)
    timings = {"predicted_n": 5}
    found = answer([5, 6])
    assert (found.tokens, found.text, found.drafts, found.kept) == (4, "text", 0, 0)
    timings = {"draft_n": 7, "draft_n_accepted": 3}
    found = answer([5, 6])
    assert (found.tokens, found.drafts, found.kept, found.ended) == (4, 7, 3, True)
    assert asked[0] == asked[1]
    assert (asked[0]["prompt"], asked[0]["temperature"], asked[0]["cache_prompt"]) == ([5, 6], 0, False)


@requires_dev("transformers")
@requires_dev("torch")
@pytest.mark.slow
def test_what_transformers_looks_up_is_counted_and_changes_no_answer():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=384)
    theirs, calls = LlamaForCausalLM(LlamaConfig(**sizes)).eval(), []
    theirs.lm_head.weight.data[ByteTokenizer.end_of_turn] = 0  # nothing ends an answer, so that it repeats itself
    theirs.register_forward_hook(lambda *_: calls.append(1))
    prompt, found, steps = list(b"one two one two one"), {}, {}
    for lookup in (0, 4):
        del calls[:]
        found[lookup] = ways_peers.transformers(theirs, ByteTokenizer(), 60, lookup)(prompt)
        steps[lookup] = len(calls)
    assert found[0].text == found[4].text
    assert (found[0].drafts, found[0].kept) == (0, 0)
    assert found[0].tokens == steps[0] == 60 > steps[4]
    assert found[4].kept == steps[0] - steps[4]
    assert found[4].kept <= found[4].drafts <= 4 * steps[4]


@requires_dev("xllamacpp")
@requires_dev("torch")
@requires_smollm2
@pytest.mark.extended
def test_the_peers_go_on_as_our_base_model_does_and_keep_some_drafts():
    model = load(ModelSource("smollm2_135m", dtype="platform"), only_decoding=True)
    ids = model.tokenizer.prompt_ids("The sea is wide, and the land is far away. " * 6)
    [ours] = generate(model, [Request(tuple(ids), 48, sequential=True)], DecodeConfig(lanes=1, rows=1, slots=256))
    config = WaysBenchmark(max_tokens=48, slots=256)
    with ways_peers.started_peers(config, model) as answers:
        found = {name: answer(ids) for name, answer in answers.items()}
    assert found.keys() == set(config.peers)
    for name, one in found.items():
        assert one.text == ours.text, name
        assert one.kept <= one.drafts, name
    drafting = {name for name, one in found.items() if one.kept}
    assert drafting >= {"llama_cpp_ngram_simple", "llama_cpp_draft_simple", "transformers_lookup"}
    assert not drafting & {"llama_cpp", "transformers"}
