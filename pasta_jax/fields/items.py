"""Lists of objects by several threads: one names the items, then each item has a thread that has read the names."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence

from pasta_jax.fields.form import Field, Value, field_of
from pasta_jax.fields.schema import Form, Leaf
from pasta_jax.weights.model import Model


@functools.lru_cache(maxsize=8)
def with_names(form: Form) -> Form:
    """The form with names in place of the objects in lists."""

    def named(leaf: Leaf) -> Leaf:
        return leaf if leaf.items is None else Leaf(leaf.path, leaf.items.names, leaf.items.about)

    return Form(tuple(map(named, form.leaves)), form.around)


def item_fields(leaf: Leaf, names: Value, model: Model, known: Mapping[str, str]) -> list[tuple[Field, dict[str, str]]]:
    """The field of each item of a list, and what it reads: what the list does, and the names. It follows them."""
    *outer, last = leaf.path or ("items",)
    read, items = {**known, last: names.text}, leaf.items
    return [
        (field_of(Leaf((*outer, name), items.form.whole, items.about), model.tokenizer, model.config.vocab), read)
        for name in json.loads(names.text)
    ]


def list_of(names: Value, items: Sequence[Value]) -> Value:
    """The list that its items make."""
    text = ", ".join(item.text for item in items)
    return dataclasses.replace(names, text=f"[{text}]", complete=all(item.complete for item in items))
