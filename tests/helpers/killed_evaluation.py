"""An evaluation of a tiny model that kills itself by SIGKILL after so many answers and timings; to be run in a fork."""

import os
import signal
from pathlib import Path

import pytest

from configs.evaluate import get_config
from pasta_jax.evaluate import run as evaluate_text
from pasta_jax.files.atomic import JsonLines
from pasta_jax.runs import settings
from tests.helpers.few_programs import decode_with_few_programs
from tests.helpers.traces import tiny_model

SYSTEMS = ("model", "baseline")


def evaluate(workdir: Path, prompts: Path, count: int) -> None:
    """Evaluate; with a count, die right after that many records were written by this process."""
    decode_with_few_programs(pytest.MonkeyPatch())
    evaluate_text.load = lambda source, only_decoding, mesh: tiny_model()
    evaluate_text.write_report = lambda *_: None
    append, left = JsonLines.append, [count]

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
    config.update(prompts_file=str(prompts), unmasked=0, timed=3, rounds=1)
    config.request.update(max_tokens=10, temperature=1.0)
    config.decoding.update(lanes=1, rows=2, widths=(), slots=512)  # as in tests/evaluate/rivals
    evaluate_text.run(settings.read(config, evaluate_text.Settings), workdir)
