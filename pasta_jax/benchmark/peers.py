"""The same work by other runtimes on the same weights: steps of transformers on torch and llama.cpp; its server."""

import importlib.util
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import jax
import numpy as np

from pasta_jax import assets
from pasta_jax.benchmark.steps import Runner
from pasta_jax.errors import PastaError
from pasta_jax.files import replacing
from pasta_jax.models import huggingface
from pasta_jax.models.gguf import GGUF
from pasta_jax.models.layers import unstack
from pasta_jax.models.source import ModelSource
from pasta_jax.models.weights import BLOCKS, PACKAGED, Model, load_model
from pasta_jax.progress import say


def require(source: ModelSource, packages: Sequence[str]) -> None:
    """Refuse --peers if packages of the peers are not installed, or for a model that the peers cannot read."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise PastaError(f"--peers needs {package}: bash launch/setup.sh --dev")
    if source.preset not in PACKAGED or source.path or source.adapter:
        raise PastaError(
            f"--peers: the peers read packaged weights only ({', '.join(PACKAGED)}); "
            "name one as config.model.preset and leave config.model.path and .adapter empty"
        )


def runners(model: Model, widths: Sequence[int], slots: int, prompt: int, steps: int) -> dict[str, dict[int, Runner]]:
    """Runners of each peer by the number of rows: on the same weights in float32, or in the blocks of their file."""
    word = model.tokenizer.encode(" word")[0]
    if model.precision == BLOCKS:
        path = PACKAGED[model.name]()
        return {"llama_cpp": {rows: llama_cpp_runner(path, word, rows, slots, prompt, steps) for rows in widths}}
    model = load_model(model.name, "")  # with kernels as in files, not as for decoding alone
    path = float32_gguf(model)
    peers: dict[str, dict[int, Runner]] = {"transformers": {}, "llama_cpp": {}}
    for rows in widths:
        say(f"preparing the peers' step of {rows} row(s)")
        peers["transformers"][rows] = transformers_runner(model, rows, prompt, steps)
        peers["llama_cpp"][rows] = llama_cpp_runner(path, word, rows, slots, prompt, steps)
    return peers


def transformers_runner(model: Model, rows: int, prompt: int, steps: int) -> Runner:
    """Feed `rows` tokens per step to a growing cache, greedily, as `generate` feeds one."""
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
            theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)  # warm-up of this width
            began = time.perf_counter()
            for _ in range(steps):
                theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)
            return 1e3 * (time.perf_counter() - began) / steps

    return once


def llama_cpp_runner(path: Path, word: int, rows: int, slots: int, prompt: int, steps: int) -> Runner:
    """Feed `rows` tokens of one sequence per step to a GGUF file's model, and compute the logits of all of them."""
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    options = llama_cpp.LlamaModelParams()
    options.use_mmap = False
    theirs = llama_cpp.LlamaModel(str(path), options)
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = slots
    settings.n_threads = settings.n_threads_batch = os.cpu_count() or 1
    context = llama_cpp.LlamaContext(theirs, settings)

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


def llama_cpp_server(path: str, lanes: int, slots: int, port: int) -> None:
    """Serve a GGUF file by llama.cpp's own server, until the process is ended."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = path, port
    params.n_parallel, params.n_ctx = lanes, lanes * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.verbosity = 0
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


def exported(model: Model) -> Path:
    """The model in Hugging Face's layout, written once."""
    folder = assets.cache_dir() / "peers" / model.name
    if not (folder / "model.safetensors").is_file():
        huggingface.write_model(folder, host(model), model.config)
    return folder


def host(model: Model) -> dict:
    """The parameters as NumPy arrays, layers as a tuple."""
    return jax.tree.map(np.asarray, unstack(model.params))


def float32_gguf(model: Model) -> Path:
    """The packaged GGUF file with every tensor dequantised to float32, written once."""
    target = assets.cache_dir() / "peers" / f"{model.name}-f32.gguf"
    if target.is_file():
        return target
    source = PACKAGED[model.name]()
    ours, theirs = GGUF.open(source), gguf.GGUFReader(source)
    with replacing(target) as part:
        writer = gguf.GGUFWriter(part, ours.metadata["general.architecture"])
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
    return target
