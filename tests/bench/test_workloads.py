"""Which prompts are measured."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from entmtp.bench import load_workload
from entmtp.bench.workloads import even_quotas
from entmtp.errors import BadInput


def write(path: Path, kinds: str) -> str:
    """A file with a prompt for each letter, which is its kind."""
    rows = [
        json.dumps({"id": f"{path.stem}/{i}", "kind": k, "prompt": "x"})
        for i, k in enumerate(kinds)
    ]
    path.write_text("\n".join(rows))
    return str(path)


def test_all_prompts_without_a_limit(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", "xyz"), write(tmp_path / "b.jsonl", "x")]
    assert [prompt.id for prompt in load_workload(files)] == ["a/0", "a/1", "a/2", "b/0"]


def test_a_limit_is_even_over_files_and_kinds(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.jsonl", 90 * "x" + 10 * "y"),
        write(tmp_path / "b.jsonl", 50 * "z"),
        write(tmp_path / "c.jsonl", "zz"),
    ]
    drawn = load_workload(files, 22)
    assert Counter(prompt.id[0] for prompt in drawn) == {"a": 10, "b": 10, "c": 2}
    assert Counter(prompt.kind for prompt in drawn if prompt.id[0] == "a") == {"x": 5, "y": 5}
    # From end to end, and the same every time.
    places = [prompt.id for prompt in drawn if prompt.kind == "x"]
    assert places == ["a/0", "a/18", "a/36", "a/54", "a/72"]
    assert load_workload(files, 22) == drawn


@pytest.mark.parametrize(
    ("sizes", "total", "quotas"),
    [([9, 9, 9], 7, [3, 2, 2]), ([1, 9], 6, [1, 5]), ([2, 2], 99, [2, 2]), ([], 3, [])],
)
def test_quotas(sizes: list[int], total: int, quotas: list[int]) -> None:
    assert even_quotas(sizes, total) == quotas


def test_P09_a_limit_of_nothing_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a limit of 0 prompts"):
        load_workload([write(tmp_path / "a.jsonl", "x")], 0)


def test_the_packaged_set_is_even() -> None:
    drawn = load_workload(["packaged"], 6)
    assert Counter(prompt.kind for prompt in drawn) == {"code": 2, "math": 2, "chat": 2}
