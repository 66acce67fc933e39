"""The threads of an answer over its steps as a small SVG, drawn from two integers of each token, for long pages."""

from collections.abc import Sequence

import numpy as np

from pasta_jax.view.style import css_thread
from pasta_jax.view.text import fit, markup

ROW, NAMES = 16, 150  # height of a thread, width of its name; in pixels
WIDTH = 640


def lanes(threads: Sequence[int], steps: Sequence[int], names: Sequence[str], most_steps: int) -> str:
    """Bars from every thread's first to its last step, with gaps where it waited; `names` by thread.

    `threads` and `steps` have one value per token. `most_steps` is the width of the picture in steps.
    """
    thread, step = np.asarray(threads, np.int64), np.asarray(steps, np.int64)
    scale = (WIDTH - NAMES) / max(most_steps, 1)
    parts = []
    for number, name in enumerate(names):
        own = np.sort(step[thread == number])
        runs = np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if len(own) else []
        top = number * ROW
        parts.append(f'<g class="{css_thread(number)}"><text class="name" x="0" y="{top + 12}">')
        parts.append(f"{markup(fit(name, 12, NAMES - 8))}</text>")
        for first, last in ((int(run[0]), int(run[-1])) for run in runs):
            left, width = NAMES + (first - 1) * scale, max((last - first + 1) * scale, 1)
            title = f"<title>{markup(name)}: steps {first} to {last}</title>"
            parts.append(
                f'<rect class="bar" x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{ROW - 6}">{title}</rect>'
            )
        parts.append("</g>")
    about = f'viewBox="0 0 {WIDTH} {ROW * len(names)}" role="img" aria-label="threads over steps"'
    return f'<svg class="lanes" {about}>{"".join(parts)}</svg>'
