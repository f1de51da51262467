"""What `auto` picks, how it finds out, and what it says."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from entmtp.data.cache import MANIFEST
from entmtp.errors import ModelRefused
from entmtp.target import TargetModel
from entmtp.target.runtimes import choice
from entmtp.target.runtimes.choice import fastest
from fixtures import tiny, tiny_model
from runtimes import graphs_in

MAKE = Callable[[], TargetModel]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> Iterator[Path]:
    with graphs_in(tmp_path):
        yield tmp_path


class Slow(TargetModel):
    """Takes 5 ms more for a step than it needs."""

    runtime = "slow"

    def forward(self, *args: object) -> torch.Tensor:
        time.sleep(0.005)
        return super().forward(*args)  # type: ignore[arg-type]


def slow() -> TargetModel:
    return Slow.from_transformers(tiny_model())


def quick() -> TargetModel:
    return tiny()


def broken() -> TargetModel:
    raise ModelRefused("no such operation")


def pick(candidates: dict[str, MAKE], fingerprint: str = "f") -> tuple[str, list[str]]:
    said: list[str] = []
    target = fastest(candidates, fingerprint, "float32", said.append)
    return target.runtime, said


def test_the_fastest_wins_and_the_probe_is_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked, said = pick({"slow": slow, "eager": quick})
    assert picked == "eager"
    assert said[0] == "probing the runtimes slow, eager"
    assert said[1].startswith("runtime eager: ")
    assert " ms for 1 and 8 rows (slow " in said[1]
    monkeypatch.setattr(choice, "probe", lambda _: pytest.fail("it was probed before"))
    picked, said = pick({"slow": broken, "eager": quick})  # the loser is not even made
    assert picked == "eager"
    assert len(said) == 1
    assert said[0].endswith("as probed before")
    assert len(list(kept.glob("probe-*"))) == 1


def test_other_weights_candidates_or_threads_are_probed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both: dict[str, MAKE] = {"slow": slow, "eager": quick}
    assert "probing" in pick(both)[1][0]
    assert "probing" not in pick(both)[1][0]
    assert "probing" in pick(both, "of another model")[1][0]
    assert "probing" in pick({**both, "third": slow})[1][0]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert "probing" in pick(both)[1][0]


def test_a_candidate_that_cannot_be_made_is_said_aloud(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        picked, said = pick({"fast": broken, "eager": quick})
    assert picked == "eager"
    assert said == ["runtime eager: nothing else is ready"]
    assert "falling back from runtime fast: no such operation" in caplog.text
    assert not list(kept.glob("probe-*"))  # it may go better another time
    with pytest.raises(ModelRefused, match="no such operation"):
        pick({"fast": broken})


def test_a_winner_that_is_broken_today_is_replaced_aloud(caplog: pytest.LogCaptureFixture) -> None:
    pick({"eager": quick, "slow": slow})
    with caplog.at_level(logging.WARNING):
        picked, said = pick({"eager": broken, "slow": slow})
    assert picked == "slow"
    assert said[-1].startswith("runtime slow: ")
    assert "falling back from runtime eager" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        f'{{"slow": [1, 1], "eager": [1, 1{"0" * 400}]}}',
        '{"slow": [1, 1], "eager": [1, NaN]}',
        '{"slow": [1, 1], "eager": [1, -1]}',
        '{"slow": [1, 1], "eager": [1]}',
        '{"slow": [1, 1], "eager": ["1", "1"]}',
        "[1]",
        "[" * 100_000,
    ],
)
def test_times_that_cannot_be_are_probed_anew(kept: Path, text: str) -> None:
    pick({"slow": slow, "eager": quick})
    (path,) = kept.glob("probe-*/times.json")
    path.write_text(text)
    note = path.with_name(MANIFEST)
    manifest = json.loads(note.read_text())
    manifest["files"][path.name] = path.stat().st_size
    note.write_text(json.dumps(manifest))
    assert pick({"slow": slow, "eager": quick})[1][0] == "probing the runtimes slow, eager"


def test_a_broken_file_of_times_is_probed_anew(kept: Path) -> None:
    pick({"slow": slow, "eager": quick})
    (path,) = kept.glob("probe-*/times.json")
    path.write_text("x" * path.stat().st_size)
    assert "probing" in pick({"slow": slow, "eager": quick})[1][0]
