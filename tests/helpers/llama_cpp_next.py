"""The ids that llama.cpp writes next, greedily, after prompts: `python llama_cpp_next.py FILE.gguf < PROMPTS.json`."""

import json
import sys

from cyllama.llama import llama_cpp


def main(path: str) -> None:
    """Print the next id of each prompt as JSON."""
    llama_cpp.disable_logging()
    model = llama_cpp.LlamaModel(path, llama_cpp.LlamaModelParams())
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = 256
    settings.type_k = settings.type_v = 0  # keys and values in float32
    following = []
    for prompt in json.load(sys.stdin):
        context = llama_cpp.LlamaContext(model, settings)
        sampler = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
        sampler.add_greedy()
        context.decode(llama_cpp.llama_batch_get_one(prompt))
        following.append(sampler.sample(context, -1))
    print(json.dumps(following), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
