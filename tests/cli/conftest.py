"""A tiny model and heads on disk, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from saved import CHAT_TEMPLATE, save_model, save_random_heads


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template."""
    return save_model(tmp_path_factory.mktemp("model"), chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def bare_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without one."""
    return save_model(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def medusa_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_heads(tmp_path_factory.mktemp("heads") / "medusa", "medusa")


@pytest.fixture(scope="session")
def hydra_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_heads(tmp_path_factory.mktemp("heads") / "hydra", "hydra++")


@pytest.fixture(scope="session", autouse=True)
def graphs_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the openvino runtime exports of tiny models is thrown away."""
    folder = tmp_path_factory.mktemp("graphs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("entmtp.target.runtimes.artefact.cache_dir", lambda: folder)
        yield
