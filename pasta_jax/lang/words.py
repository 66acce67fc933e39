"""What counts as a word, for limits on length and for comparing texts, in every language.

A word is what stands between blanks. Chinese, Japanese, Thai, Lao, Khmer and Burmese put none between words: there, two
Chinese letters are a word, or four of the others, which is about as long as words are; what a run leaves over is
one, too. Vowel signs and tone marks belong to their letter, and punctuation to the word beside it.
"""

import re
import unicodedata

_HAN = "々〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
_SOUTH_EAST = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ec0-\u0ec6\u0edc-\u0edf"  # Thai, Lao
    "\u1780-\u17b3\u17d7\u17dc\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\uaa60-\uaa76"  # Khmer, Burmese
)
_ALPHABETS = (chr(n) for n in range(0x300, 0x1E00))  # beyond them, such signs choose a glyph or surround a symbol
MARKS = "".join(  # signs that are written around a letter and are none by themselves
    ["\u3099\u309a\uff9e\uff9f\u1062-\u108f", *(c for c in _ALPHABETS if unicodedata.category(c) in ("Mn", "Mc"))]
)
UNSPACED = f"{_HAN}{_KANA}{_SOUTH_EAST}"  # letters of scripts without blanks between words, inside a class of a pattern
_HAN_LETTER, _OTHER_LETTER = f"[{_HAN}][{MARKS}]*", f"[{_KANA}{_SOUTH_EAST}][{MARKS}]*"
_EDGE = r"[^\w\s]*"
_WORD = re.compile(rf"{_EDGE}(?:(?:{_HAN_LETTER}){{1,2}}|(?:{_OTHER_LETTER}){{1,4}}){_EDGE}|(?:(?![{UNSPACED}])\S)+")
# A word without punctuation, each letter of a script without blanks as one: see `single_words`.
SINGLE = re.compile(rf"{_HAN_LETTER}|{_OTHER_LETTER}|(?:(?![{UNSPACED}])[\w{MARKS}])+")
_PUNCTUATION = re.compile(rf"[^\w{MARKS}]+")
_ANY_UNSPACED = re.compile(f"[{UNSPACED}]")


def is_mark(char: str) -> bool:
    """Whether a character is a vowel sign, a tone mark or an accent, which distinguishes words as letters do."""
    chooses_a_glyph = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return unicodedata.category(char) in ("Mn", "Mc") and not chooses_a_glyph


def unspaced(text: str) -> bool:
    """Whether a text has letters of a script without blanks between words."""
    return not text.isascii() and bool(_ANY_UNSPACED.search(text))


def words(text: str) -> list[str]:
    """The words of a text, with the punctuation beside them."""
    return _WORD.findall(text) if unspaced(text) else text.split()


def first_words(text: str, most: int) -> str:
    """A text up to the end of its word number `most`; blanks between words become single spaces."""
    if not unspaced(text):
        return " ".join(text.split()[:most])
    ends = [match.end() for match in _WORD.finditer(text)]
    return " ".join(text[: ends[most - 1] if len(ends) > most else None].split())


def plain_words(text: str) -> list[str]:
    """The words of a text without punctuation."""
    return words(_PUNCTUATION.sub(" ", text))


def single_words(text: str) -> list[str]:
    """The words of a text without punctuation, but with each letter of a script without blanks as one.

    So an inserted letter changes the words beside it only, and runs of words can be compared.
    """
    return SINGLE.findall(text)
