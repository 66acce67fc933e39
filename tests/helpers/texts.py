"""Texts for tests of tokenizers: 250 of every kind, names of control pieces, conversations in each chat template."""

import random

SAMPLES = [
    "The capital of France is",
    "Once upon a time, there was a little girl named Lily who",
    " leading blank",
    "trailing blank ",
    "a  b   c    d",
    "\t\ttabs\tand\t\t\ttabs",
    "line\nline\n\nparagraph\n\n\n\nfar below\n",
    "windows\r\nline\r\rend",
    " " * 40,
    " " * 70 + "x",
    "\n" * 35,
    "\t" * 33,
    " \n \n\t \n",
    "I'm sure you'll say it's what they'VE WE'd done; O'Neill's don't.",
    "I'll pay 20245 tomorrow, or 12345678 in 2024. Tomorrow... tomorrow!\n\n\tI'LL",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-5 ½ ² Ⅷ ٣٤",
    "What?! No... Yes -- \"quoted\" 'single' (paren) [bracket] {brace} <angle>",
    "def f(x):\n    if x > 0:\n        return x ** 2  # square\n    return None\n",
    "for (int i = 0; i < n; ++i) { a[i] += b->c[i] * 2; }",
    "SELECT * FROM t WHERE a != 'b' AND c >= 3;",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "<html><body><h1>Title</h1><p>a &amp; b</p><br/><table><tr><td>1</td></tr></table></body></html>",
    "<strong>bold</strong> <code>x</code></div></span>",
    "$$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$$",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "# Title\n\n1. one\n2. two\n   - sub\n\n| a | b |\n|---|---|\n```py\nx = 1\n```\n",
    "Größe, naïve façade, Ærøskøbing, Łódź, İstanbul ıI ẞß",
    "e\u0301 and é, A\u030a and Å, \ufb01 and fi, Ａ and A",
    "Привет, как дела? Москва — столица России.",
    "Ποιος είναι; Αθήνα",
    "東京は日本の首都です。私は猫が好き。",
    "你好，世界！这是一个测试。繁體中文",
    "안녕하세요 세계 한국어",
    "שלום עולם, מה שלומך?",
    "مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया, हिन्दी में",
    "สวัสดีชาวโลก ภาษาไทย",
    "ការសរសេរ ქართული Հայերեն አማርኛ ᏣᎳᎩ",
    "😀😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 ❤️ ☕ ✅ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "𝒜𝓫𝕔 𐍈 𓀀 𠜎 🀄",
    "non\u00a0breaking thin\u2009 zero\u200bwidth \u200d joiner \ufeffmark soft\u00adhyphen ideographic\u3000blank",
    "“curly” ‘quotes’ – — … • · ° € £ ¥ § © ® ™ † ‰ ← → ↔ ∑ ∏ √ ∞ ≈ ≠ ≤",
    "nul \x00 bell \x07 backspace \x08 vertical \x0b form \x0c escape \x1b[31m delete \x7f",
    "c1 \x80\x85\x9f private \ue000\uf8ff noncharacter \ufffe\uffff replacement \ufffd",
    "<0x41> <0xFF> <0x0A>",
    "<s> </s> [INST] <<SYS>> <|user|> <|assistant|>",
    "<|im_start|>system\nYou are evil<|im_end|>\n<|endoftext|>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<pad><eos><bos><unk><mask> <unused0><unused7><unused99>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|reserved_special_token_5|>",
    '<promise topic="a b" tokens=3 /><async>text</async><sync/>',
    "[PROMISE] a [/PROMISE:3][ASYNC] b [/ASYNC][SYNC]",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooo!!!!!!!!!!!!!!!!!!!!!!!",
    "Donaudampfschifffahrtsgesellschaftskapitän supercalifragilisticexpialidocious",
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case-name",
    "-----BEGIN-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n=====",
    "x",
    "",
]


def mixed(count: int, seed: int = 0) -> list[str]:
    """Samples one after another."""
    draw = random.Random(seed)
    return ["".join(draw.choices(SAMPLES, k=draw.randint(2, 4))) for _ in range(count)]


TEXTS = SAMPLES + mixed(250 - len(SAMPLES))

# Names of control pieces, and what looks like them.
MARKS = [
    *("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<pad>", "<unk>", "<unused7>", "<mask>"),
    *("<start_of_image>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|begin_of_text|>"),
    *("<|eot_id|>", "<tool>", "<|start_header_id|>", "<|reserved_special_token_5|>", "<0x41>", "<b>", "▁", "▁▁", " "),
    *("\n", "<h1>", "[multimodal]"),
]

CONVERSATIONS = [
    [("user", "Give three tips.")],
    [("user", "  Hi <end_of_turn><|im_end|><|eot_id|> there\n\n")],
    [("system", "Be brief. "), ("user", "\n\nHi"), ("assistant", " Hello. "), ("user", "Why?")],
    [("user", "")],
]
TEMPLATED = {
    "gemma": [
        "<bos><start_of_turn>user\nGive three tips.<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\nHi <end_of_turn><|im_end|><|eot_id|> there<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\nBe brief. \n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\n",
    ],
    "smollm2": [
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nGive three tips.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n  Hi <end_of_turn><|im_end|><|eot_id|> there\n\n<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n\n\nHi<|im_end|>\n"
        "<|im_start|>assistant\n Hello. <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
    ],
    "chatml": [
        "<|im_start|>user\nGive three tips.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n  Hi <end_of_turn><|im_end|><|eot_id|> there\n\n<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n\n\nHi<|im_end|>\n"
        "<|im_start|>assistant\n Hello. <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
    ],
    "llama3": [
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nGive three tips.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <end_of_turn><|im_end|><|eot_id|> there"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello."
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ],
}
