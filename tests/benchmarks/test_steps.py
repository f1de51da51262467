"""The scripts that time steps, dry, on a tiny model: what they write, and what they judge."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from entmtp.scheduler.base import Signals
from entmtp.target import TargetModel
from entmtp.trees import ROOT, chain, full
from fixtures import tiny_model
from scripts import run_script, script, tiny_heads_folder, tiny_model_folder


def test_rows_are_kept_for_the_same_settings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = script("kept", monkeypatch)
    out = tmp_path / "result.json"
    kept.Kept(out, {"a": 1}).add("x", [1.5])
    part = tmp_path / "result.json.part"
    with part.open("a", encoding="utf-8") as file:
        file.write('["y", [2')  # killed in the middle of a row
    assert kept.Kept(out, {"a": 1}).rows == {"x": [1.5]}
    assert kept.Kept(out, {"a": 2}).rows == {}
    kept.Kept(out, {"a": 2}).finish({"done": True})
    assert json.loads(out.read_text()) == {"done": True}
    assert not part.exists()


def test_settings_name_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = script("kept", monkeypatch)
    flags = kept.Namespace(out=Path("/x/y"), gguf=Path("/x/z"), prompts=["/p/q", "set"], limit=3)
    assert kept.settings_of(flags) == {"gguf": "z", "prompts": ["q", "set"], "limit": 3}


def test_floor_measures_bandwidth_and_steps_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = script("floor", monkeypatch)
    flags = ["--model", str(tiny_model_folder()), "--runs", "eager:float32", "--context", "8"]
    flags += ["--repeats", "2", "--buffer-mebibytes", "1"]
    content = run_script(floor, flags, tmp_path / "floor.json", monkeypatch)
    [run] = content["runs"]
    for condition in ("running", "behind_a_sweep"):
        figures = run[condition]
        assert set(figures["ratios"]) == set(figures["is_within"]) == set(content["limits"])
        assert all(len(times) == 2 for times in figures["times"].values())
    rate = content["bandwidth"]["best_bytes_per_second"]
    assert run["floor_milliseconds"] == pytest.approx(1e3 * run["weight_bytes"] / rate)


def test_a_step_reads_an_embedding_only_where_it_is_the_output_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floor = script("floor", monkeypatch)
    sizes = []
    for is_tied in (True, False):
        model = tiny_model(vocab_size=258, tie_word_embeddings=is_tied)
        sizes.append(floor.num_weights(TargetModel.from_transformers(model)))
    assert (
        sizes[0] == sizes[1] == 258 * 64 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 7 * 64
    )


def test_ratios_of_rows_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy moment that hits both of a round changes nothing.
    assert script("floor", monkeypatch).paired([2.0, 200.0, 2.0], [1.0, 100.0, 2.0]) == 2.0


def test_context_and_batch_are_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("context_and_batch", monkeypatch)
    picture = tmp_path / "picture.png"
    flags = ["--model", str(tiny_model_folder()), "--runs", "eager:float32", "--contexts", "8"]
    flags += ["20", "4000", "--batches", "1", "3", "--batch-context", "8", "--repeats", "1"]
    content = run_script(
        module, [*flags, "--picture", str(picture)], tmp_path / "c.json", monkeypatch
    )
    assert [row["context"] for row in content["contexts"]] == [8, 20], "4000 is too long for it"
    assert [row["batch"] for row in content["batches"]] == [1, 3]
    assert content["throughput_over_first_batch"]["eager:float32"]["tree"][0] == 1
    # Twice 3 layers of 2 heads of 16 float32, for at least 3 x 8 tokens.
    assert content["batches"][1]["cache_bytes"]["eager:float32"] >= 24 * 2 * 3 * 2 * 16 * 4
    assert picture.read_bytes().startswith(b"\x89PNG")


@torch.inference_mode()
def test_a_timed_step_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("context_and_batch", monkeypatch)
    kinds = [module.Kind("plain", ROOT), module.Kind("tree", full(2, 2))]
    measured = module.Measured("eager:float32", str(tiny_model_folder()), kinds)
    measured.multiply(3, 10)
    keys = measured.cache.layer(2)[0][:, :, :10].clone()
    assert torch.equal(keys[0], keys[2])
    for kind in kinds:
        assert measured.step(kind) > 0
    assert measured.cache.lengths == [10, 10, 10]
    assert torch.equal(measured.cache.layer(2)[0][:, :, :10], keys)


def test_a_long_run_switches_trees_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("long_run", monkeypatch)
    flags = ["--model", str(tiny_model_folder()), "--heads", str(tiny_heads_folder())]
    flags += ["--runtime", "eager", "--dtype", "float32", "--steps", "40", "--max-tokens", "16"]
    content = run_script(module, flags, tmp_path / "long.json", monkeypatch)
    assert content["num_steps"] == 40
    assert len(content["num_nodes_of_trees"]) == 8
    assert content["num_prefills"] >= 2
    assert len({one["num_nodes"] for one in content["worst"]}) > 2
    assert len(content["memory"]["resident_bytes"]) == 40


def test_no_tree_comes_twice_running(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = script("long_run", monkeypatch).SwitchingPolicy([chain(n) for n in range(1, 9)])
    selection = policy.begin(0)
    drawn = [selection.widest(Signals(step, 0)) for step in range(200)]
    assert all(one != other for one, other in pairwise(drawn))
    assert set(drawn) == set(policy.trees)


def test_a_slow_step_and_a_leak_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("long_run", monkeypatch)
    draw = random.Random(0)
    steps = [module.Step(10 + draw.random(), 10.0, 4, 20) for _ in range(100)]
    flat = [(place, 1_000_000 + draw.randrange(2000)) for place in range(100)]
    good = module.judge(steps, flat)
    assert good["is_even"]
    assert good["memory"]["is_flat"]
    steps[70] = module.Step(60.0, 10.0, 4, 20)
    bad = module.judge(steps, [(place, size + 300 * place) for place, size in flat])
    assert not bad["is_even"]
    assert bad["worst"][0]["step"] == 70
    assert bad["memory"]["growth"] == pytest.approx(0.027, abs=0.003)
    assert not bad["memory"]["is_flat"]
