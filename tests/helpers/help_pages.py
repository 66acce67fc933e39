"""What scripts print with --help added to a command: after its flags, its config and all keys have been read."""

import json
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

from tests import ROOT

# Prints [exit code, --help, errors, slow imports] of each command, from a fork of a process that knows the parsers.
_CODE = """
import contextlib, io, json, os, runpy, sys
import launch.cli

commands, launch.cli.command_help.text = json.load(sys.stdin), TEXT

def page(script, *words):
    sys.argv, out, err, code = [script, *words, "--help"], io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(f"launch.{script}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue(), sorted({"jax", "openai", "nltk"} & sys.modules.keys())

pages = []
for command in commands:
    reading, writing = os.pipe()
    if not os.fork():
        with os.fdopen(writing, "w") as file:
            json.dump(page(*command), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        pages.append(json.load(file))
print(json.dumps(pages))
"""


class Page(NamedTuple):
    """What a script did."""

    code: int | None
    text: str
    errors: str
    slow_imports: list[str]


def pages(commands: list[list[str]], empty: bool = False) -> list[Page]:
    """The page of each command, a script's name and its words; `empty` pages take less time."""
    code = _CODE.replace("TEXT", "lambda *_: ''" if empty else "launch.cli.command_help.text")
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, input=json.dumps(commands), capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    return [Page(*page) for page in json.loads(result.stdout)]


def commands_in(text: str) -> list[list[str]]:
    """The commands of launch scripts in a text, each a script's name and its words."""
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    found = [re.search(r"python -m launch\.(.+)", line) for line in lines if not line.startswith(("#", "|"))]
    words = [shlex.split(one[1].replace("$'", "'"), comments=True) for one in found if one and "`" not in one[0]]
    return [line[: next((n for n, word in enumerate(line) if word[:1] in ">|&"), None)] for line in words]
