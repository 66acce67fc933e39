r"""Serve a model over HTTP: OpenAI's API, a page to chat with at /, metrics.

    python -m launch.serve --config=configs/serve.py:pasta
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "List five fruits."}]}'

Variants: pasta (SmolLM2 with the adapter that forks), smollm2_135m (sequential), local (any model at
--config.model.path, perhaps with --config.model.adapter). Starting takes about 10 s on two CPU cores, the first time
minutes longer, to compile. docs/SERVING.md describes the API, its limits and its metrics.

A server listens on loopback. To serve a network, set --config.host=0.0.0.0 and require a key:

    PASTA_KEY=... python -m launch.serve --config=configs/serve.py:pasta --config.host=0.0.0.0 \
        --config.key_variable=PASTA_KEY

Ctrl-C or SIGTERM stops it when the answers that run are finished.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = "pasta") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "pasta": pasta,  # SmolLM2 with an adapter of this project, which answers in threads
        "smollm2_135m": lambda: serve("smollm2_135m"),  # SmolLM2-135M-Instruct, sequential
        "local": lambda: serve(""),  # any Gemma or Llama model at model.path
    }
    return common.pick(variants, variant, "configs/serve.py")


def serve(preset: str) -> ConfigDict:
    """The config of one model."""
    config = ConfigDict(
        {
            "model": common.model(preset),
            "name": "",  # of the model, for clients; empty: the model's own
            "host": "127.0.0.1",  # address to listen at; 0.0.0.0: all of this machine's
            "port": 8000,  # 0: any free one
            "hosts": (),  # names under which a proxy on this machine serves it, as chat.example.com; empty: none
            "key_variable": "",  # environment variable with the key that clients must send; empty: none
            "decoding": common.decoding(lanes=4, rows=8),
            "request": common.request(max_tokens=400),  # what a client's fields change
            "mesh": common.mesh(),
            "stream_steps": 4,  # steps between two reads of the device while somebody streams
            "batch_steps": 32,  # otherwise; also the longest that a new request waits for a free lane
            "warm_up": True,  # compile for prompts of all lengths before the first request
            "log": True,  # a line for each response, with nothing of its content
            "limits": {
                "body_bytes": 1 << 18,  # of a request; longer ones are refused with 413
                "body_s": 20.0,  # for a request's body to arrive
                "connections": 256,  # open at a time; further ones are closed at once
                "head_s": 20.0,  # for a request's head to arrive
                "stall_s": 60.0,  # for a client that stops reading
                "queue": 64,  # requests that wait for a lane; further ones are refused with 429
                "choices": 8,  # answers to one prompt
                "answer_s": 300.0,  # for an answer, waiting included; then it ends where it is
                "drain_s": 60.0,  # for the answers that run when the server is told to stop
            },
        }
    )
    config.decoding.slots = 2048  # the room of each request, its prompt included
    config.request.sequential = placeholder(bool)  # None: sequential unless the model was trained on the tags
    return config


def pasta() -> ConfigDict:
    """SmolLM2 with the adapter that forks; see its card in checkpoints/."""
    config = serve("smollm2_135m")
    config.model = common.shipped(common.FORKS)
    config.name = "smollm2_135m_pasta"
    return config
