"""A batch of mutations in a process of its own, so that a crash or a hang in a library is a finding too."""

import multiprocessing
from multiprocessing.connection import Connection

from tests.fuzz.doors import DOORS
from tests.fuzz.run import LIMIT_S, Tally, fuzz

PROCESSES = multiprocessing.get_context("spawn")


def run(name: str, seed: int, numbers: range) -> Tally:
    """A batch in a process of its own; it goes on after a mutation that ended the process."""
    tally = Tally(name)
    while numbers:
        receiver, sender = PROCESSES.Pipe(duplex=False)
        child = PROCESSES.Process(target=work, args=(sender, name, seed, numbers), daemon=True)
        child.start()
        sender.close()
        at, reason = numbers.start, f"longer than {60 * LIMIT_S} s"
        try:
            while receiver.poll(60 * LIMIT_S):
                if isinstance(news := receiver.recv(), Tally):
                    tally.add(news)
                    return tally
                at = news
        except EOFError:
            child.join()
            reason = f"exit {child.exitcode}"
        child.kill()
        tally.mutations += at + 1 - numbers.start
        tally.failures.append(f"{seed}/{name}/{at}: {reason}")
        numbers = range(at + 1, numbers.stop)
    return tally


def work(sender: Connection, name: str, seed: int, numbers: range) -> None:
    """Send the number of each mutation before it is read, and their tally."""
    sender.send(fuzz(name, DOORS[name], seed, numbers, sender.send))
