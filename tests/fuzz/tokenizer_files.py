"""Doors of tokenizers: tokenizer.json, tokenizer.model, and the chat template of tokenizer_config.json."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.fuzz.mutations import STRANGE, Mutator
from tests.fuzz.run import Input
from tests.helpers.tiny_tokenizers import (
    CALLING,
    LLAMA3_SPECIALS,
    PREFIXED,
    SMOLLM2_SPECIALS,
    fallback_json,
    metaspace,
    train_bpe,
    train_sentencepiece,
)

TEXT = "  Größe 数\n\n\t12345 I'll <|im_start|> " + "ab " * 200 + " " * 300
PATTERNS = ("(a+)+b", "(a|a)*b", r"(\s*)*x", ".*.*.*.*.*x", "(", "[", "a" * 10_000, r"(x)\1*", "(?R)", "\\p{Nope}", "")
PRE_TOKENIZERS = (
    *({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in PATTERNS),
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True},
    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "prepend_scheme": "always"},
    {"type": "Sequence", "pretokenizers": []},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "FixedLength", "length": 0},
)
NORMALIZERS = (
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
    {"type": "Prepend", "prepend": "x" * 1000},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
)
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (  # as newer models' do: thoughts are cut out of earlier answers, and tools described
    "{%- if tools %}{{- '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last=messages|length - 1, found=false) %}{%- for m in messages[::-1] %}"
    "{%- if not ns.found and m.role == 'user' and m.content is string %}{%- set ns.found = true %}{%- endif %}"
    "{%- endfor %}{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}"
    "{%- if m.role == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
JINJA = (  # what a hostile template might hold
    "{{ 9 ** 9 ** 9 }}",
    "{{ 10 ** 5000 }}",
    "{{ 1 // 0 }}",
    "{% for a in range(99999) %}{{ a }}{% endfor %}",
    "{% set ns = namespace(x='a') %}",
    "{% for a in range(5000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ self.__dict__ }}",
    "{{ messages | attr('__class__') }}",
    "{{ ''|attr('format')|attr('__globals__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ '{m.__class__}'.format_map({'m': messages}) }}",
    "{{ lipsum.__globals__ }}{{ joiner.__call__.__func__ }}",
    "{{ dict(a=1).update(b=2) }}{{ [1].extend([2]) }}",
    "{{ (1).__init__ ~ loop ~ caller ~ varargs }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ range(10 ** 9) | list }}",
    "{{ ('a ' * 9999) | wordwrap(1) | urlize | pprint }}",
    "{{ '%c' % 1114112 }}{{ '\\ud800' }}",
    "{{ messages[99].content }}{{ messages[0]['x']['y'] }}",
    "{% set messages = messages[1:] %}",
    "{% set messages = 'abc' %}",
    "{% do messages.clear() %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% filter upper %}{% call raise_exception('x') %}y{% endcall %}{% endfilter %}",
    "{% trans %}x{% endtrans %}{% debug %}",
    "{% extends 'x' %}",
    "{% continue %}",
    "{{ now() }}{{ env.get('HOME') }}{{ config }}{{ request }}",
    "{{ messages[0].content | replace('q', '<|im_end|>') }}",
    "{{ messages | map(attribute='content') | join('<|im_end|>') }}",
    "{{ cycler.__init__ }}",
    "{{ raise_exception.__globals__['sys'].exit() }}",
    "{{ strftime_now('%' * 9999) }}",
    "{{ strftime_now('\ud800') }}",
    "{{ messages | tojson }}",
    "{{ messages[0].content[::-1] }}",
    "{{ messages.append(1) }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ raise_exception('no') }}",
    "{% break %}",
    "{% raw %}",
    "{%- if messages[0].content == 'qzxaxzq' -%}a{%- endif -%}",
    "{{ undefined_name.x }}",
    "{{ bos_token * 2 }}",
    "{{",
    "%}",
    "((" * 500,
    "{{ " + "(" * 5000,
    "{% if 1 %}" * 3000,
    "{{ " + "-" * 20_000 + "1 }}",
    "{{ " + "[" * 200 + "]" * 200 + " }}",
    "a" * 900_000,
    "a" * 2_000_000,
    "\0",
    "\ud800",
    "<|im_start|>" * 2000,
    "<|im_end|>",
    "\u2028",
    " \n\t",
)
# Each takes all of its memory or time, a second or more, and they were half of the fuzzer's time: now they are rare.
HEAVY = (
    "{{ 'x' * 10**8 }}",
    "{{ ['x' * 10**6] * 10**4 }}",
    "{{ 'a'.join(['b'] * 10**7) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'a' | center(10**9) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ lipsum(n=9999) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
)


def use(tokenizer: Tokenizer) -> None:
    """Encode and decode as a prompt would be."""
    tokenizer.decode(tokenizer.chat([("user", TEXT)]))


def tokenizer_json(folder: Path) -> list[Input]:
    """Its pieces, merges, added tokens, and how words are cut."""
    words = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}}
    valid = [json.loads(train_bpe(SMOLLM2_SPECIALS)) | words, json.loads(train_bpe(LLAMA3_SPECIALS))]
    valid += [json.loads(fallback_json(**PREFIXED)), json.loads(fallback_json(metaspace("first"), **PREFIXED))]
    path = folder / "tokenizer.json"

    def change(by: Mutator, spec: dict[str, Any]) -> dict[str, Any]:
        match by.randrange(5):
            case 0:
                return spec | {"pre_tokenizer": by.tree(by.choice(PRE_TOKENIZERS))}
            case 1:
                return spec | {"normalizer": by.tree(by.choice(NORMALIZERS))}
            case 2:
                vocab = spec["model"]["vocab"]
                changed = vocab | {by.choice(list(vocab)): by.choice(STRANGE)}
                return spec | {"model": spec["model"] | {"vocab": changed}}
            case 3:
                return spec | {"added_tokens": by.tree(spec["added_tokens"])}
        return spec | {"pre_tokenizer": by.choice(PRE_TOKENIZERS)}

    return [Input(path, spec, lambda: use(load_tokenizer(path)), change) for spec in valid]


def chat_templates(folder: Path) -> list[Input]:
    """Its Jinja, and how tokenizer_config.json holds it."""
    (folder / "tokenizer.json").write_bytes(train_bpe(SMOLLM2_SPECIALS).encode())
    (folder / "config.json").write_text("{}")
    path = folder / "tokenizer_config.json"

    def change(by: Mutator, config: dict[str, Any]) -> dict[str, Any]:
        source = config["chat_template"]
        for _ in range(by.choice((1, 1, 2))):
            piece = by.choice(HEAVY if by.often(0.03) else JINJA)
            at = by.choice((0, len(source), source.find("{% for"), source.find("{% endfor"), by.randrange(len(source))))
            source = source[:at] + piece + source[at + by.choice((0, 0, 0, 9)) :]
        config = config | {"chat_template": source}
        if by.often(0.2):
            config["chat_template"] = [{"name": "default", "template": source}, {"name": "tools", "template": "x"}]
        return by.tree(config) if by.often(0.2) else config

    def read() -> None:
        use(tokenizer := load_tokenizer(folder / "tokenizer.json"))
        asked = [("user", TEXT), ("name", TEXT), ("arguments", TEXT), ("result", TEXT)]
        tokenizer.decode(tokenizer.chat(asked))

    return [
        Input(path, {"bos_token": "<|endoftext|>", "chat_template": source}, read, change)
        for source in (CHAT, THINKING, CALLING)
    ]


def tokenizer_model(folder: Path) -> list[Input]:
    """Any field of its protocol buffer, and its bytes."""
    path = folder / "tokenizer.model"

    def change(by: Mutator, content: bytes) -> bytes:
        model = ModelProto.FromString(content)
        for _ in range(by.choice((1, 1, 2, 5))):
            change_message(by, model)
        return model.SerializePartialToString()

    return [Input(path, train_sentencepiece(), lambda: use(load_tokenizer(path)), change)]


def change_message(by: Mutator, message: Message) -> None:
    """Change one field of a protocol buffer, or of one inside it."""
    field = by.choice(message.DESCRIPTOR.fields)
    old = getattr(message, field.name)
    if field.message_type is not None:
        if not field.is_repeated:
            change_message(by, old)
        elif by.often(0.1) or not old:
            old.add()
        elif by.often(0.1):
            del old[by.randrange(len(old)) :]
        else:
            change_message(by, by.choice(list(old)))
        return
    value: Any = by.choice((0, 1, -1, 2, 3, 255, 2**31 - 1, -(2**31)))
    if field.enum_type is not None:
        value = by.choice(field.enum_type.values).number
    elif field.type == field.TYPE_BYTES:
        value = by.randbytes(by.choice((0, 1, 4, 8, 64, 1000)))
    elif field.cpp_type == field.CPPTYPE_STRING:
        value = by.choice(("", " ", "a", "▁", "<0xZZ>", "<0x41>", "<unk>", "x" * 100_000, "\0", "數"))
    elif field.cpp_type == field.CPPTYPE_BOOL:
        value = by.often(0.5)
    elif field.cpp_type == field.CPPTYPE_FLOAT:
        value = by.choice((float("nan"), float("inf"), -1e30, 0.0))
    elif field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        value = abs(value)
    if field.is_repeated:
        old.append(value)
    else:
        setattr(message, field.name, value)
