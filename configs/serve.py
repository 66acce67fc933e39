r"""Serve a model over HTTP: OpenAI's API, a page to chat with at /, metrics.

    python -m launch.serve --config=configs/serve.py:pasta
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "List five fruits."}]}'

Variants: pasta and qwen (SmolLM2 and Qwen 1.5B with the adapters that fork), smollm2_135m and qwen2_5_coder_1_5b
(sequential), local (any model of docs/MODELS.md at --config.model.path, perhaps with --config.model.adapter; if it
forks, add --config.decoding.forks=admitted where several clients ask at a time). Starting takes about 10 s on two CPU
cores; the first start compiles for minutes. docs/SERVING.md describes the API, its limits and its metrics.

A server listens on loopback. To serve a network, set --config.host=0.0.0.0 and require a key:

    PASTA_KEY=... python -m launch.serve --config=configs/serve.py:pasta --config.host=0.0.0.0 \
        --config.key_variable=PASTA_KEY

Ctrl-C or SIGTERM stops it once running answers are finished.
"""

from pasta_jax.runs.settings import changed
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.weights.settings import ModelSource


def pasta() -> ServeSettings:
    """SmolLM2 with the adapter that forks; see its card in checkpoints/."""
    return _forking(ModelSource("smollm2_135m", adapter="pasta"), name="smollm2_135m_pasta")


def qwen() -> ServeSettings:
    """Qwen2.5-Coder-1.5B in 4 bits with the adapter that forks; setup.sh --qwen."""
    source = ModelSource("qwen2_5_coder_1_5b", adapter="qwen2_5_coder_1_5b", bits=8)
    return _forking(source, name="qwen2_5_coder_1_5b_pasta")


def smollm2_135m() -> ServeSettings:
    """SmolLM2-135M-Instruct, sequential."""
    return ServeSettings()


def qwen2_5_coder_1_5b() -> ServeSettings:
    """Qwen2.5-Coder-1.5B-Instruct in 4 bits, sequential; setup.sh --qwen."""
    return ServeSettings(ModelSource("qwen2_5_coder_1_5b", bits=8))


def local() -> ServeSettings:
    """Any model of docs/MODELS.md at model.path."""
    return ServeSettings(ModelSource())


def _forking(source: ModelSource, name: str) -> ServeSettings:
    """Chunks begin when they pay, so that many clients don't wait longer than without forks."""
    return changed(ServeSettings(source, name), **{"decoding.forks": "admitted"})
