r"""Answer a prompt with a model.

    python -m launch.decode --config=configs/decode.py:smollm2_135m --prompt="Give three tips for staying healthy."

Variants: smollm2_135m (instruct); pasta (the same with the adapter of checkpoints/ that forks, or another one named
with --config.model.adapter); gemma3_270m (base model: continues the text, no chat); gemma_2b and gemma_7b (no package
ships the weights: add --config.model.path=<GGUF file or Hugging Face folder>); local (any Gemma or Llama model at such
a path); toy (the model of configs/sft.py:toy in runs/toy, with an example question). On two CPU cores SmolLM2 starts in
about 4 s and writes about 100 tokens per second.

The toy answers only questions of its own form: a line for each walk with a ring (birds, boats, colours, dances,
fabrics, fish, fruits, games), its first word and the number of words, and perhaps a last line that requests the ends:

    python -m launch.decode --config=configs/decode.py:toy --prompt=$'birds crow 7\nfish cod 6\nthen name the ends'

A model trained on PASTA's tags decodes asynchronously, any other sequentially; --sequential and --nosequential override
that. To see an asynchronous answer without a trained model, replay one:

    python -m launch.decode --prompt="How long is it?" --program=docs/example.txt --html=answer.html

On a terminal, its threads grow side by side; --slow shows them at reading speed, after decoding. --compare decodes one
prompt with and without the tags, in turn, and shows both answers, their steps and their times.

--trace, --perfetto and --svg write the answer in other formats (docs/API.md). --prompts_file answers many prompts,
and --output writes the results, with AlpacaEval's fields; the same command resumes a run that was stopped. With --html,
each answer has a page, and the file that the flag names links to them.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: decode("smollm2_135m", chat=True),  # SmolLM2-135M-Instruct
        "gemma3_270m": lambda: decode("gemma3_270m", chat=False),  # a base model, which continues the text
        "gemma_2b": lambda: decode("gemma_2b", chat=True),  # Gemma 2B; needs model.path
        "gemma_7b": lambda: decode("gemma_7b", chat=True),  # Gemma 7B; needs model.path
        "local": lambda: decode("", chat=True),  # any Gemma or Llama model at model.path, also one trained here
        "pasta": pasta,  # SmolLM2 with an adapter of this project, which answers in threads
        "toy": toy,  # the model of configs/sft.py:toy, with a question in its own form
    }
    return common.pick(variants, variant, "configs/decode.py")


def decode(preset: str, chat: bool) -> ConfigDict:
    """The config of one model."""
    config = ConfigDict(
        {
            "model": common.model(preset),
            "baseline": common.model(""),  # its sequential answer is compared by --compare; no preset: the model's own
            "compare_passes": 3,  # timed decodings of each answer, of which --compare takes the medians
            "chat": chat,  # put the prompt into the chat template; False: continue it as plain text
            "question": "",  # asked without --prompt; empty: none
            "system": "",  # system message; empty: the template's default
            "decoding": common.decoding(lanes=1, rows=8),
            "request": common.request(max_tokens=200),
            "mesh": common.mesh(),
            "round_steps": 4,  # steps between two reads of the device while text streams
        }
    )
    config.request.sequential = placeholder(bool)  # None: sequential unless the model was trained on the tags
    return config


def pasta() -> ConfigDict:
    """SmolLM2 with the adapter that forks, and its baseline, which does not; see their cards in checkpoints/."""
    config = decode("smollm2_135m", chat=True)
    config.model, config.baseline = common.shipped(common.FORKS), common.shipped("baseline_sft")
    config.request.max_tokens = 400
    return config


def toy() -> ConfigDict:
    """The toy's trained model; its questions name rings of words (pasta_jax/toy/task.py)."""
    config = decode("", chat=True)
    config.model.path = "runs/toy/model"
    config.question = "birds crow 7\nfruits plum 5\nfish cod 6\nthen name the ends"
    config.decoding.widths = ()  # the model is small: compiling more loops costs more time than they save
    return config
