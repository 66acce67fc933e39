"""Words that signal how the parts of a text depend on each other, and a topic from its first words.

These are heuristics. They err towards "needs what came before", which costs speed but never correctness. They are
mostly English, with some words of German, Chinese, Japanese and Thai.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from pasta_jax.lang.program import MAX_TOPIC_WORDS
from pasta_jax.lang.words import MARKS, UNSPACED, first_words, unspaced
from pasta_jax.lang.words import words as split_words

Cue = Callable[[str], bool]  # whether a text has it


def _any(*words: str, unspaced: str) -> Cue:
    """Whether a text contains one of these words; those of scripts without blanks between words have no boundaries."""
    pattern = re.compile(rf"\b(?:{'|'.join(words)})\b|{unspaced}", re.IGNORECASE)
    return lambda text: bool(pattern.search(text))


def _opens(*words: str, unspaced: str) -> Cue:
    """Whether a text begins with one of these words."""
    pattern = re.compile(rf"\W*(?:(?:{'|'.join(words)})\b|{unspaced})", re.IGNORECASE)
    return lambda text: bool(pattern.match(text))


# An instruction that requests continuous prose, in which each sentence builds on the one before.
creative = _any(
    "story", "stories", "tale", "poem", "poetry", "haiku", "limerick", "sonnet", "song", "lyrics", "rap", "script",
    "screenplay", "scene", "dialogue", "dialog", "conversation between", "monologue", "novel", "fan ?fiction",
    "shanty", "ballad", "rhyme", "verses? (?:about|for|of)", "odes? (?:to|on|about)", "lullaby",
    "letter", "e-?mail", "speech", "joke", "role-?play", "act as", "translate", "rewrite", "proofread",
    "(?:kurz|eine (?:kurze )?)geschichte", "gedichte?", "märchen", "drehbuch", "witze?", "rede",
    "übersetze", "erzähle?",
    unspaced="故事|[诗詩]|小[说說説]|剧本|脚本|歌[词詞]|演讲|笑话|翻[译譯訳]|改写|润色|写一?封|对话|扮演|物語|手紙"
    "|スピーチ|書き直|訳して"
    "|นิทาน|เรื่องสั้น|บทกวี|กลอน|แต่งเพลง|จดหมาย|สุนทรพจน์|แปล(?!ก)",
)  # fmt: skip
_closing = _opens(
    "in (?:conclusion|summary|short|general|brief|the end)", "overall", "ultimately",
    "to (?:conclude|summari[sz]e|sum up)", "(?:in|with|by|given|taking) (?:all|these|those|this|that|both)",
    "all (?:in all|of (?:these|this|them)|these)", "these", "those", "this", "that", "both", "remember",
    "keep in mind", "(?:please )?note", "finally", "lastly", "so",
    "it(?:['’]s| is) (?:also )?(?:important|worth|essential|crucial)", "therefore", "thus", "hence", "as a result",
    "by (?:following|using|doing|implementing|taking|combining|incorporating|[a-z]+ing (?:these|this|all))",
    "i hope (?:this|that|these)", "of course", "however", "once", "after", "depending", "additionally", "also",
    "zusammenfassend", "insgesamt", "letztendlich", "schlie(?:ß|ss)lich", "abschlie(?:ß|ss)end", "diese[rsmn]?",
    "daher", "deshalb", "au(?:ß|ss)erdem", "beachten?", "denken? (?:sie )?daran", "kurz(?:um| gesagt)",
    unspaced="[总總]之|综上|总的来说|总体而言|最后|通过(?:这些|以上)|以上|这些|记住|请记住|需要注意|值得注意|因此"
    "|所以|まとめ|要するに|つまり|最後に"
    "|これら|この|その|なお|また|したがって|結論|โดยสรุป|สรุป|โดยรวม|สุดท้าย|ดังนั้น|ทั้งหมดนี้|สิ่งเหล่านี้|อย่าลืม|นอกจากนี้",
)  # fmt: skip
_farewell = _opens(
    "i hope", "hope (?:this|that|it)", "(?:please )?(?:let me know|feel free)", "good luck", "enjoy", "happy [a-z]+ing",
    "would you like", "do you want", "want me to", "thank you for",
    "best of luck", "if you have any (?:other |further |more |specific )?questions",
    "ich hoffe", "viel (?:erfolg|spaß|glück)", "wenn (?:du|sie) (?:noch |weitere )*fragen",
    unspaced="希望(?:这|以上|对)|祝|如果[你您]还?有|随时|お役に立|ご質問|頑張って|หวังว่า|หาก(?:คุณ)?มีคำถาม|ขอให้",
)  # fmt: skip
_opens_backwards = _opens(
    "and", "but", "so", "then", "next", "now", "once", "after(?: that|wards)?", "again", "repeat", "therefore",
    "thus", "hence", "however", "instead", "otherwise", "nevertheless", "consequently", "meanwhile", "similarly",
    "likewise", "conversely", "as a result", "as such", "for this reason", "for (?:example|instance)",
    "to illustrate", "alternatively", "in (?:this|that|these|such) [a-z]+", "in other words", "specifically", "this",
    "these", "that", "those", "it", "its", "they", "their", "them", "such", "he", "she", "his", "her", "him", "both",
    "either", "neither", r"(?:(?:grand |sub)?total|sum)(?=[*_ ]*[:=])", "combining (?:these|both|the|all|eq[a-z]*)",
    r"substitut\w+ (?:this|these|it|into|back|the)",
    "und", "aber", "dann", "danach", "anschlie(?:ß|ss)end", "jetzt", "deshalb", "daher", "trotzdem", "jedoch",
    "zum beispiel", "beispielsweise", "ebenso", "dies(?:e[rsmn]?)?", "jene[rsmn]?", "er", "sie", "es", "ihre?[rsmn]?",
    "beide[rsn]?",
    unspaced="(?<![=!<>])[=≈⇒→∴](?=\\s)|然[后後]|接着|接下来|之后|随后|因此|所以|但是|然而|不过|例如|比如|相反|同样|此外|另外|这"
    "|那(?:么|个|些|时|样)|[它他她其该]|两者"
    "|以上|次に|それ|その|これ|この|そして|しかし|だから|したがって|例えば|たとえば|また|一方|同様|彼|両者|จากนั้น"
    "|หลังจากนั้น|ต่อมา"
    "|แล้ว|ดังนั้น|แต่(?!ง|ละ)|อย่างไรก็ตาม|เช่น|มัน(?!ฝรั่ง|เทศ)|พวกเขา|สิ่งนี้|นี้|นี่|ทั้งสอง",
)  # fmt: skip
_points_backwards = _any(
    "above", "aforementioned", "(?:as )?mentioned", "previous(?:ly)?", "preceding", "the former", "the latter",
     "(?:as|like) (?:before|described|noted|discussed|shown|stated|seen)",
    "earlier (?:step|point|section)", "resulting",
    r"(?:from|by|in|into|using|combining) (?:eq\w*\.? ?)?\(\d{1,2}(?=\))",
    r"(?:step|point|item|option|method|part|section|example|rule)s? (?:#|no\.? ?)?\d+",
    "the (?:first|second|third|last|other) (?:one|step|point|item|option|method|part|section|example)",
    "you(?: have|['’]ve)? (?:just )?(?:created|made|defined|installed|wrote|written|downloaded|chosen|chose|prepared)",
    "we(?: have|['’]ve)? (?:just )?(?:created|made|defined|found|calculated|computed|saw|seen|obtained)",
    "(?:all|each|any|some|one|both|either|neither) of (?:these|those|them)", "in addition to (?:this|that|these)",
    "oben", "vorherige[rsmn]?", "zuvor", "erstere[rsmn]?", "letztere[rsmn]?", r"schritt \d+",
    unspaced=r"上述|如上|上面(?:的|提)|前面(?:的|提|所)|[前后後]者|第[一二三四五六七八九十\d]+(?:步|点|项|條)|上記"
    r"|前述|先ほど|手順\s?\d"
    "|ข้างต้น|ดังกล่าว|ก่อนหน้า|ขั้นตอนที่",
)  # fmt: skip
# A question whose answer, if it begins with a list, lists steps.
asks_how = _opens("how (?:to|do (?:i|you|we|one))", unspaced="如何|怎[么样]")
may_ask_how = re.compile(r"(?i)\W*how (?:can|would|should) (?:i|you|we|one)\b").match  # or for advice in no order
# A lead-in that says no more than that steps follow.
only_steps = re.compile(r"\W*(?:steps|instructions|directions)\W*", re.IGNORECASE).fullmatch
# An answer that is a letter or a song, whatever was asked.
letter = re.compile(r"(?:\W*subject:[^\n]*\n)?\W*(?:dear|hi|hello|hey)\b[^\n,]{0,60},\s*\n", re.IGNORECASE).match
song = re.compile(r"(?im)^[^\w\n]*(?:verse|chorus|stanza|bridge)(?: \d+)?(?::[^\n]*\])?[^\w\n]*$").search
# A list that is announced as steps of one task.
steps = _any(
    "steps?", "instructions?", "directions?", "procedure", "recipe", "process", "tutorial", "method", "preparation",
    "how to", "walk ?through", "as follows", "algorithm", "proof", "solution", "calculate", "solve", "setup",
    "schritte?", "anleitung", "rezept", "vorgehen", "zubereitung", "lösung",
    unspaced="步[骤驟]|教程|流程|做法|方法|食谱|手順|作り方|やり方|解き方|ขั้นตอน|วิธี",
)  # fmt: skip
# A list that is announced as instructions for one thing.
how_to = _any(
    "how (?:to|you|we|i)", "(?:follow|take) (?:these|the|this)", "as follows", "(?:these|the following) steps",
    "do the following",
    "wie (?:man|du|sie|ich|wir)", "folgenden? schritte?", "folge(?:n sie)?",
    unspaced="如何|怎[么样]|按照|[以下列]+步[骤驟]|[次下]の手順|作り方|やり方|ทำตาม|ขั้นตอน(?:ต่อไป|ดัง)นี้",
)  # fmt: skip
# An item that reads like a step with others before or after it.
in_sequence = _any(
    "then", "next", "once", "now", "again", "until", "afterwards?", "remaining", "resulting", "finally", "first",
    "step", "after (?:that|you|the)", "back to", "(?:begin|start) by", "following (?:command|code)", "create an?",
    "add the", "click(?: on)? the", "in the new",
    "dann", "danach", "anschlie(?:ß|ss)end", "zuerst", "zunächst", "bis", "klicken?", "erstellen?",
    unspaced="首先|然[后後]|接着|接下来|之后|最后|直到|点击|创建|新建|まず|次に|それから|最後に|クリック|作成|ก่อนอื่น"
    "|จากนั้น|ต่อไป|สุดท้าย|จนกว่า|คลิก|สร้าง",
)  # fmt: skip
# The heading of a section that depends on the sections before it.
_dependent_heading = _opens(
    "(?:in )?(?:conclusion|summary|short)", "overall", "result(?:s|ing)?", "total", "final", "answer",
    "instructions?", "directions?", "methods?", "steps?", "procedure", "preparation", "verdict", "recommendation",
    "comparison", "solution", "takeaways?", "next", "output", "explanation", "example(?: usage)?", "usage", "note",
    "now", "then", "finally", "lastly", "verse", "chorus", "act", "scene", "chapter", "part",
    "fazit", "zusammenfassung", "ergebnis(?:se)?", "schritte?", "zubereitung", "anleitung", "beispiele?", "vergleich",
    unspaced="结论|[总總]结|步[骤驟]|做法|结果|答案|示例|用法|比较|結論|まとめ|手順|作り方|結果|例|比較|สรุป|ขั้นตอน"
    "|วิธีทำ|ผลลัพธ์|ตัวอย่าง",
)  # fmt: skip
_ELSEWHERE = (  # words of other languages that number a sentence, with what follows them
    r"(?:erstens|zweitens|drittens|viertens|einerseits|andererseits|außerdem|schließlich)\b,?"
    r"|(?:ประการแรก|ประการที่(?:สอง|สาม|สี่|ห้า)|นอกจากนี้|สุดท้าย)(?= )"
    r"|(?:首先|其次|再次|第[一二三四五]|另外|此外|最后|一方面|另一方面|第[一二三]に|まず|次に|最後に|一方|また)[，、,]"
)
_ORDINAL = re.compile(
    r"(?:^|(?<=[.!?] )|(?<=[。！？]))(?:(?:first|second|third|fourth|fifth)(?:ly| of all)?,|another \w+|additionally,"
    r"|furthermore,|moreover,|in addition,|on (?:the )?one hand,|on the other hand,|for one,|lastly,|finally,|also,"
    rf"|{_ELSEWHERE})",
    re.IGNORECASE,
)
_ORDINAL_WORDS = re.compile(rf"\W*(?:[A-Za-z ]{{3,18}},|another|{_ELSEWHERE})\s*", re.IGNORECASE)
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can for from has have i if in into is it its may more most not of on one or our"
        " over so such than that the their them then there these they this to up use using was we when which while"
        " who will with you your he she his her him also any each other some all do does been being would could"
        " should might must many several various another example used known called based make made include"
        " includes including often usually typically what how why where refer refers provides provide designed"
        " allows allow help helps",
    )
)
# Those of other languages that are no English words; only topics leave them out.
_EMPTY = _COMMON | frozenset(
    re.findall(
        r"\w+",
        "der das den dem des und ist sind ein eine einen einem einer nicht mit auf für von zu zum zur im oder wird"
        " werden auch sich sie ihr ihre ihren dein deine deinen wie bei nach aus durch",
    )
)
_JOINING = frozenset(("and", "or", "but", "that", "which", "who", "when", "while", "if", "because", "so", "by", "as"))
_PAST = re.compile(r"\b(?:was|were|had|did|said|went|came|took|saw|felt|knew|began|became|[a-z]{3,}ed)\b")
_INTRODUCED = re.compile(r"\b(?:an?|new|another)\s+((?:[a-z-]+\s+){0,2}[a-z-]+)", re.IGNORECASE)
_DEFINITE = re.compile(r"\b(?:the|your|that|this)\s+((?:[a-z-]+\s+){0,1}[a-z-]+)", re.IGNORECASE)
_ARTICLES = ("a", "an", "the", "der", "das", "den", "dem", "ein", "eine", "einen", "einem", "einer")
_NUMBER = r"\d(?:[\d.,]*\d)"  # of two or more digits
_RESULT = re.compile(rf"(?:[=≈]|\bequals?\b)[^\w\s]?\s*[^\w\s]{{0,2}}({_NUMBER})")
_CODE_NAME = re.compile(r"`([^`\n]{2,40})`")
_WORD = re.compile(rf"\d{{1,2}}:\d\d(?!\d)|[^\W_](?:[\w'’+#./&{MARKS}-]*[\w+#{MARKS}])?")
_LETTER = re.compile(r"[^\W\d_]")
_LEADS = (
    re.compile(r"\s*(?:\*\*|__)([^*_\n]{2,80})(?:\*\*|__)"),
    re.compile(r"\s*[【「『《]([^】」』》\n]{1,60})[】」』》]"),
    re.compile(
        r"\s*[*_]?((?:[^:：.!?。！？\n]|(?<=\d):(?=\d\d)){2,60}?)[*_]{0,3}"
        rf"(?:(?::[*_]{{0,3}}|\s+[-–—])(?=\s)|：|——|:(?=[{UNSPACED}]))"
    ),
)
# What counts a heading or a lead, in emphasis or not: `1.`, `(a)`, `II.`, `一、`, a digit in a circle or on a key.
_COUNT = re.compile(
    rf"^([*_]*)(?:[(（]?(?:\d{{1,3}}(?:\.\d{{1,3}})*|[IVX]{{1,4}}|[A-Za-z]|[一二三四五六七八九十]{{1,3}})"
    rf"(?:[.)](?=[\s*_{UNSPACED}])|[、．）])|[①-⑳]|\d{{1,2}}\ufe0f?\u20e3)\s*(?=\S)"
)
# A word with a point that ends no sentence, and a sentence with such words.
_ABBREVIATION = r"(?<![\w.])(?:(?<![a-z] )(?:[A-Z]\.){1,3}|(?:Dr|Mrs?|Ms|St|Prof|No|vs|e\.g|i\.e)\.)(?=[ \t])"
_SENTENCE = re.compile(rf"(?:{_ABBREVIATION}.|(?![.!?]\s|[。！？])[^\n])*[.!?。！？]?")
_INITIAL = re.compile(r"[A-Z]\.|e\.g\.|i\.e\.")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+(?=\s*[{\[])|)")  # of LaTeX, with an argument; others are names, as \alpha
_CLAUSE = re.compile(r"[。，、；：！？…—,.;:!?()（）【】「」『』《》*_`\s]+")


def closing(text: str) -> bool:
    """Whether a paragraph begins like a summary of the preceding text."""
    return _closing(text) or _points_backwards(_first_sentence(text)) or farewell(text)


def farewell(text: str) -> bool:
    """Whether a paragraph is a courtesy that depends on nothing in the answer."""
    return _farewell(text) and len(split_words(text)) < 40


def dependent_heading(heading: str) -> bool:
    """Whether a section needs those before it, as its heading says; its number doesn't count."""
    return _dependent_heading(heading) or _dependent_heading(without_number(heading))


