"""Trees in the forms of other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.errors import BadInput, EntmtpError, TreeError
from entmtp.trees import (
    FORMS,
    ROOT,
    Tree,
    chain,
    eagle_tree,
    format_tree,
    full,
    medusa_63,
    parse_tree,
    read_tree,
    tree_by_name,
    write_tree,
)

GAPS = Tree.from_paths([[0], [3], [3, 1], [3, 1, 0]])


@pytest.mark.parametrize("form", ["paths", "medusa", "vllm"])
@pytest.mark.parametrize("tree", [ROOT, chain(3), medusa_63(), GAPS], ids=str)
def test_forms_that_hold_a_tree_give_it_back(form: str, tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "tree"
    write_tree(tree, form, file)
    assert read_tree(file) == tree
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_forms_are_those_of_the_programs() -> None:
    tree = Tree.from_paths([[0], [1], [0, 0]])
    assert format_tree(tree, "paths") == "[[0], [1], [0, 0]]"
    assert format_tree(tree, "medusa") == "medusa_choices = [[0], [1], [0, 0]]"
    assert json.loads(format_tree(tree, "vllm")) == {
        "num_speculative_tokens": 3,
        "speculative_token_tree": "[(0,), (1,), (0, 0)]",
    }
    assert json.loads(format_tree(tree, "eagle")) == {"topk": 2, "steps": 2, "num_draft_tokens": 4}


@pytest.mark.parametrize(
    "text",
    [
        "[[0], [1], [0, 0]]",
        "[(0,), (1,), (0, 0)]",
        '"[(0,), (1,), (0, 0)]"',
        '{"paths": [[0], [1], [0, 0]], "num_nodes": 4}',
        '{"speculative_config": {"speculative_token_tree": "[(0,), (1,), (0, 0)]"}}',
        '{"speculative_token_tree": [[0], [1], [0, 0]]}',
        "# of a blog\nimport os\nchoices = [[0], [1], [0, 0]]  # best\n",
    ],
)
def test_the_text_shows_its_form(text: str) -> None:
    assert parse_tree(text) == Tree.from_paths([[0], [1], [0, 0]])


def test_one_of_several_python_trees_is_picked_by_name(tmp_path: Path) -> None:
    file = tmp_path / "medusa_choices.py"
    file.write_text("mc_sim = [(0,), (0, 0)]\nwide = [[0], [1]]\n")
    assert tree_by_name(f"{file}:mc_sim") == chain(2)
    assert tree_by_name(f"{file}:wide") == full(2, 1)
    for spec in (str(file), f"{file}:typo"):
        with pytest.raises(TreeError, match="it has mc_sim, wide: put a colon and one of them"):
            tree_by_name(spec)


@pytest.mark.parametrize(
    ("triple", "tree"),
    [
        ((1, 4, 5), chain(4)),
        ((1, 4, 3), chain(2)),
        ((3, 1, 4), full(3, 1)),
        ((2, 2, 7), full(2, 2)),
        ((5, 5, 1), ROOT),
        # Halves: 1/2, 1/4 twice, 1/8 four times; of two equal ones the shallower.
        ((4, 3, 8), Tree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])),
        # Only two nodes of a level are expanded.
        (
            (2, 3, 11),
            Tree.from_paths([*full(2, 2).paths, *((0, p, r) for p in (0, 1) for r in (0, 1))]),
        ),
    ],
)
def test_eagle_triples(triple: tuple[int, int, int], tree: Tree) -> None:
    assert eagle_tree(*triple) == tree
    assert tree_by_name("eagle-{}x{}x{}".format(*triple)) == tree
    names = ("topk", "steps", "num_draft_tokens")
    assert parse_tree(json.dumps(dict(zip(names, triple, strict=True)))) == tree
    sglang = ("speculative_eagle_topk", "speculative_num_steps", "speculative_num_draft_tokens")
    assert parse_tree(json.dumps(dict(zip(sglang, triple, strict=True)))) == tree


@pytest.mark.parametrize(
    ("triple", "words"),
    [
        ((0, 1, 2), "each must be at least 1"),
        ((2, 2, 8), "asks for 7 drafts; 2 children of 2 nodes over 2 levels are 6"),
        ((99, 99, 9999), "at most 1024 are read"),
    ],
)
def test_triples_that_are_no_tree(triple: tuple[int, int, int], words: str) -> None:
    with pytest.raises(TreeError, match=words):
        eagle_tree(*triple)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 40))
def test_a_triple_gives_as_many_nodes_as_it_says_or_none(k: int, steps: int, nodes: int) -> None:
    if nodes - 1 > k + (steps - 1) * k * k:
        with pytest.raises(TreeError):
            eagle_tree(k, steps, nodes)
        return
    tree = eagle_tree(k, steps, nodes)
    assert tree.num_nodes == nodes
    assert tree.depth <= steps
    assert tree.max_rank < k
    for depth in range(tree.depth):
        assert len({p[:-1] for p in tree.paths if len(p) == depth + 1}) <= k
    triple = json.loads(format_tree(tree, "eagle")) if nodes > 1 else {"num_draft_tokens": 1}
    assert triple["num_draft_tokens"] == nodes


def test_what_a_form_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="0 draft tokens is no EAGLE tree"):
        format_tree(ROOT, "eagle")
    with pytest.raises(TreeError, match="2000 draft tokens is no EAGLE tree"):
        format_tree(chain(2000), "eagle")
    with pytest.raises(BadInput, match="unknown form 'tensorrt' of a tree; expected one of paths"):
        format_tree(ROOT, "tensorrt")
    with pytest.raises(BadInput, match="cannot write"):
        write_tree(ROOT, "paths", tmp_path / "nowhere" / "tree.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["paths", "speculative_token_tree", "topk", "steps", "num_draft_tokens"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
HOSTILE = [
    "[" * 100_000,
    "(" * 100_000,
    "-" * 100_000 + "1",
    "1" + "+1" * 50_000,
    f"[[{'9' * 5000}]]",
    f"[[0x{'f' * 5000}]]",
    f"[[0x{'f' * 5000}, 0]]",
    f"{{'topk': 0x{'f' * 5000}, 'steps': 1, 'num_draft_tokens': 2}}",
    f'{{"topk": 1{"0" * 4000}, "steps": 1, "num_draft_tokens": 0}}',
    "a = __import__('os').system('true')",
    "[print('x')]",
    "\x00",
    "x" * 2_000_000,
    "[[1e999]]",
    "[[NaN]]",
    "[[true]]",
    "[[-1]]",
    "[[0], [0]]",
    "[[0, 0]]",
    '{"topk": true, "steps": 1, "num_draft_tokens": 2}',
    '{"topk": 2}',
    '{"speculative_token_tree": 3}',
    '{"speculative_token_tree": "while True: pass"}',
    '"[(0,), (0"',
    "a = b = [[0]]\nc = [[1]]",
    "'\\d'",
]


def is_a_tree_or_one_line(read: Callable[[], Tree]) -> None:
    said = ""
    try:
        tree = read()
    except EntmtpError as error:
        said = str(error)
    if said:
        assert "\n" not in said
        assert len(said) < 600
        return
    assert Tree.from_paths(tree.paths) == tree
    assert {parse_tree(format_tree(tree, form)) for form in FORMS if form != "eagle"} == {tree}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_texts_end_in_one_line(text: str, tmp_path: Path) -> None:
    is_a_tree_or_one_line(lambda: parse_tree(text))
    (tmp_path / "tree").write_text(text)
    with pytest.raises(TreeError, match="tree"):
        tree_by_name(str(tmp_path / "tree"))


@settings(max_examples=80, deadline=None)
@given(JSON.map(json.dumps) | JSON.map(repr) | st.text(max_size=40))
def test_any_text_is_a_tree_or_one_line(text: str) -> None:
    is_a_tree_or_one_line(lambda: parse_tree(text))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_tree_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "tree-bytes"
    file.write_bytes(data)
    is_a_tree_or_one_line(lambda: read_tree(file))
