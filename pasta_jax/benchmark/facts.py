"""An extraction set made from a seed: short texts with some facts, a schema of them, and the exact answers."""

import dataclasses
import datetime
import random
from typing import Any

PEOPLE = ("Maria", "Jonas", "Aiko", "Pedro", "Lena", "Omar", "Ruth", "Viktor", "Nadia", "Tomas")
SURNAMES = ("Keller", "Sato", "Moreau", "Lindqvist", "Okafor", "Novak", "Ferreira", "Haas", "Duarte", "Petrov")
CITIES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Dresden", "Nairobi", "Tampere", "Valletta", "Halifax", "Porto")
COLOURS = ("red", "green", "blue", "yellow", "white", "black")

# (name, kind, sentence)
CATALOGUE = (
    ("owner", "person", "It belongs to {}."),
    ("architect", "person", "It was designed by the architect {}."),
    ("gardener", "person", "The gardener is called {}."),
    ("first_guest", "person", "The first guest was {}."),
    ("cook", "person", "Meals are made by the cook, {}."),
    ("manager", "person", "Its manager is {}."),
    ("night_porter", "person", "At night, the porter {} opens the door."),
    ("founder", "person", "Its founder was {}."),
    ("city", "city", "It stands in {}."),
    ("partner_city", "city", "It has a partner house in {}."),
    ("wood_from", "city", "The wood of its floors came from {}."),
    ("founder_born_in", "city", "The founder was born in {}."),
    ("archive_in", "city", "Its archive is kept in {}."),
    ("trains_to", "city", "Trains go from there to {}."),
    ("rooms", "count", "There are {} rooms."),
    ("employees", "count", "{} people work there."),
    ("stairs", "count", "A staircase of {} steps leads to the roof."),
    ("windows", "count", "The facade has {} windows."),
    ("height_m", "count", "The tower is {} metres high."),
    ("paintings", "count", "{} paintings hang in the halls."),
    ("garden_trees", "count", "{} trees grow in the garden."),
    ("parking_places", "count", "{} cars can park in front."),
    ("opened_on", "date", "It opened on {}."),
    ("sold_on", "date", "It was sold on {}."),
    ("renovated_on", "date", "The renovation ended on {}."),
    ("next_fair_on", "date", "The next fair begins on {}."),
    ("roof_colour", "colour", "The roof is {}."),
    ("door_colour", "colour", "The front door is {}."),
    ("flag_colour", "colour", "A {} flag hangs over the entrance."),
    ("uniform_colour", "colour", "The staff wear {} uniforms."),
    ("has_pool", "yes", "It has {} pool."),
    ("has_library", "yes", "Guests find {} library there."),
)
TYPES: dict[str, dict[str, Any]] = {
    "person": {"type": "string", "maxLength": 40},
    "city": {"type": "string", "maxLength": 40},
    "count": {"type": "integer", "minimum": 0},
    "date": {"type": "string", "format": "date"},
    "colour": {"enum": list(COLOURS)},
    "yes": {"type": "boolean"},
}


@dataclasses.dataclass(frozen=True)
class Extraction:
    """A text, the schema of its facts, and their values."""

    text: str
    schema: dict[str, Any]
    answers: dict[str, Any]


def extraction(facts: int, seed: int) -> Extraction:
    """A text about a house with that many facts, in another order than the schema's."""
    rng = random.Random(seed)
    chosen = rng.sample(CATALOGUE, facts)
    answers: dict[str, Any] = {}
    sentences = []
    for name, kind, sentence in chosen:
        value, said = _fact(kind, rng)
        answers[name] = value
        sentences.append(sentence.format(said))
    rng.shuffle(sentences)
    properties = {name: TYPES[kind] for name, kind, _ in chosen}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Extraction(" ".join(["This is an old hotel.", *sentences]), schema, answers)


def _fact(kind: str, rng: random.Random) -> tuple[Any, str]:
    """A value, and how the text says it."""
    match kind:
        case "person":
            value: Any = f"{rng.choice(PEOPLE)} {rng.choice(SURNAMES)}"
        case "city":
            value = rng.choice(CITIES)
        case "count":
            value = rng.randrange(2, 400)
        case "colour":
            value = rng.choice(COLOURS)
        case "date":
            day = datetime.date(1850, 1, 1) + datetime.timedelta(rng.randrange(60_000))
            return day.isoformat(), f"{day.day} {day:%B} {day.year}"
        case _:
            value = rng.random() < 0.5
            return value, "a" if value else "no"
    return value, str(value)