def points_back(text: str) -> bool:
    """Whether a part needs the text before it by its own words."""
    return _opens_backwards(text) or _points_backwards(text)


def refer_back(parts: Iterable[str], known: str) -> Iterator[bool]:
    """Whether each part needs its earlier siblings: it points back, or has a thing or a result that they introduced.

    `known` is the text that every part sees: the question and the text before the group.
    """
    visible, known_numbers = distinct(known), set(re.findall(_NUMBER, known))
    introduced, names, results = set(), set(), set()
    for part in parts:
        things = {m.split()[-1] for m in _DEFINITE.findall(part.lower())} - _COMMON
        code = {name for name in _CODE_NAME.findall(part) if name not in known}
        numbers = set(re.findall(_NUMBER, part))
        yield points_back(part) or bool(introduced & things or names & code or results & numbers)
        results |= set(_RESULT.findall(part)) - known_numbers
        introduced |= {m.split()[-1] for m in _INTRODUCED.findall(part.lower())} - visible
        names |= code


def unordered(paragraphs: Sequence[str]) -> int:
    """How many paragraphs at the end of a run together recount no events, and are in English, as these words are.

    The most for which that holds; each is read once.
    """
    result = past = common = total = 0
    for count, paragraph in enumerate(reversed(paragraphs), 1):
        words = paragraph.lower().split()
        past += len(_PAST.findall(paragraph.lower()))
        common += sum(word in _COMMON for word in words)
        total += len(words)
        if past <= 0.06 * total and common > 0.2 * total:
            result = count
    return result


