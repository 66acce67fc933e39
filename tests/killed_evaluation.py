"""An evaluation of a tiny model that kills itself by SIGKILL after so many answers and timings; run as a process.

python -m tests.killed_evaluation WORKDIR PROMPTS_FILE [COUNT]
"""

import os
import signal
import sys
from pathlib import Path

from configs.evaluate import get_config
from pasta_jax import settings
from pasta_jax.files import JsonLines
from pasta_jax.pipelines import evaluate_text
from tests.traces import tiny_model

SYSTEMS = ("model", "baseline")


def main(workdir: str, prompts: str, count: str = "") -> None:
    """Evaluate; with a count, die right after that many records were written by this process."""
    evaluate_text.load = lambda source, only_decoding, mesh: tiny_model()
    evaluate_text.write_report = lambda *_: None
    append, left = JsonLines.append, [int(count or 0)]

    def append_and_die(self: JsonLines, value: object) -> None:
        append(self, value)
        if "fed" in value or "systems" in value:  # an answer or a timing, not what they depend on
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    JsonLines.append = append_and_die
    config = get_config("smollm2")
    config.systems = SYSTEMS
    config.prompts.update(alpaca_eval=0, no_fork=0, file=3)
    config.update(prompts_file=prompts, unmasked=0, timed=3, rounds=1)
    config.request.update(max_tokens=10, temperature=1.0)
    config.decoding.update(lanes=1, rows=2, widths=(), slots=512)  # the programs of tests/test_rivals.py
    evaluate_text.run(settings.read(config, evaluate_text.Settings), Path(workdir))


if __name__ == "__main__":
    main(*sys.argv[1:])
