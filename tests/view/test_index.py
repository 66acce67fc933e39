"""The page that links to many answers: every answer once, safe whatever a model or a file name holds."""

import re

from pasta_jax.view.index import index
from tests.helpers.traces import HOSTILE


def test_the_page_links_to_every_answer_and_escapes_it():
    two = {"file": "two.html", "prompt": "two?", "text": "", "chunks": 0, "tokens": 9, "steps": 9, "parallelism": 1.0}
    two["theoretical_speedup"] = None
    hostile = {"file": 'a b#1".html', "prompt": HOSTILE, "text": HOSTILE, "chunks": 2, "tokens": 30, "steps": 15}
    html = index([two | hostile, two | {"tokens": 0, "steps": 0}])
    assert re.findall('href="(.*?)"', html) == ["a%20b%231%22.html", "two.html"]
    assert "2 answers · 1 with chunks · 30 tokens" in html
    assert '30<span class="unit"> tokens</span> in 15' in html
    assert not re.search("<(?:img|script)|\x1b|<!--|speedup", html.replace("<!doctype", ""))
    assert "1.25" in index([two | {"theoretical_speedup": 1.25}])
    assert "0 answers" in index([])
