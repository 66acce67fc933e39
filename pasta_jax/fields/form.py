"""A form for one tokenizer: its fields' automata and what stands before them; values read from what is written."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_jax.automata.automaton import Automaton, pruned, sequence, texts
from pasta_jax.automata.tokens import TAIL, TokenAutomaton, over_tokens
from pasta_jax.automata.vocabulary import pieces
from pasta_jax.errors import PastaError
from pasta_jax.fields.schema import Form, Leaf
from pasta_jax.tokenizers.tokenizer import Tokenizer

QUOTED = ' "'  # in most vocabularies one token; every string begins so


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A field as its thread begins it."""

    leaf: Leaf
    begun: str  # of its value, what its prompt already has
    automaton: TokenAutomaton

    def before(self, known: Mapping[str, str]) -> str:
        """The JSON text before its value: the objects around it, and other fields, whose texts it reads."""
        *outer, name = self.leaf.path or ("",)
        if not self.leaf.path:
            return self.begun
        opened = "".join(f"{{{_quoted(key)}: " for key in outer)
        fields = "".join(f"{_quoted(key)}: {text}, " for key, text in known.items())
        return f"{opened}{{{fields}{_quoted(name)}:{self.begun}"


@dataclasses.dataclass(frozen=True)
class Value:
    """What was written for a field."""

    path: tuple[str, ...]
    text: str  # JSON; of a value that was cut off, its beginning
    complete: bool

    @property
    def name(self) -> str:
        """The path as users write it."""
        return ".".join(self.path) or "the value"


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """An automaton in a cache that finds equal ones."""

    key: str
    automaton: Automaton = dataclasses.field(compare=False, repr=False)


@functools.lru_cache(maxsize=16)  # up to 20 MB each, whoever asked
def _compiled(keyed: _Keyed, tokenizer: Tokenizer, vocab: int, begun: str) -> TokenAutomaton:
    return over_tokens(keyed.automaton, pieces(tokenizer, vocab), [begun.encode()])


@functools.lru_cache(maxsize=8)
def fields_of(form: Form, tokenizer: Tokenizer, vocab: int) -> tuple[Field, ...]:
    """The fields of a form, for logits of `vocab` ids."""
    return tuple(field_of(leaf, tokenizer, vocab) for leaf in form.leaves)


def field_of(leaf: Leaf, tokenizer: Tokenizer, vocab: int) -> Field:
    """A field for logits of `vocab` ids."""
    quoted = [byte for byte in range(256) if leaf.automaton.next[0, byte] >= 0] == [ord('"')]
    begun = QUOTED if quoted and leaf.path else ""
    value = _in_thread(leaf)
    try:
        return Field(leaf, begun, _compiled(_Keyed(value.key, value), tokenizer, vocab, begun))
    except PastaError as error:
        raise PastaError(f"schema.{leaf.name}: {error}") from None


def _in_thread(leaf: Leaf) -> Automaton:
    """What a field's thread writes."""
    return sequence(texts([b"", b" "]), leaf.automaton) if leaf.path else leaf.automaton


def states_of(form: Form, forks: bool) -> int:
    """The states of a form's automata over tokens, known before the seconds that masks of many states take."""
    automata = map(_in_thread, form.leaves) if forks else [form.whole]
    return sum(pruned(one).states + TAIL for one in {one.key: one for one in automata}.values())


def whole_of(form: Form, tokenizer: Tokenizer, vocab: int) -> TokenAutomaton:
    """The automaton of all fields in one text."""
    try:
        return _compiled(_Keyed(form.whole.key, form.whole), tokenizer, vocab, "")
    except PastaError as error:
        raise PastaError(f"the schema as one text: {error}") from None


def value_of(field: Field, written: str, complete: bool) -> Value:
    """The value that a field's thread has written: without what followed it in its last token."""
    text = (field.begun + written).lstrip(" ")
    if complete:
        _, end = json.JSONDecoder().raw_decode(text)
        text = text[:end]
    return Value(field.leaf.path, text, complete)


def values_in(form: Form, text: str) -> list[Value]:
    """The values in the text of all fields, which may be cut off."""
    values, at, decoder = [], 0, json.JSONDecoder()
    for leaf, before, after in zip(form.leaves, form.around, form.around[1:], strict=False):
        begins, at = text[at : at + len(before)] == before, at + len(before)
        try:
            if not begins:
                raise ValueError("cut off")
            _, end = decoder.raw_decode(text, at)
        except ValueError:
            values.append(Value(leaf.path, text[at:], complete=False))
            at = len(text)
            continue
        # A number may go on, also where it could end ("12." of "12.5"), unless what follows it is not its own.
        rest = text[end : end + len(after)]
        complete = not after or (bool(rest) and after.startswith(rest))
        values.append(Value(leaf.path, text[at:end] if complete else text[at:], complete))
        at = end if complete else len(text)
    return values


def nested(values: Sequence[Value]) -> Any:
    """The complete values as plain data, in the objects of their paths."""
    found: dict[str, Any] = {}
    for value in values:
        if not value.path:
            return json.loads(value.text) if value.complete else None
        if not value.complete:
            continue
        inner = found
        for key in value.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[value.path[-1]] = json.loads(value.text)
    return found


def text_of(form: Form, values: Sequence[Value]) -> str:
    """The JSON text of complete values, as `values_in` reads it."""
    return form.around[0] + "".join(value.text + after for value, after in zip(values, form.around[1:], strict=True))


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
