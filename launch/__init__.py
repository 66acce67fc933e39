"""The command-line scripts. A Python without the packages they need gets one line that says what to run."""

import importlib.util
import pathlib
import shlex
import sys

if not all(map(importlib.util.find_spec, ("absl", "ml_collections", "msgspec"))):
    root = pathlib.Path(__file__).resolve().parent.parent
    setup, environment = (shlex.quote(f"{root}/{name}") for name in ("launch/setup.sh", ".venv/bin/activate"))
    command = f"bash {setup} && " * (not (root / ".venv/bin/python").exists()) + f"source {environment}"
    print(f"error: {sys.executable} lacks the packages of this project; run: {command}", file=sys.stderr)
    sys.exit(2)
