"""Count the steps, lengths and means of an evaluation again, from its records: python -m tests.recount WORKDIR.

It shares no code with pasta_jax, and knows only what docs/LANG.md says of the tags and of the clock. What it finds in
answers-*.jsonl, timings.jsonl and likelihood.jsonl is compared with each record, and with the means of report.json. Not
counted again: intervals, categories, what judges prefer, realised and throughput; repetition, rules, topics, leaks and
malformed answers; and whether the parts of an answer are right, since the right answers stand in no file.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

OTHERS = ("baseline", "skeleton", "unshared", "apar")  # systems of which PASTA's, tags forbidden, is not the same model


def simulate(ids, threads, base):
    """Steps until an answer of these tokens is done, if every thread that can run does: a step at a time."""
    is_close, async_end, sync = range(base + 1, base + 65), base + 66, base + 67
    waiting = defaultdict(list)
    for id, thread in zip(ids, threads, strict=True):
        waiting[thread].append(id)
    main, chunks = waiting.pop(0, []), []  # the chunks that have begun: what each has yet to feed
    promised, begun, steps = False, 0, 0

    def ended(chunk):
        return not chunk or chunk[0] == async_end

    while main or not all(map(ended, chunks)):
        steps += 1
        new = None
        joins = bool(main) and main[0] == sync
        if main and not (joins and not all(map(ended, chunks))):
            token = main.pop(0)
            if token in is_close and promised:
                begun += 1
                new = waiting.get(begun, [])
            promised = token == base or (promised and token not in is_close)
        for chunk in chunks:
            if chunk:
                chunk.pop(0)
        if new is not None:
            chunks.append(new[1:])  # its first token, [ASYNC], is fed in this step
    return steps


def count_text(ids, threads, base):
    """Tokens that are neither tags nor in a topic."""
    count, in_topic = 0, False
    for id, thread in zip(ids, threads, strict=True):
        is_tag = base <= id < base + 68
        if thread == 0:
            in_topic = id == base or (in_topic and not base < id <= base + 64)
        count += not is_tag and not (thread == 0 and in_topic)
    return count


def chunks_of(ids, threads, base):
    """(promised ids, ids of the block with both its tags) of each chunk."""
    fed, found = defaultdict(list), []
    for id, thread in zip(ids, threads, strict=True):
        fed[thread].append(id)
    open_promise = False
    for id in fed.pop(0, []):
        if open_promise and base < id <= base + 64:
            block = fed.get(len(found) + 1) or [None]  # [ASYNC] was not fed
            found.append((10 * (id - base), len(block) + (block[-1] != base + 66)))
        open_promise = id == base or (open_promise and not base < id <= base + 64)
    return found


def recount(header, record):
    """{steps, critical_path, text_tokens, tokens, chunks} of a record, from its tokens alone."""
    ids, threads, steps = (record["fed"][name] for name in ("ids", "threads", "steps"))
    if header["system"] in ("skeleton", "unshared"):
        fed = defaultdict(int)
        for thread in threads:
            fed[thread] += 1
        critical, text = fed.pop(0, 0) + max(fed.values(), default=0), record["text_tokens"]  # which no id tells
        chunks = [(0, chunk["length"]) for chunk in record["chunks"]]  # points, which nothing promises a length of
    else:
        critical, text = simulate(ids, threads, header["tags"]), count_text(ids, threads, header["tags"])
        chunks = chunks_of(ids, threads, header["tags"])
        chunks = [(0, length) for _, length in chunks] if header["system"] == "apar" else chunks
    counts = {"steps": max(steps, default=0), "critical_path": critical, "text_tokens": text, "tokens": len(ids)}
    return counts | {"chunks": chunks}


def geometric(values):
    """The geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def arithmetic(values):
    """The arithmetic mean; None of nothing."""
    return sum(values) / len(values) if values else None


def ratios(own, plain, ending):
    """The values of figures relative to the answers of another system, by name."""
    found = defaultdict(list)
    for number, (one, record) in own.items():
        other, answered = plain.get(number, ({"text_tokens": 0}, None))
        if not (one["text_tokens"] and other["text_tokens"]):
            continue
        both_end = record["finished"] and answered["finished"]
        for end in endings(bool(one["chunks"]), both_end):
            found["speedup" + ending + end].append(other["critical_path"] / one["critical_path"])
            found["length_ratio" + ending + end].append(other["critical_path"] / one["text_tokens"])
    return found


def endings(forks, both_end):
    """What the names of the figures end with that an answer counts for."""
    yield from ("", "_of_forked" if forks else "_of_unforked")
    if both_end:
        yield from ("_of_stopped", "_of_stopped_of_forked")[: 1 + forks]


def nats_of(own, baseline):
    """The means of what the baseline thinks of a system's answers, from its nats per token by prompt."""
    pairs = [nats - baseline[number] for number, nats in own.items() if number in baseline]
    found = {"nats": [*own.values()], "nats_over_baseline": pairs}
    return {name: (arithmetic(values), len(values)) for name, values in found.items() if values}


