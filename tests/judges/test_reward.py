"""Reward models, against `transformers` on random ones."""

import dataclasses
import json

import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.judges.choice import judge_of
from pasta_jax.judges.judge import Entry
from pasta_jax.judges.reward import conversation, load_reward_model
from pasta_jax.judges.settings import AgreementSettings, RewardSettings
from pasta_jax.tokenizers.chat import FAMILIES, jinja_template
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.weights.config_file import config_to_json
from tests.helpers.families import VARIANTS
from tests.helpers.requires import requires_dev
from tests.helpers.tiny_tokenizers import CHATML_SPECIALS, TINY, train_bpe

PAIRS = [("Why is the sky blue?", "Because it is."), ("Name a fruit.", "An apple, " * 15), ("Hi!", "")]
CHATML = jinja_template(next(family for family in FAMILIES if family.name == "chatml"))
# As Qwen 3's: before the last answer stands an empty thought, and before the one that it asks for, nothing.
THINKS = CHATML.replace(
    "+ text +", '+ ("<think>\n\n</think>\n\n" if loop.last and turn["role"] == "assistant" else "") + text +'
)


def write(folder, kind: str, source: str = CHATML, **changes):
    """A random reward model in a folder; the model in transformers, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(train_bpe(CHATML_SPECIALS))
    about = {"eos_token": "<|im_end|>", "chat_template": source, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    raw = config_to_json(dataclasses.replace(VARIANTS[kind], vocab=512), None) | {"num_labels": 1} | changes
    for name in ("architectures", "rope_theta", "rope_scaling", "model_type"):
        del raw[name]
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **raw)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "source"), [("llama", CHATML), ("qwen2", CHATML), ("qwen3", THINKS)])
def test_scores_are_those_of_transformers_and_order_answers(kind, source, tmp_path):
    import torch

    theirs, tokenizer = write(tmp_path, kind, source)
    settings = RewardSettings(str(tmp_path), lengths=(64, 256))
    scores = load_reward_model(settings).score(PAIRS)
    for (question, answer), score in zip(PAIRS, scores, strict=True):
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(turns, return_dict=False)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0, 0].item()
        np.testing.assert_allclose(score, expected, atol=1e-4)
    short = load_reward_model(RewardSettings(str(tmp_path), lengths=(64,)))  # of which longer ones are made
    np.testing.assert_allclose(short.score(PAIRS), scores, atol=1e-4)
    judge = judge_of("reward", AgreementSettings(reward=settings), "")
    first, second = (load_reward_model(settings).score([("Hi!", text)])[0] for text in ("Hello.", "Go away."))
    verdict = judge("Hi!", Entry("Hello."), Entry("Go away."))
    assert verdict.first == pytest.approx(1 / (1 + np.exp(second - first)), abs=1e-4)


@pytest.mark.parametrize("name", ["llama3.json", "gemma.json"])
def test_whitespace_that_a_template_drops_is_not_read(name, tmp_path):
    (tmp_path / name).write_bytes(TINY[name]())
    tokenizer = load_tokenizer(tmp_path / name)
    assert conversation(tokenizer, " Why?\n", "So. ") == conversation(tokenizer, "Why?", "So.")
    assert conversation(tokenizer, "Why?", "So.")[: len(tokenizer.chat([("user", "Why?")]))] == tokenizer.chat(
        [("user", "Why?")]
    )


@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_reward_model_or_too_long_is_refused(tmp_path):
    with pytest.raises(PastaError, match=r"^reward\.model: empty"):
        load_reward_model(RewardSettings())
    write(tmp_path / "two", "qwen2", num_labels=2)
    with pytest.raises(PastaError, match=r"score.weight has shape \(2, 32\)"):
        load_reward_model(RewardSettings(str(tmp_path / "two")))
    write(tmp_path / "one", "qwen2")
    model = load_reward_model(RewardSettings(str(tmp_path / "one"), lengths=(16,)))
    with pytest.raises(PastaError, match=r"^reward\.lengths: a question with its answer has"):
        model.score([("Why?", "Because. " * 20)])
    raw = json.loads((tmp_path / "one/config.json").read_text()) | {"architectures": ["Qwen2ForCausalLM"]}
    (tmp_path / "one/config.json").write_text(json.dumps(raw))
    with pytest.raises(PastaError, match="not a reward model"):
        load_reward_model(RewardSettings(str(tmp_path / "one")))
