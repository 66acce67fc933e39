"""A small task for lm-evaluation-harness, on our model class and on transformers: python -m tests.helpers.harness_task.

The command exports SmolLM2-135M-Instruct and prints the accuracies of both; it needs setup.sh --assets --dev.
"""

import json
import sys
import tempfile
from pathlib import Path

NAME = "facts"
TASK = """task: facts
dataset_path: json
dataset_kwargs:
  data_files: {test: FILE}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
FACTS = (
    ("The capital of France is", ("Paris", "London", "Madrid", "Rome"), 0),
    ("Water freezes at zero degrees", ("Fahrenheit", "Kelvin", "Celsius"), 2),
    ("The opposite of hot is", ("warm", "cold", "fire", "red"), 1),
    ("A triangle has", ("two sides", "three sides", "four sides"), 1),
    ("The sun rises in the", ("west", "north", "east"), 2),
    ("Bees make", ("honey", "milk", "iron", "paper"), 0),
    ("Two plus two is", ("five", "four", "seven"), 1),
    ("The largest planet is", ("Mars", "Jupiter", "Earth"), 1),
)


def evaluate(model: str, arguments: str, folder: Path) -> tuple[float, list[float]]:
    """The accuracy that the harness states, and the log-likelihoods of all choices."""
    import lm_eval.models  # noqa: F401  registers the class of transformers
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = [{"question": question, "choices": choices, "answer": answer} for question, choices, answer in FACTS]
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "facts.yaml").write_text(TASK.replace("FILE", str(folder / "facts.jsonl")))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    report = simple_evaluate(model, arguments, tasks=[NAME], task_manager=manager, batch_size=1, bootstrap_iters=0)
    samples = sorted(report["samples"][NAME], key=lambda sample: sample["doc_id"])
    scores = [score for sample in samples for score, _ in sample["filtered_resps"]]
    return report["results"][NAME]["acc,none"], scores


def main() -> None:
    import pasta_jax.evaluate.harness  # noqa: F401  registers our class
    from pasta_jax import load_model
    from pasta_jax.weights.load import export_model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_model(load_model("smollm2_135m", only_decoding=False), folder / "model")
        ours, our_scores = evaluate("pasta_jax", "source=smollm2_135m", folder)
        theirs, their_scores = evaluate("hf", f"pretrained={folder / 'model'},dtype=float32,device=cpu", folder)
    difference = max(abs(a - b) for a, b in zip(our_scores, their_scores, strict=True))
    print(f"accuracy: {ours} of pasta_jax, {theirs} of transformers; largest difference of a score: {difference:.1e}")
    sys.exit(ours != theirs)


if __name__ == "__main__":
    main()
