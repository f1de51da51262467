"""Whatever lies in the files of heads: they load, or one line says what is wrong."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_heads import random_heads
from entmtp.errors import EntmtpError
from entmtp.heads import (
    StaticTree,
    count_heads,
    default_tree,
    describe_heads,
    load_heads,
    save_heads,
    write_static_trees,
)
from entmtp.trees import chain, full
from layouts import FULL, REDUCED, RING

Write = Callable[[Path], Path]


def own(kind: str) -> Write:
    def write(folder: Path) -> Path:
        save_heads(random_heads(RING, kind), folder, RING, {"seed": 1}, torch.float32)
        write_static_trees(folder, [StaticTree(chain(2), 1.5), StaticTree(full(2, 2), 2.0)])
        return folder

    return write


LAYOUTS: dict[str, Write] = {
    **{f"own {kind}": own(kind) for kind in ("medusa", "hydra", "hydra++")},
    **FULL,
    **REDUCED,
}
SMALL = [
    "own medusa",
    "own hydra++",
    "medusa-v1 pickle",
    "medusa-v1 old pickle",
    "medusa-v1 in shards",
    "medusa-v2",
    "vllm token_map",
    "hydra++ blocks stored once",
]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each layout, written once."""
    folder = tmp_path_factory.mktemp("originals")
    for name, write in LAYOUTS.items():
        write(folder / name.replace(" ", "-"))
    return folder


def fresh(originals: Path, layout: str, tmp_path: Path) -> Path:
    copy = tmp_path / "heads"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(originals / layout.replace(" ", "-"), copy)
    return copy


def loads_or_says_why(place: Path) -> None:
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (count_heads, default_tree, describe_heads, lambda p: load_heads(p, RING)):
            try:
                read(place)
            except EntmtpError as error:
                said.append(str(error))
    for line in said:
        assert "\n" not in line
        assert len(line) < 1500


def files_of(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and path.suffix != ".png")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_truncated_anywhere(layout: str, originals: Path, tmp_path: Path) -> None:
    for file in files_of(fresh(originals, layout, tmp_path)):
        data = file.read_bytes()
        for share in (0.0, 0.01, 0.3, 0.7, 0.99):
            file.write_bytes(data[: int(len(data) * share)])
            loads_or_says_why(file.parent)
        file.write_bytes(data[:-1])
        loads_or_says_why(file.parent)
        file.write_bytes(data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_changed_at_random(layout: str, originals: Path, tmp_path: Path) -> None:
    dice = random.Random(layout)
    place = fresh(originals, layout, tmp_path)
    for file in files_of(place):
        data = file.read_bytes()
        # Headers stand in front, and a zip file's index at the end.
        for start, stop in ((0, 400), (len(data) - 400, len(data)), (0, len(data))):
            changed = bytearray(data)
            for _ in range(4):
                changed[dice.randrange(max(0, start), min(stop, len(data)))] = dice.randrange(256)
            file.write_bytes(bytes(changed))
            loads_or_says_why(place)
        file.write_bytes(dice.randbytes(300))
        loads_or_says_why(place)
        file.write_bytes(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("layout", SMALL)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_json_of_the_wrong_types(
    layout: str, originals: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = fresh(originals, layout, tmp_path_factory.getbasetemp() / "json-fuzz")
    file = data.draw(st.sampled_from([f for f in files_of(place) if f.suffix == ".json"]))
    content = json.loads(file.read_text())
    inside: Any = content
    while isinstance(inside, dict | list) and inside and data.draw(st.booleans()):
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inside[key], dict | list) or data.draw(st.booleans()):
            inside[key] = data.draw(VALUES)
            break
        inside = inside[key]
    else:
        content = data.draw(VALUES)
    file.write_text(json.dumps(content))
    loads_or_says_why(place)


@pytest.mark.parametrize("file", ["heads.json", "trees.json", "config.json"])
def test_json_that_is_too_deep_or_too_long(file: str, originals: Path, tmp_path: Path) -> None:
    place = fresh(originals, "own medusa", tmp_path)
    for text in ("[" * 100_000, '{"schema_version": ' + "9" * 5000 + "}", "\xff", ""):
        (place / file).write_text(text, encoding="latin-1")
        loads_or_says_why(place)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_draft_heads", 10**9),
        ("num_layers", 10**9),
        ("draft_vocab_size", 10**12),
        ("draft_vocab_size", 3),
        ("kind", "hydra"),
        ("output", "projected"),
    ],
)
def test_sizes_that_no_file_holds_are_refused_before_they_are_made(
    field: str, value: object, originals: Path, tmp_path: Path
) -> None:
    place = fresh(originals, "own medusa", tmp_path)
    description = json.loads((place / "heads.json").read_text())
    description["config"][field] = value
    (place / "heads.json").write_text(json.dumps(description))
    with pytest.raises(EntmtpError):
        load_heads(place, RING)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 0),
        ("num_kv_heads", 3),
        ("head_dim", 7),
        ("intermediate_size", 10**12),
        ("rope_theta", -1.0),
        ("rms_norm_eps", float("nan")),
        ("max_length", -5),
    ],
)
def test_prefix_layers_that_cannot_be_are_refused(
    field: str, value: float, originals: Path, tmp_path: Path
) -> None:
    place = fresh(originals, "own hydra++", tmp_path)
    description = json.loads((place / "heads.json").read_text())
    description["config"]["prefix"][field] = value
    (place / "heads.json").write_text(json.dumps(description))
    with pytest.raises(EntmtpError):
        load_heads(place, RING)
