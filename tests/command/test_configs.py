"""Settings from a config file, with overrides: --config=file.py:variant --config.key=value."""

import dataclasses
from pathlib import Path

import pytest
from absl import flags

from pasta_jax.command import configs
from pasta_jax.command.flags import config_named, file_of, parse
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import read


@dataclasses.dataclass(frozen=True)
class Part:
    rate: float = 0.5
    limit: int | None = None
    tags: bool | None = None
    lengths: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(frozen=True)
class Whole:
    name: str = ""
    part: Part = Part()
    other: Part | None = None


FILE = """
from tests.command.test_configs import Part, Whole

def first(): return Whole("first")
def second(): return Whole("second")
def _hidden(): return Whole("hidden")
"""


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "settings.py"
    path.write_text(FILE)
    return str(path)


def given(*words: str) -> Whole:
    """The settings that a command with these words gets."""
    _, config = parse(flags.FlagValues(), ["script", *words], Whole())
    return read(config, Whole)


def test_a_variant_is_a_public_function_and_the_first_is_the_default(file):
    module, settings = configs.load(file)
    assert list(configs.variants(module)) == ["first", "second"]
    assert settings == Whole("first")
    assert configs.load(f"{file}:second")[1] == Whole("second")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":third", "settings.py:third: unknown variant; choose one of first, second"),
        (":_hidden", "unknown variant"),
        ("x", r"^--config: .*No such file.*settings.pyx.*; pass file.py:variant"),
        ("\0", "^--config: .*null byte"),
    ],
)
def test_an_unknown_variant_or_file_is_refused(file, name, message):
    with pytest.raises(PastaError, match=message):
        configs.load(file + name)


def test_a_file_without_a_variant_is_refused(tmp_path):
    (tmp_path / "x.py").write_text("from pathlib import Path\n\ndef _hidden(): ...\n")
    with pytest.raises(PastaError, match=r"^--config=.*x\.py: has no variant; add a function that returns settings"):
        configs.load(str(tmp_path / "x.py"))


def test_a_file_is_found_from_any_folder_and_one_here_comes_first(file, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert configs.load("settings.py:second", tmp_path)[1] == Whole("second")
    Path("settings.py").write_text(FILE.replace('"second"', '"mine"'))
    assert configs.load("settings.py:second", tmp_path)[1] == Whole("mine")


def test_a_file_and_what_flags_name_may_be_in_the_home_folder(file, monkeypatch):
    monkeypatch.setenv("HOME", str(Path(file).parent))
    assert configs.load("~/settings.py:second")[1] == Whole("second")
    values = flags.FlagValues()
    for name, value in {"output": "~/a.jsonl", "absent": None}.items():
        holder = flags.DEFINE_string(name, value, "", flag_values=values)
        values.mark_as_parsed()
        assert file_of(holder) == (None if value is None else Path(file).parent / "a.jsonl")


def test_the_name_of_a_variant_alone_and_a_file_that_is_not_python_are_refused(tmp_path):
    with pytest.raises(PastaError, match=r"'pasta'; pass file\.py:variant, as --config=configs/decode\.py:pasta$"):
        configs.load("pasta", Path(), "configs/decode.py")
    (tmp_path / "a.py").write_text("def (")
    with pytest.raises(PastaError, match=r"^--config: .*a\.py, line 1"):
        configs.load(str(tmp_path / "a.py"))


@pytest.mark.parametrize("words", [["--config=a.py:b"], ["--config", "a.py:b"], ["-config=a.py:b"]])
def test_the_config_is_named_anywhere_among_the_words(words):
    words = ["script", "decode", "--config.x=1", *words, "--flag", "value"]
    assert config_named(words, "default.py") == ("a.py:b", ["script", "decode", "--config.x=1", "--flag", "value"])
    assert config_named(["script"], "default.py") == ("default.py", ["script"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Whole()),
        (["--config.name=x", "--config.part.rate=2"], Whole("x", Part(2.0))),
        (["--config.part.limit=3", "--noconfig.part.tags"], Whole(part=Part(limit=3, tags=False))),
        (["--config.part.limit=3", "--config.part.limit=None", "--config.part.tags=None"], Whole()),
        (["--config.part.lengths=(3,)"], Whole(part=Part(lengths=(3,)))),
        (["--config.part.lengths=()"], Whole(part=Part(lengths=()))),
    ],
)
def test_overrides_replace_values_of_any_depth(words, expected):
    assert given(*words) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--config.nam=x", "--config.nam: unknown key; Did you mean"),
        ("--config.prt.rate=1", '--config.prt.rate: unknown key; Did you mean "part"'),
        ("--config.part.qqq=1", "--config.part.qqq: unknown key; see --help"),
        ("--config.part.rate=fast", "flag --config.part.rate=fast: .*could not convert"),
        ("--config.part.rate=None", r"config\.part\.rate: expected `float`"),
        ("--config.part.tags=maybe", r"flag --config.part.tags=maybe: is true or false \(--help lists"),
        ("--config.part.lengths=(1", r"config.part.lengths\[0\]: expected `int`"),
        ("--config.part=1", r"--config\.part: is a section"),
        ("--config.part=fast", r"--config\.part: is a section; set its keys, as --config\.part\.KEY=…"),
        ("--flag=1", "Unknown command line flag 'flag'.*--help lists the flags"),
    ],
)
def test_a_mistake_names_the_flag_in_one_line(word, message):
    with pytest.raises(PastaError, match=f"^{message}") as error:
        given(word)
    assert "\n" not in str(error.value)
