"""Answer a prompt with a real model.

    python -m launch.decode --config=configs/decode.py:smollm2_135m --prompt="Give three tips for staying healthy."

Variants: smollm2_135m (instruct); gemma3_270m (base: continues the text, no chat); gemma_2b and gemma_7b (no package
ships the weights: add --config.model.path=<GGUF file or Hugging Face folder>); local (any Gemma or Llama model at such
a path). On two CPU cores SmolLM2 starts in about 10 s and writes about 40 tokens a second, Gemma 3 270M about 15.

The pretrained models were not trained on PASTA's tags, so these variants decode sequentially (--nosequential lets them
try). What an asynchronous answer looks like is shown by a replay of a given one:

    python -m launch.decode --prompt="How long is it?" --program=docs/example.txt --html=answer.html

--trace, --perfetto and --svg write the answer in other forms (docs/TRACE.md); --prompts_file and --output answer many.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: decode("smollm2_135m", chat=True),
        "gemma3_270m": lambda: decode("gemma3_270m", chat=False),
        "gemma_2b": lambda: decode("gemma_2b", chat=True),
        "gemma_7b": lambda: decode("gemma_7b", chat=True),
        "local": lambda: decode("", chat=True),
    }
    return common.pick(variants, variant, "configs/decode.py")


def decode(preset: str, chat: bool) -> ConfigDict:
    """One model, one prompt."""
    config = ConfigDict(
        {
            "model": common.model(preset),
            "chat": chat,  # put the prompt into the model's chat template; False: the prompt as it is
            "system": "",  # system line; empty: the template's own
            "decoding": common.decoding(lanes=1, rows=8),
            "request": common.request(max_tokens=200),
            "round_steps": 4,  # steps between two looks at the device while text streams
        }
    )
    config.request.sequential = True
    return config
