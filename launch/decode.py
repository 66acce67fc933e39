"""Answer a prompt: text as it is decoded on a terminal, or one JSON object with --json. See configs/decode.py."""

import json
import sys
import time

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

PROMPT = flags.DEFINE_string(
    "prompt", None, "the question, or with chat off the text to continue; - reads it from stdin"
)
JSON = flags.DEFINE_bool("json", False, "print one JSON object instead of text")


def main(config: ConfigDict) -> None:
    """Load, decode, print."""
    prompt = read_prompt(PROMPT.value)
    began = time.perf_counter()
    cli.announce_device()

    from pasta_jax.decode.generate import Result, stream
    from pasta_jax.models.weights import load_model

    model = load_model(config.model.preset, config.model.path)
    request = request_for(model, config, prompt)
    loaded = time.perf_counter()
    first = None
    for item in stream(model, [request], settings_of(config), config.round_steps):
        if isinstance(item, Result):
            result = item
            break
        first = first or time.perf_counter()
        if not JSON.value:
            print(item.text, end="", flush=True)
    ended = time.perf_counter()
    tokens, steps = len(result.trace.token), result.trace.steps
    first = first or ended
    if JSON.value:
        report = {
            "prompt": prompt,
            "text": result.text,
            "finish_reason": result.finish_reason,
            "prompt_tokens": len(request.prompt_ids),
            "tokens": tokens,
            "steps": steps,
            "load_s": round(loaded - began, 3),
            "first_token_s": round(first - began, 3),
            "decode_s": round(ended - first, 3),
        }
        print(json.dumps(report, ensure_ascii=False))
        return
    print()
    rate = f", {(tokens - 1) / (ended - first):.0f} tokens/s" if tokens > 1 and ended > first else ""
    print(
        f"[{result.finish_reason}: {tokens} tokens in {steps} steps{rate}; first token after {first - began:.1f} s, "
        f"{loaded - began:.1f} s of them loading]",
        file=sys.stderr,
    )


def read_prompt(prompt: str | None) -> str:
    """The --prompt flag or stdin; blank prompts are refused."""
    if prompt is None:
        raise PastaError("--prompt is missing: give the question, or - to read it from stdin")
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PastaError(f"stdin: byte {error.start} is not UTF-8; convert the text to UTF-8") from None
    if not prompt.strip():
        raise PastaError("--prompt is empty: write a question")
    return prompt


def request_for(model, config: ConfigDict, prompt: str):
    """The request a config and a prompt describe."""
    from pasta_jax.decode.generate import Request
    from pasta_jax.decode.sampling import Sampling

    messages = [("system", config.system)] if config.system else []
    ids = model.tokenizer.chat([*messages, ("user", prompt)]) if config.chat else model.tokenizer.prompt_ids(prompt)
    asked = config.request
    return Request(
        prompt_ids=tuple(ids),
        max_tokens=asked.max_tokens,
        sampling=Sampling(asked.temperature, asked.top_k, asked.top_p, asked.seed),
        sequential=asked.sequential,
        max_topic_tokens=asked.max_topic_tokens,
        max_chunk_tokens=asked.max_chunk_tokens,
    )


def settings_of(config: ConfigDict):
    """The decoding settings of a config."""
    from pasta_jax.decode.generate import Settings

    return Settings(**config.decoding.to_dict())


if __name__ == "__main__":
    cli.run(main, default_config="configs/decode.py")
