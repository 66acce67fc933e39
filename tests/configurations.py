"""`python -m tests.configurations`: which model types of transformers are read, and why the others are not."""

import json
import tempfile
import warnings
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.weights import config_file


def sweep(folder: Path) -> dict[str, str]:
    """For each model type, with its default configuration: why it is refused; empty where it is read."""
    from transformers import CONFIG_MAPPING

    said, path = {}, folder / "config.json"
    for kind in CONFIG_MAPPING:
        try:
            raw = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
        except Exception:  # one that needs arguments
            raw = {"model_type": kind}
        path.write_text(json.dumps(raw))
        try:
            config_file.read_config(folder)
            said[kind] = ""
        except PastaError as error:
            said[kind] = str(error).removeprefix(f"{path}: ")
    return said


def main() -> None:
    """Print a line for each type, and their number."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        said = sweep(Path(folder))
    for kind, why in said.items():
        print(f"{kind}: {why or 'is read'}")
    print(f"{sum(not why for why in said.values())} of {len(said)} are read, the others are refused")


if __name__ == "__main__":
    main()
