"""Answers side by side are shown as text, whatever they hold."""

from types import SimpleNamespace

from pasta_jax.teaching import beside


def test_nothing_that_a_model_writes_is_active():
    image, element = "![x](https://other.example/x.png)", "<img src=https://other.example/x.png>"
    chunk = SimpleNamespace(topic=f"{image} {element}")
    answer = SimpleNamespace(
        prompt=f"{image}\n{element}", text=f"{image}\n\n{element}\x1b", chunks=(chunk,), text_tokens=2, critical_path=1,
        finished=False,
    )  # fmt: skip
    page = beside.table(SimpleNamespace(answers={"model": [answer], "baseline": [answer]}))
    assert page.count("&lt;img") == page.count("x.png)") == 4
    assert page.count("1 steps, cut off") == 2
    assert not {"<", "[", "\x1b"} & {*page}
