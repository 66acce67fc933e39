"""What one decoding run reads and writes, checked before a model is loaded. Imports no JAX."""

import dataclasses
from pathlib import Path
from typing import Literal

from pasta_jax.answer.prompts import Prompt, read_baseline, read_program, read_prompt, read_prompts_file
from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import check_file, refuse_inputs
from pasta_jax.lang.program import Program
from pasta_jax.progress import stdout_can_be_drawn_on


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Files to write; None: not written. With several prompts, those after `output` get a number in their names."""

    output: Path | None = None  # one record per prompt: JSON lines, or one list if the name ends in .json
    trace: Path | None = None
    perfetto: Path | None = None
    html: Path | None = None  # with several prompts, the page that links to theirs
    svg: Path | None = None

    def __post_init__(self):
        paths = self.by_flag()
        for flag, path in paths.items():
            check_file(path, f"--{flag}={path}")
        if len(set(paths.values())) < len(paths):
            raise PastaError(f"--{' --'.join(paths)}: two flags name the same file; choose different files")

    def by_flag(self) -> dict[str, Path]:
        """The files to write, by the name of their flag."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {flag: path for flag, path in fields.items() if path is not None}


@dataclasses.dataclass(frozen=True)
class Job:
    """Prompts to answer and how to present the answers."""

    prompts: tuple[Prompt, ...]
    program: Program | None  # replayed instead of sampling
    program_file: Path | None
    baseline_tokens: tuple[int, ...] | None  # length of the sequential answer to each prompt
    outputs: Outputs
    live: Literal["auto", "yes", "no"]  # show threads side by side while they run
    slow: bool  # decode first, and then show the threads at reading speed
    as_json: bool  # print records instead of text
    compare: bool  # answer with and without the tags, and compare
    started: float  # time.perf_counter() when the command began
    system: str = ""  # message, of all prompts

    def path_for(self, path: Path, number: int) -> Path:
        """The file for one answer: `path`, or with several prompts the same with the answer's number."""
        return path if len(self.prompts) == 1 else path.with_name(f"{path.stem}-{number + 1:04}{path.suffix}")


def read_job(
    prompt: str | None = None,
    prompts_file: Path | None = None,
    program_file: Path | None = None,
    baseline_file: Path | None = None,
    outputs: Outputs = Outputs(),
    live: Literal["auto", "yes", "no"] = "auto",
    slow: bool = False,
    as_json: bool = False,
    compare: bool = False,
    sequential: bool | None = None,
    *,
    started: float,
) -> Job:
    """Read the inputs and refuse flags that contradict each other."""
    if prompt is not None and prompts_file is not None:
        raise PastaError("--prompt and --prompts_file: pass one of the two")
    inputs = {"prompts_file": prompts_file, "program": program_file, "baseline": baseline_file}
    refuse_inputs(outputs.by_flag(), inputs)
    prompts = (read_prompt(prompt),) if prompts_file is None else tuple(read_prompts_file(prompts_file))
    if program_file is not None:
        if len(prompts) > 1:
            raise PastaError("--program: answers one prompt only; pass --prompt")
        if sequential:
            raise PastaError("--sequential: a replay follows its program; drop --sequential or --program")
    if slow and (live == "no" or as_json or len(prompts) > 1 or not (live == "yes" or stdout_can_be_drawn_on())):
        raise PastaError("--slow: shows one answer on a terminal; drop it, or pass --prompt and --live=yes")
    given = {"--prompts_file": len(prompts) > 1, "--program": program_file, "--baseline": baseline_file}
    given |= {"--sequential": sequential, "--slow": slow}
    if compare and any(given.values()):
        flag = next(flag for flag, value in given.items() if value)
        raise PastaError(f"--compare: decodes one prompt with and without the tags; drop {flag}")
    if live == "yes" and (len(prompts) > 1 or as_json):
        raise PastaError("--live=yes: shows the text of one prompt; drop it, or --prompts_file and --json")
    return Job(
        prompts=prompts,
        program=None if program_file is None else read_program(program_file),
        program_file=program_file,
        baseline_tokens=None if baseline_file is None else tuple(read_baseline(baseline_file, prompts)),
        outputs=outputs,
        live=live,
        slow=slow,
        as_json=as_json,
        compare=compare,
        started=started,
    )
