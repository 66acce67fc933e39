"""Chrome trace events of a trace: slices nest, arrows attach to them, times are the measured ones."""

import itertools
import json

import pytest

from pasta_jax.view.perfetto import to_perfetto
from tests.helpers.traces import PROGRAM, TOKENIZER, drafted, random_traces, script_of, traced

TAGS = TOKENIZER.tags


@pytest.mark.parametrize("seed", range(3))
def test_perfetto_slices_nest_and_arrows_attach_to_them(seed):
    for trace, *_ in (traced([[TOKENIZER.end_of_turn]]), *random_traces(25, seed)):  # the first is empty
        whole = json.loads(json.dumps(to_perfetto(trace)))
        events = whole["traceEvents"]
        tracks = {event["tid"] for event in events if event["name"] == "thread_name"}
        assert tracks == set(range(1, len(trace.closed) + 1))
        slices = [event for event in events if event["ph"] == "X"]
        for tid in tracks:
            open_until = []
            for event in sorted((e for e in slices if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
                start, end = event["ts"], round(event["ts"] + event["dur"], 3)
                assert event["dur"] >= 0 <= start
                while open_until and open_until[-1] <= start:
                    open_until.pop()
                assert not open_until or end <= open_until[-1]
                open_until.append(end)
        tokens = [event for event in slices if "slot" in event["args"]]
        assert sorted(event["args"]["slot"] - len(trace.prompt_ids) for event in tokens) == list(
            range(len(trace.token))
        )
        arrows, ends = [event for event in events if event["ph"] in "sf"], set()
        for _, pair in itertools.groupby(sorted(arrows, key=lambda e: e["id"]), key=lambda e: e["id"]):
            tail, head = sorted(pair, key=lambda e: e["ph"], reverse=True)
            assert (tail["ph"], head["ph"], head["bp"]) == ("s", "f", "e")
            assert tail["ts"] <= head["ts"]
            held = [
                next(
                    s["args"]["id"]
                    for s in tokens
                    if s["tid"] == end["tid"] and s["ts"] <= end["ts"] < s["ts"] + s["dur"]
                )
                for end in (tail, head)
            ]
            if tail["name"] == "fork":
                assert TAGS.is_close(held[0])
                assert held[1] == TAGS.async_
            else:
                assert held[1] == TAGS.sync
                ends.add(tail["tid"] - 1)
        assert ends == trace.joins().keys()
        for row in trace.threads():
            idle = [e["args"]["steps"] for e in slices if (e["tid"], e["name"]) == (row.number + 1, "waits")]
            assert sum(idle) == (row.last_step - row.first_step + 1 - row.tokens if row.tokens else 0)
        started = sum(thread.tokens > 0 for thread in trace.threads()[1:])
        assert sum(event["name"] == "fork" for event in arrows) == 2 * started


def test_tokens_that_a_thread_feeds_in_one_step_share_it_and_are_one_thread():
    trace = drafted()
    events = to_perfetto(trace)["traceEvents"]
    tokens = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if "slot" in e.get("args", {}))
    assert all(end <= start + 0.002 for (_, end), (start, _) in itertools.pairwise(tokens))
    assert [e["args"]["threads"] for e in events if e["ph"] == "C"] == [1, 0]


def test_perfetto_states_its_unit_of_time():
    timed, _ = traced(script_of(PROGRAM), round_steps=4)
    assert "since the prefill began" in to_perfetto(timed)["otherData"]["time"]
    untimed, _ = traced(script_of(PROGRAM), round_steps=0)
    whole = to_perfetto(untimed)
    assert whole["otherData"]["time"] == "1 ms is one step"
    token = next(e for e in whole["traceEvents"] if e["ph"] == "X" and e["args"].get("step") == 3)
    assert (token["ts"], token["dur"]) == (2000, 1000)
