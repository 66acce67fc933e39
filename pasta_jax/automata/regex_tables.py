"""The byte automaton of a regular expression, by outlines-core given the 256 bytes as vocabulary. Also a program, which
regex.py runs for expressions from outside: Rust code can't be interrupted, so a process with limits compiles them."""

import json
import sys
import time

END = 256  # outlines-core's id for the end of a text

Tables = tuple[list[int], list[tuple[int, int, int]]]


def tables(pattern: str, most_states: int) -> Tables:
    """The accepting states, and (state, byte, next state) of each transition; state 0 is the start."""
    from outlines_core import Index, Vocabulary  # the program finds it only once it has set its path

    index = Index(pattern, Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)}))
    rows, start = index.get_transitions(), index.get_initial_state()
    if len(rows) > most_states:
        raise ValueError(f"needs more than {most_states:,} states")
    numbers = {state: number for number, state in enumerate(sorted(rows, key=lambda state: state != start))}
    edges = [
        (numbers[state], byte, numbers[to])
        for state, row in rows.items()
        for byte, to in row.items()
        if byte != END and to in numbers
    ]
    return [numbers[state] for state in index.get_final_states() if state in numbers], edges


if __name__ == "__main__":
    import resource

    folder, most_states, memory, seconds = sys.argv[1], *map(int, sys.argv[2:])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.path.append(folder)
    began = time.process_time()
    try:
        found = tables(json.loads(sys.stdin.read()), most_states)
    except ValueError as error:
        sys.exit(f"refused: {error}")
    json.dump([found, time.process_time() - began], sys.stdout)
