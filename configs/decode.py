r"""Answer a prompt with a model.

    python -m launch.decode "Give three tips for staying healthy."

Variants: pasta (SmolLM2-135M-Instruct with the adapter of checkpoints/ that forks, or with another one named with
--config.model.adapter); qwen (Qwen2.5-Coder-1.5B-Instruct in 4 bits with its adapter; setup.sh --qwen); smollm2_135m
and qwen2_5_coder_1_5b (without an adapter); gemma3_270m (base model: continues the text, no chat); gemma_2b and
gemma_7b (no package ships the weights: add --config.model.path=<GGUF file or Hugging Face folder>); local (any model
of docs/MODELS.md at such a path, or the folder of a training run); toy (the model of configs/sft.py:toy in runs/toy,
with an example question). On two CPU cores SmolLM2 starts in about 4 s and writes about 100 tokens a second.

The toy answers only questions of its own form: a line for each walk with a ring (in this order: birds, boats, colours,
dances, fabrics, fish, fruits, games), its first word and 4 to 12 as the number of words, and perhaps a last line that
requests the ends:

    python -m launch.decode --config=configs/decode.py:toy --prompt=$'birds crow 7\nfish cod 6\nthen name the ends'

A model trained on PASTA's tags decodes asynchronously, any other sequentially; --sequential and --nosequential override
that. To see an asynchronous answer without a trained model, replay one:

    python -m launch.decode --prompt="How long is it?" --program=docs/example.txt --html=answer.html

On a terminal, its threads grow side by side; --slow shows them at reading speed, after decoding. --compare decodes one
prompt with the tags, and sequentially by the config's baseline (without one, by the same model), in turn, and shows
both answers, their steps and their times.

--trace, --perfetto and --svg write the answer in other formats (docs/API.md). --prompts_file answers many prompts, each
with the next seed, and --output writes the results, with AlpacaEval's fields; the same command resumes a run that was
stopped. With --html, each answer has a page, and the file that the flag names links to them.
"""

from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.runs.settings import changed
from pasta_jax.weights.settings import ModelSource


def pasta() -> DecodeSettings:
    """SmolLM2 with the adapter that forks, and its baseline, which does not; see their cards in checkpoints/."""
    return changed(
        DecodeSettings(),
        model=ModelSource("smollm2_135m", adapter="pasta"),
        baseline=ModelSource("smollm2_135m", adapter="baseline_sft"),
        request=dict(max_tokens=400),
    )


def qwen() -> DecodeSettings:
    """Qwen2.5-Coder-1.5B with the adapter that forks, and the model as it was; setup.sh --qwen."""
    return changed(
        DecodeSettings(),
        model=ModelSource("qwen2_5_coder_1_5b", adapter="qwen2_5_coder_1_5b", bits=8),
        baseline=ModelSource("qwen2_5_coder_1_5b", bits=8),
        decoding=dict(widths=(2, 4, 6)),
        request=dict(max_tokens=400),
    )


def smollm2_135m() -> DecodeSettings:
    """SmolLM2-135M-Instruct."""
    return DecodeSettings()


def gemma3_270m() -> DecodeSettings:
    """A base model, which continues the text."""
    return DecodeSettings(ModelSource("gemma3_270m"), chat=False)


def qwen2_5_coder_1_5b() -> DecodeSettings:
    """Qwen2.5-Coder-1.5B-Instruct, sequential."""
    return DecodeSettings(ModelSource("qwen2_5_coder_1_5b"))


def gemma_2b() -> DecodeSettings:
    """Gemma 2B; needs model.path."""
    return DecodeSettings(ModelSource("gemma_2b"))


def gemma_7b() -> DecodeSettings:
    """Gemma 7B; needs model.path."""
    return DecodeSettings(ModelSource("gemma_7b"))


def local() -> DecodeSettings:
    """Any model of docs/MODELS.md at model.path, also one trained here."""
    return DecodeSettings(ModelSource())


def toy() -> DecodeSettings:
    """The model of configs/sft.py:toy, with a question of its own form: rings of words (pasta_jax/toy/task.py)."""
    return changed(
        DecodeSettings(ModelSource(path="runs/toy/model")),
        question="birds crow 7\nfish cod 6\nfruits plum 5\nthen name the ends",
        decoding=dict(widths=()),  # the model is small: compiling more loops costs more time than they save
    )
