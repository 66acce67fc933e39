"""The flags of launch.evaluate that one kind of prompts has and the other lacks."""

import pytest
from absl import flags
from absl.testing import flagsaver

from configs import evaluate as configs
from launch import evaluate
from pasta_jax.errors import PastaError


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        (configs.tiny(), {"workdir": "runs/x"}, "--workdir is for other prompts than the toy task's; leave it out"),
        (configs.tiny(), {"limit": 3}, "--limit is for other prompts"),
        (configs.alpaca(), {"workdir": "runs/x", "output": "x.jsonl"}, "--output is for the toy task; leave it out"),
        (configs.alpaca(), {}, "--workdir is missing"),
    ],
)
def test_a_flag_of_other_prompts_is_refused(settings, given, message):
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**given), pytest.raises(PastaError, match=message):
        evaluate.main(settings)
