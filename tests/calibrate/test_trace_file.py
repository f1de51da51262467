"""Traces on disk: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from draft_heads import random_heads
from entmtp.calibrate.collect import TraceConfig
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.trace_file import StoredTrace, read_trace, write_trace
from entmtp.errors import ArtefactError
from entmtp.trees import chain
from rank_traces import ANSWERS, PROMPTS, collect, talker

OWN = Origin("a", "b", "float32", "eager", "cpu")
TRACE = RankTrace(
    ranks=np.arange(10, dtype=np.int32).reshape(5, 2),
    wide_tree=chain(2),
    log_probs=-np.arange(15, dtype=np.float32).reshape(5, 3),
    root_probability=np.linspace(0.1, 1, 5, dtype=np.float32),
    root_entropy=np.linspace(3, 0, 5, dtype=np.float32),
    row_starts=np.array([0, 2, 5]),
    prompt_lengths=np.array([7, 8]),
    kinds=("code", ""),
)
STORED = StoredTrace(TRACE, OWN, {"temperature": 0.7, "seed": 3})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    write_trace(path, STORED)
    stored = read_trace(path, OWN)
    assert (stored.origin, stored.answers) == (OWN, STORED.answers)
    for field in fields(RankTrace):
        mine, theirs = getattr(TRACE, field.name), getattr(stored.trace, field.name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
    assert stored.trace.remaining.tolist() == [1, 0, 2, 1, 0]
    before = path.read_bytes()
    write_trace(path, stored)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["trace.safetensors"]


@pytest.mark.parametrize("field", Origin._fields)
def test_T07_a_trace_of_something_else_is_refused_by_name(tmp_path: Path, field: str) -> None:
    write_trace(tmp_path / "trace", STORED)
    other = OWN._replace(**{field: "other"})
    was = getattr(OWN, field)
    with pytest.raises(ArtefactError, match=rf"{field.replace('_', ' ')} {was}, not other.*again"):
        read_trace(tmp_path / "trace", other)


def test_T07_other_heads_and_other_weights_have_other_names() -> None:
    target, other = talker(), talker(seed=1)
    own = Origin.of(target, random_heads(target, "hydra"))
    assert own == Origin.of(target, random_heads(target, "hydra"))
    for heads in (random_heads(target, "hydra", seed=2), random_heads(target, "medusa")):
        assert Origin.of(target, heads).heads != own.heads
    assert Origin.of(other, random_heads(target, "hydra")).model != own.model


BROKEN = {
    "not there": lambda path: path.unlink(),
    "no file of ours": lambda path: path.write_bytes(b"{}"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_T09_a_broken_file_is_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace"
    write_trace(path, STORED)
    BROKEN[name](path)
    with pytest.raises(ArtefactError, match=r"trace is broken \(.+\); calibrate again") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


WRONG = {
    "log_probs has shape": {"log_probs": TRACE.log_probs[:, :2]},
    "root_entropy has shape": {"root_entropy": TRACE.root_entropy[:4]},
    "row_starts has shape": {"row_starts": np.array([0, 5])},
    "row_starts do not divide 5": {"row_starts": np.array([0, 5, 5])},
    "ranks are negative": {"ranks": TRACE.ranks - 1},
    "ranks holds what is none": {"ranks": TRACE.ranks + 2**30},
    "log_probs holds what is none": {"log_probs": TRACE.log_probs * np.float32("nan")},
    "root_probability holds what is none": {"root_probability": TRACE.root_probability + 1},
    "root_entropy holds what is none": {"root_entropy": TRACE.root_entropy + np.float32("inf")},
    "prompt_lengths holds what is none": {"prompt_lengths": -TRACE.prompt_lengths},
    "prompt_lengths is of int32": {"prompt_lengths": TRACE.prompt_lengths.astype(np.int32)},
}


@pytest.mark.parametrize("words", WRONG)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, words: str) -> None:
    path = tmp_path / "trace"
    write_trace(path, STORED)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file({**load_file(path), **WRONG[words]}, path, metadata)
    with pytest.raises(ArtefactError, match=words):
        read_trace(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 99}, "has schema version 99, this program reads 1; calibrate again"),
        ({"wide_tree": [[0, 1]]}, r"path \[0, 1\] has no parent"),
        ({"kinds": 3}, "broken"),
        ({"answers": {"temperature": 10**400}}, "answers.temperature is 1000"),
        ({"answers": {"temperature": float("nan")}}, "answers.temperature is nan"),
        ({"kinds": ["\ud800", ""]}, r"kinds\[0\] holds half a surrogate pair"),
        ({"origin": {"model": "a"}}, "broken"),
    ],
)
def test_metadata_that_does_not_fit_is_named(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    path = tmp_path / "trace"
    write_trace(path, STORED)
    with safe_open(path, "np") as file:
        content = json.loads(file.metadata()["trace"])
    save_file(load_file(path), path, {"trace": json.dumps({**content, **changes})})
    with pytest.raises(ArtefactError, match=words):
        read_trace(path)


def test_a_trace_says_what_it_was_made_with(tmp_path: Path) -> None:
    target = talker()
    heads = random_heads(target, "hydra")
    config = TraceConfig(replace(ANSWERS, max_tokens=3, temperature=0.5), chain(1))
    stored = collect(target, heads, tmp_path / "trace", config)
    again = read_trace(tmp_path / "trace", Origin.of(target, heads))
    assert again.answers == stored.answers
    assert stored.answers["temperature"] == 0.5
    assert stored.answers["num_prompts"] == len(PROMPTS)
    assert again.trace.kinds == stored.trace.kinds
    assert set(again.trace.kinds) == {"kind 0", "kind 1"}
    assert sorted(again.trace.prompt_lengths) == sorted(len(p.text) for p in PROMPTS)
