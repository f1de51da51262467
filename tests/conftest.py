"""What every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from entmtp.target.embedded import EMBEDDED, fetched_embedded
from fake_package import only_find_links

if TYPE_CHECKING:
    from entmtp.target.model import TargetModel

SMOLLM2 = "smollm2-135m"

# The same examples on every machine; with ENTMTP_FUZZ=1 new ones every time.
settings.register_profile(
    "entmtp", derandomize="ENTMTP_FUZZ" not in os.environ, deadline=None, database=None
)
settings.load_profile("entmtp")

# Commands of tests run tiny models once, and an export would take longer than all the rest.
os.environ["ENTMTP_RUNTIME"] = "eager"

# One thread: sums in one order whatever the machine, and nothing else on it is disturbed.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The converted embedded model, for tests that are about its files."""
    folder = fetched_embedded(EMBEDDED[SMOLLM2])
    if folder is None:
        pytest.skip(f"{SMOLLM2} is not in the cache: entmtp fetch {SMOLLM2}")
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> TargetModel:
    """The embedded model in float32, in which the law holds without exception."""
    from entmtp.target.load import load_target

    return load_target(SMOLLM2, dtype="float32")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ENTMTP_CACHE", str(folder))
    return folder


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only ones that pip finds."""
    folder = tmp_path / "links"
    folder.mkdir()
    only_find_links(folder, monkeypatch)
    return folder
