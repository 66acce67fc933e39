"""Split surface text at its tags.

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


def lex(text: str, forms: tuple[str, ...]) -> list[tuple[str, str]]:
    """(form, piece) pairs, form "" for plain text; the pieces in order are the text.

    A form's piece may have backslashes after its `<`: then it is an escaped look-alike.
    """
    edges, pieces, at = _AUTOMATA[forms], [], 0
    while at < len(text):
        start = text.find("<", at)
        if start != at:
            stop = len(text) if start < 0 else start
            pieces.append(("", text[at:stop]))
            at = stop
            continue
        state, at = "<", at + 1
        while at < len(text) and state and state[-1] != ">":
            own = edges[state]
            state = own.get(text[at], own.get(OTHER)) or ""
            at += bool(state)  # the character that ends a candidate may begin the next one
        pieces.append((state if state.endswith(">") else "", text[start:at]))
    return pieces
