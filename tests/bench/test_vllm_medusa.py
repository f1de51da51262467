"""Converted heads and vLLM's own loader: `benchmarks/peers/vllm_medusa.py`, and its kept result.

vLLM lives in an environment of its own: `ENTMTP_VLLM_PYTHON` names its interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VLLM_PYTHON = os.environ.get("ENTMTP_VLLM_PYTHON")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    file = BENCHMARKS / "peers" / "vllm_medusa.py"
    spec = importlib.util.spec_from_file_location("vllm_medusa", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(VLLM_PYTHON is None, reason="no vLLM: ENTMTP_VLLM_PYTHON names no interpreter")
def test_vllm_reads_what_is_written(script: ModuleType) -> None:
    assert script.main([VLLM_PYTHON]) == 0


def test_the_kept_result_is_of_these_cases(script: ModuleType) -> None:
    result = json.loads((BENCHMARKS / "results" / "vllm-medusa.json").read_text(encoding="utf-8"))
    assert result["vllm"].startswith("0.32")
    assert list(result["cases"]) == list(script.CASES)
    disagree = [name for name, case in result["cases"].items() if not case["agrees"]]
    assert disagree == result["cannot_be_read_by_this_release"] == [script.CANNOT]


def test_our_side_of_a_case_can_be_written(script: ModuleType, tmp_path: Path) -> None:
    ours = script.write_case(tmp_path, *script.CASES["vllm, the model's output layer, token_map"])
    assert ours.shape == (script.K, script.STATES, script.V)
    assert int(torch.isfinite(ours[0, 0]).sum()) == script.W
    assert (tmp_path / "heads" / "model.safetensors").is_file()
