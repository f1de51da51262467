"""A tiny model on disk with a chat template, and prompts for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from saved import CHAT_TEMPLATE, save_model, save_random_heads
from training_commands import write


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads in a folder beside it."""
    folder = tmp_path_factory.mktemp("with-heads")
    save_random_heads(folder / "heads", "medusa")
    return save_model(folder / "model", chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": f"question {i}"} for i in range(8)]
    return write(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", rows)
