"""All doors by name: each writes mutated files to a folder and reads them as the project does."""

from tests.fuzz import data_files, model_files, overrides, run_files, tokenizer_files
from tests.fuzz.run import Door

DOORS: dict[str, Door] = {
    door.__name__: door
    for door in (
        model_files.gguf,
        model_files.safetensors,
        model_files.config_json,
        tokenizer_files.tokenizer_json,
        tokenizer_files.tokenizer_model,
        overrides.overrides,
        *data_files.DOORS,
        *run_files.DOORS,
    )
}
