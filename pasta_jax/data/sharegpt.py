"""ShareGPT as JSON lines, from the JSON list in its package, which is cut off: python -m pasta_jax.data.sharegpt"""

import json
import re
from collections.abc import Iterator

from pasta_jax.command.errors import explain
from pasta_jax.files import packages
from pasta_jax.files.atomic import replacing

_BETWEEN = re.compile(r"[\s,]*")


def whole_records(text: str) -> Iterator[object]:
    """The records of a JSON list, up to the one that is cut off."""
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        try:
            record, at = decoder.raw_decode(text, _BETWEEN.match(text, at).end())
        except json.JSONDecodeError:
            return
        yield record


def convert() -> None:
    """Write the file that `packages.path("sharegpt")` finds, whole or not at all."""
    text = packages.path("sharegpt_list").read_bytes().decode(errors="ignore")  # it may end within a character
    with replacing(packages.SHARE / "sharegpt.jsonl", "free 130 MB there") as part, part.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in whole_records(text))


if __name__ == "__main__":  # launch/setup.sh --data runs it
    explain(convert)
