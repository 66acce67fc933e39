"""The same decoding steps by other runtimes on the same weights in float32: transformers on torch, and llama.cpp."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from pasta_jax import assets
from pasta_jax.benchmark.steps import Runner
from pasta_jax.models import huggingface
from pasta_jax.models.gguf import GGUF
from pasta_jax.models.layers import unstack
from pasta_jax.models.weights import PACKAGED, Model


def transformers_runner(model: Model, rows: int, prompt: int, steps: int) -> Runner:
    """Feeds `rows` tokens a step to a growing cache, greedy, as `generate` does with one."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(os.cpu_count() or 1)
    folder = exported(model)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    word = model.tokenizer.encode(" word")[0]

    def once() -> float:
        with torch.inference_mode():
            cache = DynamicCache(config=theirs.config)
            theirs(torch.full((1, prompt), word), past_key_values=cache, use_cache=True)
            tokens = torch.full((1, rows), word)
            theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)  # warms this width up
            began = time.perf_counter()
            for _ in range(steps):
                theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)
            return 1e3 * (time.perf_counter() - began) / steps

    return once


def llama_cpp_runner(model: Model, rows: int, slots: int, prompt: int, steps: int) -> Runner:
    """Feeds `rows` tokens of one sequence a step, logits of all of them asked for."""
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    options = llama_cpp.LlamaModelParams()
    options.use_mmap = False
    theirs = llama_cpp.LlamaModel(str(float32_gguf(model)), options)
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = slots
    settings.n_threads = settings.n_threads_batch = os.cpu_count() or 1
    context = llama_cpp.LlamaContext(theirs, settings)
    word = model.tokenizer.encode(" word")[0]

    def feed(start: int, count: int) -> None:
        batch = llama_cpp.LlamaBatch(n_tokens=count, embd=0, n_seq_max=1)
        for index in range(count):
            batch.add(word, start + index, [0], True)
        context.decode(batch)
        context.synchronize()

    def once() -> float:
        context.kv_cache_clear()
        feed(0, prompt)
        feed(prompt, rows)
        began = time.perf_counter()
        for step in range(1, steps + 1):
            feed(prompt + rows * step, rows)
        return 1e3 * (time.perf_counter() - began) / steps

    return once


def exported(model: Model) -> Path:
    """The model in Hugging Face's layout, written once."""
    folder = assets.cache_dir() / "peers" / model.name
    if not (folder / "model.safetensors").is_file():
        huggingface.write_model(folder, host(model), model.config)
    return folder


def host(model: Model) -> dict:
    """The parameters as NumPy arrays, layers as a tuple."""
    import jax

    return jax.tree.map(np.asarray, unstack(model.params))


def float32_gguf(model: Model) -> Path:
    """The packaged GGUF file with every tensor dequantised to float32, written once."""
    import gguf

    target = assets.cache_dir() / "peers" / f"{model.name}-f32.gguf"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    source = PACKAGED[model.name]()
    ours, theirs = GGUF.open(source), gguf.GGUFReader(source)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as unfinished:
        pass
    writer = gguf.GGUFWriter(unfinished.name, ours.metadata["general.architecture"])
    for name, field in theirs.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kinds = field.types
        writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    for name in ours.tensors:
        writer.add_tensor(name, ours.read(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished.name, target)
    return target
