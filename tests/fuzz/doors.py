"""All doors by name."""

from tests.fuzz import clients, data_files, model_files, overrides, run_files, schemas, tokenizer_files
from tests.fuzz.run import Door

DOORS: dict[str, Door] = {
    door.__name__: door
    for door in (
        *(model_files.gguf, model_files.safetensors, model_files.config_json),
        *(
            tokenizer_files.tokenizer_json,
            tokenizer_files.tokenizer_model,
            tokenizer_files.chat_templates,
            overrides.overrides,
        ),
        *(data_files.sources_of_pairs, data_files.records_of_annotation, data_files.datasets, data_files.traces),
        *(data_files.prompts_files, run_files.artifacts, run_files.checkpoints, run_files.workdirs),
        *(clients.bodies, clients.headers, schemas.schemas),
    )
}
