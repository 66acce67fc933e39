"""Split surface text at its tags: one automaton for whole texts and for streams.

No tag form has a `<` after its first character. So the next `<` ends any candidate, texts can be joined to tags without
creating a new tag, and each character is read once.
"""

# Tag forms: `*` stands for a topic (up to the preceding quote), `#` for a number, the rest for itself.
SURFACE = ('<promise topic="*" tokens=# />', "<async>", "</async>", "<sync/>")
ANNOTATION = (*SURFACE, "<async topic='*'>", '<async topic="*">')

OTHER = "other"
DIGITS = "0123456789"
TOPIC_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "<": "\\x3c"}


def _automaton(forms: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
    """Edges of the automaton. A state is what was read, without loops, so an accepting state is a whole form."""
    edges: dict[str, dict[str, str | None]] = {"<": {"\\": "<"}}  # a run of backslashes escapes a form
    for form in forms:
        state = "<"
        for symbol in form[1:]:
            if symbol == "*":
                quote = state[-1]
                escapes = {f"\\{quote}", "\\\\", "\\n", "\\x3c"}
                edges[state] = {OTHER: state, "\n": None, "<": None}
                for escape in escapes:
                    inner = state
                    for character in escape[:-1]:
                        edges.setdefault(inner, {})[character] = inner + character
                        inner += character
                    edges.setdefault(inner, {})[escape[-1]] = state
            elif symbol == "#":
                number = state + "#"
                edges.setdefault(state, {}).update(dict.fromkeys(DIGITS, number))
                edges.setdefault(number, {}).update(dict.fromkeys(DIGITS, number))
                state = number
            else:
                edges.setdefault(state, {})[symbol] = state + symbol
                state += symbol
    return edges


_AUTOMATA = {forms: _automaton(forms) for forms in (SURFACE, ANNOTATION)}


class Lexer:
    """Incremental lexer: `feed` returns (form, piece) pairs, form "" for plain text; the pieces in order are the input.

    A form's piece may have backslashes after its `<`: then it is an escaped look-alike. Text that can still become a
    form, escaped or not, is held back until that is decided; all other text is returned at once.
    """

    def __init__(self, forms: tuple[str, ...]):
        self._edges = _AUTOMATA[forms]
        self._state = ""  # "" outside a candidate
        self._held: list[str] = []

    def feed(self, text: str) -> list[tuple[str, str]]:
        """The next pieces of the input."""
        pieces: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            if not self._state:
                start = text.find("<", at)
                plain = text[at:] if start < 0 else text[at:start]
                if plain:
                    pieces.append(("", plain))
                if start < 0:
                    break
                self._state, self._held, at = "<", ["<"], start + 1
            start, state = at, self._state
            while at < len(text) and state and state[-1] != ">":
                edges = self._edges[state]
                state = edges.get(text[at], edges.get(OTHER)) or ""
                at += bool(state)  # the character that ends a candidate may begin the next one
            self._held.append(text[start:at])
            self._state = state
            if state and state[-1] != ">":
                break
            pieces.append((state, "".join(self._held)))
            self._state, self._held = "", []
        return pieces

    def close(self) -> list[tuple[str, str]]:
        """End the input: text that was held back is plain."""
        held, self._state, self._held = "".join(self._held), "", []
        return [("", held)] if held else []


def lex(text: str, forms: tuple[str, ...]) -> list[tuple[str, str]]:
    """All pieces of a text."""
    lexer = Lexer(forms)
    return lexer.feed(text) + lexer.close()