def enumerated(text: str) -> list[int]:
    """The starts of the sentences that enumerate the points of a paragraph."""
    return [match.start() for match in _ORDINAL.finditer(text)]


def without_ordinal(text: str) -> str:
    """A sentence without the words that number it."""
    match = _ORDINAL_WORDS.match(text)
    return text[match.end() :] if match else text


def without_number(heading: str) -> str:
    """A heading without its number: `Osaka` of `1. Osaka`, and of `Day 1: Osaka` the part after the colon."""
    rest = re.sub(r"^[^:：]*\d[^:：]*[:：]\s*(?=\S)", "", _COUNT.sub(r"\1", heading))
    return rest if _WORD.search(rest) else heading


def topic(text: str, known: Set[str]) -> str:
    """At most three words: a lead in bold or before a colon, else the first words with content, if `known` lacks any.

    They are what main would have written next, so it can predict them. Otherwise words of the first sentence that are
    not in `known`.
    """
    match = _lead(text)
    text = _COMMAND.sub(" ", text)
    lead = _COMMAND.sub(" ", _COUNT.sub(r"\1", match[1])) if match else ""
    if unspaced(lead or _first_sentence(text)):
        return _first_clause(lead or text)
    words = _WORD.findall(lead)
    if len(words) > MAX_TOPIC_WORDS:
        words = [word for word in words if word.lower() not in _EMPTY] or words
    words = words[words[:1] != [] and words[0].lower() in _ARTICLES and len(words) > 1 :]
    if not words:
        sentence = _first_sentence(text)
        first = _first_content_words(sentence)
        is_new = {word.lower() for word in first} - known
        words = first if is_new else _content_words(sentence, known) or _content_words(sentence, set())
    return first_words(" ".join(words or _WORD.findall(text[:400])), MAX_TOPIC_WORDS)


