"""The tutorial's Python runs, from the first block to the last, and shows what it says it shows."""

import doctest
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def examples(markdown: str) -> list[doctest.Example]:
    """The examples of all ```python blocks; a block without `>>>` is one example that shows nothing."""
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE):
        line, source = markdown[: block.start(1)].count("\n"), block[1]
        if ">>>" in source:
            for example in doctest.DocTestParser().get_examples(source):
                example.lineno += line
                found.append(example)
        else:
            run_it = f"exec(compile({source!r}, 'block', 'exec'))"  # doctest takes one statement an example
            found.append(doctest.Example(run_it, "", lineno=line))
    return found


def failures(markdown: str, name: str) -> str:
    """What a doctest runner reports of all blocks in one namespace; empty if all is as shown."""
    report: list[str] = []
    test = doctest.DocTest(examples(markdown), {"__name__": name}, name, name, 0, markdown)
    doctest.DocTestRunner().run(test, out=report.append)
    return "".join(report)


def test_the_language_tutorial():
    markdown = (DOCS / "LANG.md").read_text()
    assert len(examples(markdown)) > 30
    assert failures(markdown, "LANG.md") == ""


@pytest.mark.parametrize(
    "block", [">>> 1 + 1\n3", ">>> print('a')\nb", "assert 1 == 2", ">>> {}['key']", ">>> 1 + 1", "def f(:"]
)
def test_a_wrong_block_is_noticed(block):
    assert failures(f"text\n```python\n{block}\n```\n", "wrong") != ""


def test_blocks_share_their_names():
    assert failures("```python\na = 1\n```\nthen\n```python\n>>> a\n1\n```\n", "shared") == ""