def estimates_of(own, plain, untagged, realised):
    """The means of one system's answers to a set, with how many each is of, by name. `plain` may be empty."""
    values = ratios(own, plain, "") | ratios(own, untagged, "_over_untagged")
    for number, (one, record) in own.items():
        other, answered = (plain or own).get(number, ({"text_tokens": 0}, None))
        if one["text_tokens"] and other["text_tokens"]:
            for end in endings(bool(one["chunks"]), record["finished"] and answered["finished"]):
                values["parallelism" + end].append(one["text_tokens"] / one["critical_path"])
    for number, value in realised.items():
        (one, _), (other, _) = own[number], plain[number]
        values["realised"].append(value)
        if one["text_tokens"] and other["text_tokens"]:
            values["efficiency"].append(value * one["critical_path"] / other["critical_path"])
    found = {name: (geometric(several), len(several)) for name, several in values.items()}
    for name in {"speedup", "parallelism", "realised"} & {*found}:
        found[name + "_arithmetic"] = (arithmetic(values[name]), len(values[name]))
    return found | {"fork_rate": (arithmetic([bool(one["chunks"]) for one, _ in own.values()]), len(own))}


def figures_of(own):
    """The means of one system's answers to a set that need no other system's."""
    forked = [one["chunks"] for one, _ in own.values() if one["chunks"]]
    ended = [
        chunk
        for one, record in own.values()
        for chunk, stated in zip(one["chunks"], record["chunks"], strict=True)
        if chunk[0] and stated["closed"] == "own"
    ]
    return {
        "answers": len(own),
        "fork_rate": len(forked) / len(own),
        "chunks": sum(map(len, forked)) / max(len(forked), 1),
        "promised": arithmetic([promised for promised, _ in ended]),
        "length": arithmetic([length for _, length in ended]),
        "length_error": arithmetic([abs(promised - length) for promised, length in ended]),
        "stopped": arithmetic([record["finished"] for _, record in own.values()]),
        "tokens": arithmetic([one["text_tokens"] for one, _ in own.values()]),
    }


def realised_in(folder):
    """The baseline's seconds over each system's, by system and prompt."""
    path, found = Path(folder) / "timings.jsonl", defaultdict(dict)
    for line in path.read_text().split("\n")[1:-1] if path.exists() else ():
        timing = json.loads(line)
        plain = timing["systems"].get("baseline", {"critical_path": 0})
        for system, one in timing["systems"].items():
            if system != "baseline" and one["critical_path"] and plain["critical_path"]:
                found[system][timing["number"]] = plain["seconds"] / one["seconds"]
    return found


def nats_in(folder):
    """The nats per token that the baseline gives to answers, by system and prompt."""
    path, found = Path(folder) / "likelihood.jsonl", defaultdict(dict)
    for line in path.read_text().split("\n")[1:-1] if path.exists() else ():
        one = json.loads(line)
        found[one["system"]][one["number"]] = one["nats"]
    return found


def counted(folder):
    """(count, record) of every answer, by set and system, then number; and a line for each record that differs."""
    found, differing = defaultdict(dict), []
    for path in sorted(Path(folder).glob("answers-*.jsonl")):
        header, *records = map(json.loads, path.read_text().split("\n")[:-1])
        for record in records:
            count = recount(header, record)
            found[record["prompts"], header["system"]][record["number"]] = count, record
            stated = {name: record[name] for name in count}
            stated["chunks"] = [(chunk["promised"], chunk["length"]) for chunk in record["chunks"]]
            differing += [
                f"{path.name}: {record['prompts']} {record['number']}: {name} {stated[name]}, counted {value}"
                for name, value in count.items()
                if stated[name] != value
            ]
    return found, differing


def compare(folder):
    """Lines about what differs from the records and from report.json; how many records and means were compared."""
    counts, differing = counted(folder)
    report, realised, compared = json.loads((Path(folder) / "report.json").read_text()), realised_in(folder), 0
    nats = nats_in(folder)
    first = next(iter(report["sets"]))
    for (name, system), own in counts.items():
        plain, untagged = (counts.get((name, other), {}) for other in ("baseline", "untagged"))
        untagged = {} if system in OTHERS else untagged
        means = estimates_of(own, plain, untagged, realised[system] if name == first else {})
        means |= nats_of(nats[system], nats["baseline"]) if name == first else {}
        stated = report["sets"].get(name, {}).get(system, {"estimates": {}, "figures": {}})
        pairs = {figure: (stated["figures"].get(figure), value) for figure, value in figures_of(own).items()}
        for figure, (value, count) in means.items():
            one = stated["estimates"].get(figure, {"value": None, "count": None})
            pairs |= {f"mean {figure}": (one["value"], value), f"count of {figure}": (one["count"], count)}
        compared += len(pairs)
        differing += [
            f"report.json: {name}, {system}: {figure} was not counted"
            for figure in stated["estimates"].keys() - means.keys() - {"parts_right", "last_right"}
        ]
        differing += [
            f"report.json: {name}, {system}: {figure} {one}, counted {value}"
            for figure, (one, value) in pairs.items()
            if (one is None) != (value is None) or (value is not None and abs(one - value) > 1e-9 * max(1, abs(value)))
        ]
    return differing, sum(map(len, counts.values())), compared


if __name__ == "__main__":
    lines, records, means = compare(sys.argv[1])
    print("\n".join([*lines, f"{records} answers and {means} means counted again, {len(lines)} differences"]))
    sys.exit(bool(lines))
