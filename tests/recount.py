"""Count an evaluation's steps and speedups again, from the raw tokens of its records: python -m tests.recount WORKDIR.

It shares no code with pasta_jax, and knows only what docs/LANG.md says of the tags and of the clock.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path


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


def recount(header, record):
    """{steps, critical_path, text_tokens, tokens} of a record, from its tokens alone."""
    ids, threads, steps = (record["fed"][name] for name in ("ids", "threads", "steps"))
    if header["system"] in ("skeleton", "unshared"):
        fed = defaultdict(int)
        for thread in threads:
            fed[thread] += 1
        critical, text = fed.pop(0, 0) + max(fed.values(), default=0), len(ids)
    else:
        critical, text = simulate(ids, threads, header["tags"]), count_text(ids, threads, header["tags"])
    return {"steps": max(steps, default=0), "critical_path": critical, "text_tokens": text, "tokens": len(ids)}


def geometric(values):
    """The geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(folder):
    """By set and system: speedup and parallelism; and every record whose own counts differ."""
    counts, differing = defaultdict(dict), []
    for path in sorted(Path(folder).glob("answers-*.jsonl")):
        header, *records = map(json.loads, path.read_text().split("\n")[:-1])
        for record in records:
            found = recount(header, record)
            counts[record["prompts"], header["system"]][record["number"]] = found
            differing += [
                f"{path.name}: {record['prompts']} {record['number']}: {name} {record[name]}, counted {value}"
                for name, value in found.items()
                if record[name] != value
            ]
    means = {}
    for (name, system), found in counts.items():
        plain = counts.get((name, "baseline"), {})
        pairs = [(plain[number], one) for number, one in found.items() if number in plain]
        steps = [
            (one["critical_path"], own["critical_path"])
            for one, own in pairs
            if min(one["text_tokens"], own["text_tokens"])
        ]
        parallel = [(one["text_tokens"], one["critical_path"]) for one in found.values()]
        means[name, system] = {
            "speedup": geometric([a / b for a, b in steps if a and b]),
            "parallelism": geometric([a / b for a, b in parallel if a and b]),
        }
    return means, differing, sum(map(len, counts.values()))


def compare(folder):
    """Lines about what differs from report.json, and the number of records counted."""
    means, differing, records = summary(folder)
    report = json.loads((Path(folder) / "report.json").read_text())
    for (name, system), found in means.items():
        estimates = report["sets"].get(name, {}).get(system, {}).get("estimates", {})
        for figure, value in found.items():
            stated = estimates[figure]["value"] if figure in estimates else None
            if (value is None) != (stated is None) or (value is not None and abs(value / stated - 1) > 1e-9):
                differing.append(f"report.json: {name}, {system}: {figure} {stated}, counted {value}")
    return differing, records


if __name__ == "__main__":
    lines, total = compare(sys.argv[1])
    print("\n".join([*lines, f"{total} answers counted again, {len(lines)} differences"]))
    sys.exit(bool(lines))
