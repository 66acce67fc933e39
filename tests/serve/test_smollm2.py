"""SmolLM2 with the shipped adapter: the server, generate() and launch.decode give the same bytes."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import pasta_jax as pasta
from tests import ROOT
from tests.helpers.forked import Forked, launch
from tests.helpers.requires import requires_smollm2
from tests.helpers.serving import Server

ADAPTER = str(ROOT / "checkpoints/pasta")
PARALLEL = "List three fruits, with a sentence about each."
QUESTIONS = [PARALLEL, *(f"Name something that has the number {number}." for number in range(31))]
OPTIONS = {"temperature": 0.6, "seed": 3, "max_tokens": 16}


def decode_and_generate() -> None:
    """Print what launch.decode prints, then what generate() returns; one process compiles for both."""
    flags = ["--config=configs/decode.py:pasta", f"--prompt={PARALLEL}", "--json", "--rows=4"]
    flags += ["--config.decoding.widths=()", *(f"--config.request.{name}={value}" for name, value in OPTIONS.items())]
    with contextlib.suppress(SystemExit):
        launch("decode", *flags)
    answer = pasta.generate(pasta.load_model("smollm2_135m", ADAPTER), PARALLEL, rows=4, **OPTIONS)
    print(json.dumps({"text": answer.text, "steps": answer.trace.steps}))


@requires_smollm2
@pytest.mark.slow
def test_every_door_gives_the_same_bytes_alone_and_beside_31_others(tmp_path):
    def body(question: str) -> dict:
        return OPTIONS | {"messages": [{"role": "user", "content": question}]}

    decoded, answer = map(json.loads, Forked(tmp_path, decode_and_generate).finish().splitlines())
    assert decoded["text"] == answer["text"]
    with Server("", model__preset="smollm2_135m", model__adapter=ADAPTER, limits__queue=32) as server:
        alone = server.ask(**body(PARALLEL))
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            together = list(pool.map(lambda question: server.ask(**body(question)), QUESTIONS))
    assert [item["choices"][0]["message"]["content"] for item in (alone, together[0])] == [answer["text"]] * 2
    assert len({item["choices"][0]["message"]["content"] for item in together}) > 8
    assert together[0]["usage"]["steps"] == answer["steps"]
