"""A server with several adapters beside its model: each request names its own, as with that adapter alone."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import pasta_jax as pasta
from tests.helpers.serving import Server, export, saved_adapters

pytestmark = pytest.mark.slow  # starts a server process
QUESTION = [{"role": "user", "content": "birds crow 7"}]
NAMES = ("talkative", "talkative:one", "talkative:two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def adapters(folder, tmp_path_factory):
    return saved_adapters(folder, tmp_path_factory.mktemp("adapters"))


def test_requests_beside_each_other_have_the_answers_of_their_own_adapters(folder, adapters):
    named = tuple(f"{name}={path}" for name, path in adapters.items())
    with Server(folder, adapters=repr(named), warm_up=True) as server:

        def ask(model: str, seed: int) -> str:
            answer = server.ask(model=model, messages=QUESTION, seed=seed, temperature=1.0, max_tokens=30)
            assert answer["model"] == model
            return answer["choices"][0]["message"]["content"]

        cases = [(name, seed) for seed in (1, 2) for name in NAMES]
        with ThreadPoolExecutor(len(cases)) as pool:
            texts = list(pool.map(lambda case: ask(*case), cases))
        assert [ask(*case) for case in cases] == texts
        listed = json.loads(server.request("GET", "/v1/models")[2])["data"]
        assert [card["id"] for card in listed] == list(NAMES)
        status, _, content = server.request("POST", "/v1/chat/completions", {"model": "x", "messages": QUESTION})
        assert status == 404
        assert all(name in content.decode() for name in NAMES)
        assert server.request("GET", "/v1/models/talkative:one")[0] == 200
    for name, path in (("talkative", None), *((f"talkative:{name}", path) for name, path in adapters.items())):
        model = pasta.load_model(folder, path)
        expected = [
            pasta.generate(model, "birds crow 7", seed=seed, temperature=1.0, max_tokens=30, rows=4, lanes=1).text
            for seed in (1, 2)
        ]
        assert [text for (asked, _), text in zip(cases, texts, strict=True) if asked == name] == expected
    assert len(set(texts)) == len(cases)
