"""Files that are cut off, overwritten or hold other types than they should: one line, always.

Heads have a test of their own. What loads in spite of a change is fine: not every byte matters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from entmtp.data.prompts import load_prompts
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import EntmtpError
from entmtp.target import embedded
from entmtp.target.embedded import EmbeddedModel, fetch_embedded
from entmtp.target.load import load_target
from entmtp.trees import read_tree
from fake_package import member_of
from saved import CHAT_TEMPLATE, save_model
from tiny_gguf import write_tiny_gguf

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
FILES += ("tokenizer_config.json",)


@contextmanager
def one_line_at_most() -> Iterator[None]:
    """What goes wrong is an error for the user, of one line."""
    said = "nothing"
    try:
        yield
    except EntmtpError as error:
        said = str(error)
    assert said.strip()
    assert "\n" not in said


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


# Damage ---------------------------------------------------------------------------------------

Damage = Callable[[bytes], bytes]
places = st.floats(0, 1, exclude_max=True)
"""Where in a file, from its beginning to its end."""
cuts: st.SearchStrategy[Damage] = places.map(lambda at: lambda raw: raw[: int(at * len(raw))])
strange: st.SearchStrategy[Damage] = st.binary(max_size=64).map(lambda new: lambda raw: new)


@st.composite
def overwritten(draw: st.DrawFn, within: float = 1.0) -> Damage:
    """Some bytes in the first part of the file are others."""
    changes = draw(st.lists(st.tuples(places, st.binary(min_size=1, max_size=8)), min_size=1))

    def damage(raw: bytes) -> bytes:
        for at, new in changes:
            start = int(at * within * len(raw))
            raw = raw[:start] + new + raw[start + len(new) :]
        return raw

    return damage


damages = st.one_of(cuts, strange, overwritten(), overwritten(within=0.1))

json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**30)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=4,
)


@st.composite
def retyped(draw: st.DrawFn) -> Damage:
    """JSON of which one value, at any depth, is another or gone."""
    picks, value = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4)), draw(json_values)
    is_gone = draw(st.booleans())

    def damage(raw: bytes) -> bytes:
        content = json.loads(raw)
        holder, key = {"": content}, ""
        for pick in picks:
            inner: Any = holder[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            holder, key = inner, keys[pick % len(keys)]
        if is_gone:
            del holder[key]
        else:
            holder[key] = value
        return json.dumps(content if holder is not content or holder else {}).encode()

    return damage


# Files ----------------------------------------------------------------------------------------


@cache
def gguf_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        return write_tiny_gguf(Path(folder) / "tiny.gguf").read_bytes()


@cache
def model_files() -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        folder = save_model(Path(name), chat_template=CHAT_TEMPLATE)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def put_model(folder: Path, changed: str, damage: Damage) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in model_files().items():
        (folder / name).write_bytes(damage(content) if name == changed else content)
    return folder


def load_and_use(spec: Path) -> None:
    """What loads must also work."""
    target = load_target(str(spec), dtype="float32")
    Engine(target).generate("hello" if target.tokenizer else [1], GenerationParams(2))


@given(damages)
@settings(max_examples=40)
def test_gguf_files(scratch: Path, damage: Damage) -> None:
    file = scratch / "broken.gguf"
    file.write_bytes(damage(gguf_bytes()))
    with one_line_at_most():
        load_and_use(file)


@given(damages)
@settings(max_examples=10)
def test_conversion_of_the_embedded_model(scratch: Path, damage: Damage) -> None:
    """Whole in the cache or not at all."""
    content = damage(gguf_bytes())
    model = EmbeddedModel("tiny", "random", member_of(content), eos_ids=(2, 0))

    def bring(_: object, folder: Path) -> Path:
        (folder / "tiny.gguf").write_bytes(content)
        return folder / "tiny.gguf"

    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as cache_folder:
        patch.setenv("ENTMTP_CACHE", cache_folder)
        patch.setattr(embedded, "bring", bring)
        with one_line_at_most():
            fetch_embedded(model)
        names = [path.name for path in Path(cache_folder).iterdir()]
        assert names in ([], ["tiny"])


@given(st.sampled_from(FILES), damages)
@settings(max_examples=60)
def test_model_folders(scratch: Path, name: str, damage: Damage) -> None:
    with one_line_at_most():
        load_and_use(put_model(scratch / "model", name, damage))


def config_with(key: str, value: object) -> Damage:
    return lambda raw: json.dumps(json.loads(raw) | {key: value}).encode()


@given(st.sampled_from([name for name in FILES if name.endswith(".json")]), retyped())
@example("generation_config.json", config_with("eos_token_id", [[1]]))
@example("generation_config.json", config_with("eos_token_id", 2.5))
@example("config.json", config_with("sliding_window", "wide"))
@example("tokenizer_config.json", config_with("model_max_length", "long"))
@example("config.json", config_with("max_position_embeddings", 10**30))
@example("config.json", config_with("num_hidden_layers", 10**30))
@example("config.json", lambda raw: b"[" * 100_000)
@example("tokenizer.json", config_with("version", None))
@settings(max_examples=60)
def test_model_folders_with_other_values(scratch: Path, name: str, damage: Damage) -> None:
    with one_line_at_most():
        load_and_use(put_model(scratch / "model", name, damage))


PROMPTS = [
    {"id": "a", "prompt": "hello"},
    {"question_id": 1, "category": "math", "turns": ["one", "two"]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
    {"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
]


@given(st.sampled_from(PROMPTS), st.one_of(damages, retyped()))
@example(PROMPTS[0], lambda raw: b"\xff\xfe" + raw)
@example(PROMPTS[2], lambda raw: raw.replace(b'"system"', b"[]"))
@example(PROMPTS[0], lambda raw: raw.replace(b'"a"', b'"two\\nlines, \\ud800"'))
@example(PROMPTS[0], lambda raw: raw.replace(b'"a"', b"1" * 5000))
def test_prompt_files(scratch: Path, row: dict[str, Any], damage: Damage) -> None:
    file = scratch / "prompts.jsonl"
    file.write_bytes(damage(json.dumps(row).encode()))
    with one_line_at_most():
        for prompt in load_prompts(str(file)):
            # Later errors and tables name prompts by it.
            assert (prompt.id + prompt.kind).isprintable()
            prompt.text.encode()


@given(st.one_of(damages, retyped()))
@example(lambda raw: b"[" * 100_000)
@example(lambda raw: b"[[" + b"1" * 5000 + b"]]")
def test_tree_files(scratch: Path, damage: Damage) -> None:
    file = scratch / "tree.json"
    file.write_bytes(damage(json.dumps([[0], [1], [0, 0], [0, 1], [0, 0, 2]]).encode()))
    with one_line_at_most():
        read_tree(file)