def without_lead(text: str) -> str:
    """A text without the words in bold or before a colon that it begins with."""
    match = _lead(text)
    return _COUNT.sub(r"\1", text[match.end() :].lstrip("\n \t*_:：-–—•")) if match else text


def _lead(text: str) -> re.Match[str] | None:
    matches = (lead.match(text) for lead in _LEADS)
    return next((match for match in matches if match and len(split_words(match[1])) <= 8), None)


def _first_clause(text: str) -> str:
    """The first words of a text's first clause, in a script without blanks between words."""
    clause = next((clause for clause in _CLAUSE.split(text) if clause and not clause.isdecimal()), "")
    return first_words(clause, MAX_TOPIC_WORDS)


def common(text: str) -> bool:
    """Whether a text has no word with a content of its own."""
    return all(word.lower() in _COMMON for word in _WORD.findall(text))


def _first_content_words(sentence: str) -> list[str]:
    """At most three, of the first clause that has two: `Listen body` of `Listen to your body and take breaks`."""
    found: list[str] = []
    for word in re.findall(rf"{_ABBREVIATION}|{_WORD.pattern}|[,;:.()–—]", sentence):
        ends = not word[0].isalnum() or word.lower() in _JOINING
        if len(found) == MAX_TOPIC_WORDS or (ends and len(found) > 1):
            break
        if word[0].isalnum() and word.lower() not in _EMPTY and not _INITIAL.fullmatch(word):
            found.append(word)
    return found


def _content_words(sentence: str, known: Set[str]) -> list[str]:
    """The first run of two or more consecutive content words that are not in `known`, else the longest run.

    A run of numbers alone says too little.
    """
    runs: list[list[str]] = [[]]
    for word in re.findall(rf"{_WORD.pattern}|[^\w\s]", sentence):
        if word[0].isalnum() and word.lower() not in _EMPTY and word.lower() not in known:
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    runs = [run for run in runs if any(_LETTER.search(word) for word in run)]
    return next((run for run in runs if len(run) > 1), max(runs, key=len, default=[]))


def _first_sentence(text: str) -> str:
    return _SENTENCE.match(text.strip())[0]


def last_sentence(text: str) -> str:
    """The last sentence of a text, as far as its marks tell."""
    return re.split(r"(?<=[.!?])\s|(?<=[。！？])(?=.)|\n", text.strip())[-1]


def distinct(text: str) -> set[str]:
    """The words of a text in lower case, and what of them has letters of English alone."""
    return {*_WORD.findall(text.lower()), *re.findall(r"[a-z-]+", text.lower())}
