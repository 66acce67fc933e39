"""SmolLM2 with the shipped adapter: the server, generate() and launch.decode give the same bytes."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import pasta_jax as pasta
from tests.requires import requires_smollm2
from tests.serving import ROOT, Server

ADAPTER = str(ROOT / "checkpoints/pasta_sft")
PARALLEL = "List three fruits, with a sentence about each."
QUESTIONS = [PARALLEL, *(f"Name something that has the number {number}." for number in range(31))]
OPTIONS = {"temperature": 0.6, "seed": 3, "max_tokens": 16}


@requires_smollm2
@pytest.mark.slow
def test_every_door_gives_the_same_bytes_alone_and_beside_31_others(kernels_on_simulated_devices):
    def body(question: str) -> dict:
        return OPTIONS | {"messages": [{"role": "user", "content": question}]}

    command = [sys.executable, "-m", "launch.decode", "--config=configs/decode.py:pasta", f"--prompt={PARALLEL}"]
    command += ["--json", "--rows=4", "--config.decoding.widths=()"]
    command += [f"--config.request.{name}={value}" for name, value in OPTIONS.items()]
    decoded = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    model = pasta.load_model("smollm2_135m", ADAPTER)
    answer = pasta.generate(model, PARALLEL, rows=4, **OPTIONS)
    assert decoded["text"] == answer.text
    with Server("", model__preset="smollm2_135m", model__adapter=ADAPTER, limits__queue=32) as server:
        alone = server.ask(**body(PARALLEL))
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            together = list(pool.map(lambda question: server.ask(**body(question)), QUESTIONS))
    assert [item["choices"][0]["message"]["content"] for item in (alone, together[0])] == [answer.text] * 2
    assert len({item["choices"][0]["message"]["content"] for item in together}) > 8
    assert together[0]["usage"]["steps"] == answer.trace.steps
