"""A pytest plugin (-p tests.skips): ends a run with one line per reason for skipping, the most frequent first."""

from collections import Counter


def reason(report) -> str:
    """The reason of a skip mark, without pytest's prefix."""
    return report.longrepr[2].removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(map(reason, terminalreporter.getreports("skipped")))
    if reasons:
        terminalreporter.section("left out")
    for text, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4d}  {text}")
