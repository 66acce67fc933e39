"""An answer that lists three things in five languages, and the topics that its annotation should name."""

from pasta_jax.annotate.structural import annotate
from pasta_jax.data.records import Record
from tests.helpers.records import record_of

ANSWERS = {
    "english": (
        "How can I sleep better?",
        """\
Three things help:

1. Fixed hours: go to bed and get up when you always do, on weekends too.
2. A dark room: heavy curtains keep street lamps out, and a cool room helps as well.
3. No late coffee: caffeine stays in the blood for six hours and longer.

Overall, small habits matter more than pills.""",
        ["Fixed hours", "dark room", "No late coffee"],
    ),
    "german": (
        "Wie schlafe ich besser?",
        """\
Drei Dinge helfen beim Schlafen:

1. Feste Zeiten: Geh jeden Tag zur gleichen Stunde ins Bett, auch am Wochenende.
2. Ein dunkles Zimmer: Schwere Vorhänge halten das Licht der Straße draußen, und kühle Luft tut gut.
3. Kein später Kaffee: Koffein bleibt sechs Stunden und länger im Blut.

Insgesamt zählen kleine Gewohnheiten mehr als Tabletten.""",
        ["Feste Zeiten", "dunkles Zimmer", "Kein später Kaffee"],
    ),
    "chinese": (
        "怎样睡得更好？",
        """\
以下三种方法可以改善睡眠：

1、固定作息：每天在同一时间上床和起床，周末也不要例外。
2、黑暗的房间：厚窗帘可以挡住路灯的光线，凉爽的房间也有帮助。
3、少喝咖啡：咖啡因会在血液里停留六个小时甚至更久。

总之，小习惯比药片更重要。""",
        ["固定作息", "黑暗的房间", "少喝咖啡"],
    ),
    "japanese": (
        "よく眠るにはどうすればいいですか？",
        """\
よく眠るための三つの工夫です。

・規則正しい時間：毎日同じ時刻に寝て、週末も同じ時刻に起きるようにします。
・暗い部屋：厚いカーテンで街灯の光をさえぎり、部屋を涼しく保つと眠りやすくなります。
・コーヒー：カフェインは六時間以上も血液の中に残るので、夜は控えましょう。

まとめると、薬よりも小さな習慣が大切です。""",
        ["規則正しい", "暗い部屋", "コーヒー"],
    ),
    "thai": (
        "ทำอย่างไรให้นอนหลับดีขึ้น",
        """\
สามสิ่งที่ช่วยให้นอนหลับดีขึ้น:

1. นอนตรงเวลา: เข้านอนและตื่นนอนเวลาเดิมทุกวัน รวมถึงวันหยุดสุดสัปดาห์ด้วย
2. ห้องมืดสนิท: ผ้าม่านหนาช่วยกันแสงไฟจากถนน และห้องที่เย็นสบายก็ช่วยได้เช่นกัน
3. งดกาแฟตอนเย็น: คาเฟอีนอยู่ในกระแสเลือดได้นานถึงหกชั่วโมงหรือนานกว่านั้น

โดยสรุป นิสัยเล็ก ๆ สำคัญกว่ายานอนหลับ""",
        ["นอนตรงเวลา", "ห้องมืดสนิท", "งดกาแฟตอนเย็น"],
    ),
}


def annotated(question: str, answer: str) -> Record:
    """The record of an answer annotated by its form."""
    return record_of(annotate(question, answer), answer, question)
