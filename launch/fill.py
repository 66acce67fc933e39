"""Fill in the fields of a JSON schema for every text of a file, all fields of a text at once. See configs/fill.py."""

from absl import flags

from launch import cli
from pasta_jax.answer.settings import FillSettings
from pasta_jax.command.flags import file_of

SCHEMA = flags.DEFINE_string("schema", None, "the JSON schema of what is filled in, as --schema=person.json")
PROMPTS_FILE = flags.DEFINE_string(  # other scripts have these flags too, and a test process may import both
    "prompts_file",
    None,
    "the texts: JSON lines or a list, with `prompt`, as --prompts_file=texts.jsonl",
    allow_override=True,
)
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "write JSON lines in the order of the texts, as --output=out.jsonl; rerun the same command to resume a stopped run",
    allow_override=True,
)


def main(settings: FillSettings) -> None:
    """Read, load, fill in and write."""
    cli.announce_device()

    from pasta_jax.answer import fill  # imports JAX: after the flags, so that --help starts quickly

    fill.run(settings, *fill.require_two(file_of(SCHEMA), file_of(PROMPTS_FILE)), file_of(OUTPUT))


if __name__ == "__main__":
    cli.run(main, default_config="configs/fill.py")
