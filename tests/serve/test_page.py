"""The page with fields; tests/serve/test_run.py has it with text."""

import json
from collections.abc import Iterator

import pytest

from tests.helpers.browser import CHROMIUM, Page
from tests.helpers.serving import Server

KEY = "a key"


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Server]:
    with Server(folder, key=KEY, request__temperature=1.0) as server:
        yield server
        assert server.stop() == 0


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
def test_the_page_fills_in_fields_as_threads(server):
    with Page(420, 800) as page:
        page.open(server.url)
        page.run(f"$('key').value = {json.dumps(KEY)}")
        page.run("$('asks').click()")
        page.run("$('form').value = 'nice: boolean, kind: a | bb, age: integer'")
        page.run("$('ask').focus()")
        page.type("birds crow 7")
        page.enter()
        page.wait("document.querySelector('.times') && !running")
        shown = json.loads(page.run("$('log').lastElementChild.querySelector('.text').textContent"))
        assert list(shown) == ["nice", "kind", "age"]
        assert isinstance(shown["nice"], bool)
        assert shown["kind"] in ("a", "bb")
        assert page.run("[...document.querySelectorAll('.row span')].map(one => one.textContent)") == [
            "1 nice",
            "2 kind",
            "3 age",
        ]
        assert page.run("document.documentElement.scrollWidth") <= 420
        assert page.errors == []


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
def test_an_answer_that_is_cut_off_says_so(folder):
    with Server(folder, request__max_tokens=4) as server, Page(420, 800) as page:
        page.open(server.url)
        page.run("$('ask').focus()")
        page.type("birds crow 7")
        page.enter()
        page.wait("document.querySelector('.times') && !running")
        assert "; cut off at the limit" in page.run("$('log').lastElementChild.querySelector('.figures').textContent")
        assert page.run("$('status').textContent").startswith("Answer cut off: ")
        assert page.errors == []


STOPPABLE = """decode = (body, signal, onDelta) => {
  onDelta({content: 'Half an', pasta: {thread: 0, step: 1}});
  return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted'))));
}"""


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
def test_what_was_written_until_a_stop_stays_in_its_own_conversation(server):
    with Page(420, 800) as page:
        page.open(server.url)
        page.run(f"{STOPPABLE}; 0")
        for button, kept in (("stop", ["Why?", "Half an"]), ("new", [])):
            page.run("ask('Why?'); 0")
            page.run(f"$('{button}').click()")
            page.wait("!running")
            assert page.run("history.map(one => one.content)") == kept
        assert page.errors == []


FINISHING = """decode = async (body, signal, onDelta, onTime) => {
  onDelta({content: 'word '.repeat(3000), pasta: {thread: 0, step: 1}});
  view.scrollTop = AT;
  FOCUS.focus();
  await new Promise(requestAnimationFrame);
  return {text: 'word '.repeat(3000), threads: [], steps: 1};
}"""


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
@pytest.mark.parametrize(("at", "focus", "kept"), [("0", "view", True), ("view.scrollHeight", "$('stop')", False)])
def test_who_reads_elsewhere_when_an_answer_ends_stays_there(server, at, focus, kept):
    with Page(420, 800) as page:
        page.open(server.url)
        page.run(f"{FINISHING.replace('AT', at).replace('FOCUS', focus)}; 0")
        page.run("$('compare').checked = true; $('asks').checked = false; 0")
        page.run("ask('Why?')")
        assert page.run("view.scrollTop < 9") == kept
        assert page.run("document.activeElement === (KEPT ? view : $('ask'))".replace("KEPT", str(kept).lower()))
        assert page.errors == []


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install it with the system's packages")
def test_escape_stops_an_answer_unless_it_ends_a_composition(server):
    with Page(420, 800) as page:
        page.open(server.url)
        page.run(f"{STOPPABLE}; ask('Why?'); 0")
        pressed = (
            "$('ask').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true, isComposing: %s})); 0"
        )
        page.run(pressed % "true")
        assert page.run("running !== null && !running.signal.aborted")
        page.run(pressed % "false")
        page.wait("!running")
        assert page.run("[view.tabIndex, view.ariaLabel]") == [0, "Conversation"]
