"""The Python in the documents runs, from the first block to the last, and prints what the page shows."""

import dataclasses
import doctest
import re

import jax
import numpy as np
import pytest

import pasta_jax as pasta
from pasta_jax import api
from pasta_jax.models.parameters import unstack
from pasta_jax.models.sharding import shard
from pasta_jax.weights.for_cpu import by_columns
from tests import ROOT
from tests.helpers.requires import requires_smollm2
from tests.helpers.traces import tiny_model

DOCS = ROOT / "docs"
NEEDS_A_SERVER = {"docs/SERVING.md"}  # tests/serve/test_load.py
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *DOCS.glob("*.md")))


def blocks(page: str) -> list[str]:
    """The code of the ```python blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_blocks(page: str, most: int | None = None) -> dict[str, object]:
    """Run the blocks of a page, or the first ones, in order in one namespace; their names.

    Those that train are left out (tests/notebooks/test_notebook.py).
    """
    names: dict[str, object] = {}
    for block in blocks(page)[:most]:
        if "sft.run" not in block:
            exec(compile(block, page, "exec"), names)
    return names


def test_the_language_tutorial():
    """Its blocks share their names; one without `>>>` prints nothing."""
    sources = [block if ">>>" in block else f">>> exec({block!r}, globals())\n" for block in blocks("docs/LANG.md")]
    tutorial = doctest.DocTestParser().get_doctest("\n".join(sources), {}, "LANG.md", None, 0)
    assert len(tutorial.examples) > 30
    assert doctest.DocTestRunner().run(tutorial).failed == 0


def test_every_page_with_python_is_run():
    with_python = {page for page in PAGES if blocks(page)}
    assert with_python == {"README.md", "docs/LANG.md", "docs/API.md", "docs/TPU.md"} | NEEDS_A_SERVER


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("page", ["README.md", "docs/API.md", pytest.param("docs/TPU.md", marks=pytest.mark.slow)])
def test_the_api_as_shown_on_a_tiny_model(page, monkeypatch, capsys):
    model = tiny_model()  # laid out as load_model does
    params = by_columns(unstack(jax.tree.map(np.asarray, model.params)))

    def load(*_, mesh=None, **__):
        placed = jax.device_put(params) if mesh is None else shard(params, mesh)
        return dataclasses.replace(model, params=placed)

    monkeypatch.setattr(api, "load_model", load)
    names = run_blocks(page)
    answer = names["answer"]
    on_mesh = page == "docs/TPU.md"
    assert len(jax.tree.leaves(names["model"].params)[0].sharding.device_set) == (8 if on_mesh else 1)
    assert isinstance(answer, api.Answer)
    assert answer.trace.prompt in ("Why is the sky blue?", "List five famous landmarks in Europe.")
    assert len(answer.trace.token) > 0
    assert page == "docs/TPU.md" or answer.text.strip() in capsys.readouterr().out


@requires_smollm2
@pytest.mark.usefixtures("few_programs")
def test_the_api_as_shown_in_the_readme_on_smollm2(capsys, monkeypatch):
    """With 60 tokens instead of 200: of the five landmarks, the first chunks."""
    generate = pasta.generate
    monkeypatch.setattr(pasta, "generate", lambda *a, max_tokens: generate(*a, max_tokens=min(max_tokens, 60)))
    answer = run_blocks("README.md", most=1)["answer"]
    assert len(answer.threads) > 1  # the shipped adapter forks; which words it samples depends on the machine
    assert capsys.readouterr().out.startswith(answer.text + "\n")


def test_every_finding_of_the_reviews_has_a_test_that_exists_or_is_open():
    page = (ROOT / "dev/log/findings.md").read_text("utf-8")
    numbers = {"T": 10, "B": 6, "D": 14, "U": 18, "A": 21, "R": 29, "V": 5}
    expected = {f"{review}{number}" for review, most in numbers.items() for number in range(1, most + 1)}
    assert expected - set(re.findall(r"\b[TBDUARV]\d+\b", page)) == set()
    for row in re.findall(r"^\| [A-Z–].*", page, re.MULTILINE):
        _, _, tests, _ = row.strip("| ").split(" | ")
        cited = re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", tests)
        assert cited or any(excuse in tests for excuse in ("docs/", "python -m", "no test")), row
        text = ""
        for file, name in cited:  # one without a file is in the file before
            text = (ROOT / "tests" / file).read_text("utf-8") if file else text
            assert text, row
            assert not name or f"def {name}(" in text, (row, name)


def test_files_that_the_pages_link_or_name_exist():
    missing = []
    for page in (*ROOT.glob("*.md"), *DOCS.glob("**/*.md")):
        text, folders = page.read_text("utf-8"), (ROOT, ROOT / "pasta_jax", page.parent)
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        named = re.findall(r"(?<![\w/.-])(?:[\w.-]+/)+[\w-]+\.(?:py|sh|cc|ipynb|txt|md)\b", text)
        missing += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
        missing += [f"{page.name}: {name}" for name in named if not any((one / name).exists() for one in folders)]
    assert missing == []
