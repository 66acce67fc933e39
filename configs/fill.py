r"""Fill in the fields of a JSON schema for every text of a file: all fields of a text in parallel, each as a thread.

    python -m launch.fill --config=configs/fill.py:qwen2_5_coder_1_5b --schema=person.json \
        --prompts_file=texts.jsonl --output=out.jsonl

A text is computed once. Every property of the schema, also of objects within it, is a thread that sees the text and
itself, at the positions that it would have alone, and may write only what its type allows. A value that needs more than
--config.request.max_tokens is named in `incomplete` and left out. Each line of the output has `value`, the plain data.
--config.request.fork_items=True lets a thread name the items of a list of objects, and then writes each by a thread.
--config.request.fork=False writes one JSON text token after token, for comparison. --config.after lets a field read
others first: --config.after='("summary:name year",)'. docs/API.md lists what a schema may have.

Variants: smollm2_135m; qwen2_5_coder_1_5b (in 4 bits; setup.sh --qwen); local (any model of docs/MODELS.md at
--config.model.path). The first run compiles, which takes a minute or two; programs are kept.
"""

from pasta_jax.answer.settings import FillSettings
from pasta_jax.weights.settings import ModelSource


def smollm2_135m() -> FillSettings:
    """SmolLM2-135M-Instruct."""
    return FillSettings()


def qwen2_5_coder_1_5b() -> FillSettings:
    """Qwen2.5-Coder-1.5B-Instruct in 4 bits."""
    return FillSettings(ModelSource("qwen2_5_coder_1_5b"))


def local() -> FillSettings:
    """Any model of docs/MODELS.md at model.path."""
    return FillSettings(ModelSource())
