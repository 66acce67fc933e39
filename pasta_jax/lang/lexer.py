"""Split surface text at its tags.

No tag form has a `<` after its first character. So the next `<` ends any candidate, texts can be joined to tags without
creating a new tag, and a text takes linear time.
"""

import re

# Tag forms: `*` stands for a topic (up to the preceding quote), `#` for a number, the rest for itself.
SURFACE = ('<promise topic="*" tokens=# />', "<async>", "</async>", "<sync/>")
ANNOTATION = (*SURFACE, "<async topic='*'>", '<async topic="*">')

TOPIC_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "<": "\\x3c"}


def _pattern(forms: tuple[str, ...]) -> re.Pattern[str]:
    """Matches each form in a group of its own; a run of backslashes after its `<` escapes it."""
    groups = []
    for form in forms:
        quote = form[form.find("*") - 1]
        topic = rf"(?:[^{quote}\\\n<]|\\(?:{quote}|\\|n|x3c))*"
        groups.append("(" + re.escape(form[1:]).replace(r"\*", topic).replace(r"\#", "[0-9]++") + ")")
    return re.compile(r"<\\*+(?:" + "|".join(groups) + ")")


_PATTERNS = {forms: _pattern(forms) for forms in (SURFACE, ANNOTATION)}


def lex(text: str, forms: tuple[str, ...]) -> list[tuple[str, str]]:
    """(form, piece) pairs, form "" for plain text; the pieces in order are the text.

    A form's piece may have backslashes after its `<`: then it is an escaped look-alike.
    """
    pieces, at = [], 0
    for match in _PATTERNS[forms].finditer(text):
        pieces += [("", text[at : match.start()]), (forms[match.lastindex - 1], match[0])]
        at = match.end()
    return [(form, piece) for form, piece in [*pieces, ("", text[at:])] if piece]
