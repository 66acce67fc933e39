"""The cache of answers: the cost of all runs that filled it, and lines that are no answers."""

import json

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.llm.cache import Cache, CachedAnswer, Cost, Prices, Usage, total_cost
from pasta_jax.llm.client import Client, LLMError
from pasta_jax.runs import processes
from tests.helpers.endpoint_server import Server, endpoint, good

PRICES, NO_PRICES = Prices(2.0, 10.0), Prices(0.0, 0.0)


def test_the_cost_of_several_runs_is_that_of_all_their_answers(tmp_path):
    with Server(lambda *_: good("yes")) as server:
        for run in range(3):
            with Client(endpoint(server.url), tmp_path / "cache") as client:
                for number in range(run + 1):  # one of them is new
                    client.chat((("user", str(number)),))
                assert (client.usage.requests, client.usage.cache_hits) == (1, run)
                total = client.total_usage()
                assert (total.requests, total.cache_hits, total.tokens_in) == (run + 1, run, 1000 * (run + 1))
                assert total.dollars == pytest.approx(0.003 * (run + 1))
        assert total_cost(tmp_path / "cache", PRICES) == Cost(3, 3000, 300, pytest.approx(0.009))
        assert total_cost(tmp_path / "absent", PRICES) == Cost(0, 0, 0, 0.0)
        with Client(endpoint(server.url, model="other"), tmp_path / "cache") as client:
            client.chat((("user", "0"),))
    assert len(server.seen) == 4, "another model is another question"


def test_another_server_of_ones_own_is_asked_again_and_a_provider_is_paid_once(tmp_path):
    """What a local server calls its model says nothing about it."""
    hello, path = (("user", "hello"),), tmp_path / "cache"
    with Server(lambda *_: good("yes")) as first, Server(lambda *_: good("no")) as second:
        for server, word in ((first, "yes"), (second, "no"), (first, "yes")):
            with Client(endpoint(server.url), path) as client:
                assert client.chat(hello) == word
    assert [len(first.seen), len(second.seen)] == [1, 1]
    paid = "9552ff2b58c2aee5b72fddbeb95e94ac13e4db2da893e094293977ee467d7cef"  # under this key since the beginning
    path.write_text(json.dumps({"key": paid, "text": "paid", "tokens_in": 1, "tokens_out": 1}) + "\n")
    with Client(endpoint("https://provider.example/v1"), path) as client:
        assert client.chat(hello) == "paid"


def test_an_answer_that_is_cut_off_or_empty_is_paid_for_and_asked_for_again(tmp_path):
    answers = [good("ye", "length", 5096), good(""), good("yes")]
    with Server(lambda number, _: answers[number - 1]) as server:
        for reason in ("too long", "declined"):
            with Client(endpoint(server.url), tmp_path / "cache") as client:
                with pytest.raises(LLMError, match=reason):
                    client.chat((("user", "hello"),))
                assert client.usage.tokens_out == {"too long": 4096, "declined": 100}[reason]
        with Client(endpoint(server.url), tmp_path / "cache") as client:
            assert [client.chat((("user", "hello"),)) for _ in range(2)] == ["yes", "yes"]
    assert total_cost(tmp_path / "cache", PRICES) == Cost(3, 3000, 4296, pytest.approx(0.04896))


def test_each_of_several_processes_writes_a_cache_of_its_own_and_reads_all(tmp_path, monkeypatch):
    path = tmp_path / "cache.jsonl"
    for number in (0, 1):
        monkeypatch.setattr(processes, "number", lambda number=number: number)
        cache = Cache(path)
        cache.put(CachedAnswer(f"of {number}", "text", 1, 2))
        cache.close()
        assert cache.get("of 0") == "text"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cache-1.jsonl", "cache.jsonl"]
    assert total_cost(path, PRICES).requests == 2
    monkeypatch.setattr(processes, "number", lambda: 0)
    cache = Cache(path)
    assert cache.get("of 1") == "text"
    cache.close()


def test_runs_that_share_a_folder_write_caches_of_their_own_and_read_all(tmp_path):
    path = tmp_path / "cache.jsonl"
    caches = [Cache(path, run) for run in (0, 7, 8)]
    for number, cache in enumerate(caches):
        cache.put(CachedAnswer(f"of {number}", "text", 1, 2))
        cache.close()
    assert [len(file.read_bytes().splitlines()) for file in tmp_path.iterdir()] == [1, 1, 1]
    assert total_cost(path, PRICES).requests == 3
    cache = Cache(path, 7)
    assert [cache.get(f"of {number}") for number in range(3)] == ["text"] * 3
    cache.close()


def test_a_price_that_is_not_set_is_stated_instead_of_a_cost_of_zero(tmp_path):
    with Server(lambda *_: good("yes")) as server:
        service = endpoint(server.url, dollars_per_million_in=0.0, dollars_per_million_out=0.0)
        with Client(service, tmp_path / "cache") as client:
            assert client.usage.text().endswith("price not set")
            client.chat((("user", "hello"),))
            assert client.usage.dollars is None
            assert client.usage.text().endswith("1,000 tokens in, 100 out; price not set")
    assert total_cost(tmp_path / "cache", NO_PRICES).text() == "1 requests, 1,000 tokens in, 100 out; price not set"
    assert Usage(dollars=Prices(0.0, 1.0).dollars(5, 2_000_000)).text().endswith("$2.00")


@pytest.mark.parametrize(
    "change", [{"key": 1}, {"text": None}, {"tokens_in": "7"}, {"tokens_out": True}, {"tokens_out": -1}]
)
def test_a_line_that_is_no_answer_is_named(tmp_path, change):
    path, answer = tmp_path / "cache", CachedAnswer("key", "text", 1, 2)
    cache = Cache(path)
    cache.put(answer)
    cache.close()
    assert total_cost(path, PRICES).requests == 1
    with path.open("a") as file:
        file.write(json.dumps(vars(answer) | change) + "\n")
    for read in (Cache, lambda path: total_cost(path, PRICES)):
        with pytest.raises(PastaError, match=r"cache: line 2.*; delete that line"):
            read(path)
