"""The commands of an installed wheel: `pasta-decode` runs launch/decode.py, and so on, with the wheel's own configs."""

import re
import runpy
import shlex
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# In a wheel, launch/ and configs/ are inside the package: it installs no top-level packages of such general names.
_IN_WHEEL = _PACKAGE / "_scripts"
ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent


def main() -> None:
    """Run the launch script that the command is named after."""
    name = Path(sys.argv[0]).stem.removeprefix("pasta-").replace("-", "_")
    sys.path.insert(0, str(ROOT))
    runpy.run_module(f"launch.{name}", run_name="__main__", alter_sys=True)


def print_next(workdir: str, toy: bool, base: str = "") -> None:
    """Print the command that decodes with the model of a finished run, or with the adapter that it made for a base."""
    variant, question = ("toy", "") if toy else ("local", " 'Give three tips for staying healthy.'")
    model = (
        f"{base} --config.model.adapter={shlex.quote(workdir)}"
        if base
        else f"--config.model.path={shlex.quote(workdir)}"
    )
    command = f"python -m launch.decode --config=configs/decode.py:{variant} {model}"
    print(f"next: {as_typed(command)}{question}", flush=True)


def as_typed(page: str, root: Path = ROOT) -> str:
    """A text with its commands as the user types them: in a wheel, `pasta-decode` for `python -m launch.decode`."""
    if root != _IN_WHEEL:
        return page
    page = re.sub(r"bash launch/setup.sh --(dev|gcs|ray|tpu)", r"pip install 'pasta_jax[\1]'", page)
    return re.sub(r"python -m launch\.(\w+)", lambda match: f"pasta-{match[1].replace('_', '-')}", page)
