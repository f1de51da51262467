"""Trees as other programs write them, read and written.

    paths    a JSON list of rank paths: [[0], [0, 0], [1]]
    medusa   Python, as Medusa's and Hydra's choices: name = [[0], [0, 0], [1]]
    vllm     {"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"}
    eagle    {"topk": 2, "steps": 2, "num_draft_tokens": 4}, SGLang's names too; the root counts

Knows: texts and files. Does not know: which tree is good for what.

An EAGLE triple is no tree but the bounds of one that is chosen anew each step: every level expands
its `topk` likeliest nodes, and the likeliest nodes of all are verified (METHOD §4). Read as a tree
it is the choice for ranks of which each is half as likely as the one before.
"""

from __future__ import annotations

import ast
import heapq
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from entmtp.errors import BadInput, TreeError
from entmtp.trees.tree import Path, Tree

MAX_TEXT = 1_000_000
"""Characters; Medusa's own file of nine trees has 9,000."""
MAX_DRAFT_TOKENS = 1024
"""Of an EAGLE triple."""
MAX_RANK = 1_000_000
"""No vocabulary has more tokens."""
_EXPECTED = "expected a list such as [[0], [0, 0], [1]]"
_EAGLE_KEYS = (
    ("topk", "speculative_eagle_topk"),
    ("steps", "speculative_num_steps"),
    ("num_draft_tokens", "speculative_num_draft_tokens"),
)


def read_tree(file: FilePath, name: str | None = None) -> Tree:
    """A tree from a file in any of the forms.

    Args:
        name: which of several, where the file is Python.

    Raises:
        TreeError: the file cannot be read, is in no such form, or its paths are no tree.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TreeError(f"cannot read tree file {file}: {error}") from error
    try:
        return parse_tree(text, name)
    except TreeError as error:
        raise TreeError(f"{file} {error}") from None


def parse_tree(text: str, name: str | None = None) -> Tree:
    """A tree from a text in any of the forms; which one, the text shows.

    Raises:
        TreeError: it is in none of them, or its paths are no tree.
    """
    if len(text) > MAX_TEXT:
        raise TreeError(f"has {len(text)} characters; {_EXPECTED}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        content = _literal(text, name, f"is not JSON ({error}); {_EXPECTED}")
    if isinstance(content, dict):
        return _from_object(content)
    if isinstance(content, str):
        content = _literal(content, None, f"holds the text {content[:40]!r}; {_EXPECTED}")
    if not isinstance(content, (list, tuple)):
        raise TreeError(f"holds a {type(content).__name__}; {_EXPECTED}")
    return _from_paths(content)


def eagle_tree(topk: int, steps: int, num_draft_tokens: int) -> Tree:
    """The tree of an EAGLE triple; `num_draft_tokens` counts the root, as SGLang does.

    Raises:
        TreeError: a number is not positive, or more nodes are asked for than are generated.
    """
    given = f"the triple topk {topk}, steps {steps}, num_draft_tokens {num_draft_tokens}"
    if min(topk, steps, num_draft_tokens) < 1:
        raise TreeError(f"{given} is no tree; each must be at least 1")
    count, most = num_draft_tokens - 1, _num_generated(topk, steps)
    if count > min(most, MAX_DRAFT_TOKENS):
        raise TreeError(
            f"{given} asks for {count} drafts; {topk} children of {topk} nodes over {steps} levels"
            f" are {most}, and at most {MAX_DRAFT_TOKENS} are read"
        )
    chosen: list[Path] = []
    level: list[Path] = [()]
    # A node stands behind its ancestors and its better siblings: no deeper, no wider than `count`.
    for _ in range(min(steps, count)):
        children = (_children(parent, min(topk, count)) for parent in level)
        level = list(islice(heapq.merge(*children, key=_unlikeliness), count))
        chosen = sorted(chosen + level, key=_unlikeliness)[:count]
        if _unlikeliness(level[0]) > _unlikeliness(chosen[-1]):
            break  # and all that hangs below is less likely still
        level = level[:topk]
    return Tree.from_paths(chosen)


def _children(parent: Path, num_children: int) -> Iterator[Path]:
    return ((*parent, rank) for rank in range(num_children))


def eagle_triple(tree: Tree) -> dict[str, int]:
    """The smallest EAGLE triple that generates this tree's ranks, depth and number of nodes.

    Raises:
        TreeError: there is none, for the root alone or for a tree that is too large.
    """
    if not 0 < tree.num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise TreeError(
            f"a tree of {tree.num_draft_tokens} draft tokens is no EAGLE tree; give one of 1 to"
            f" {MAX_DRAFT_TOKENS}"
        )
    topk = tree.max_rank + 1
    while _num_generated(topk, tree.depth) < tree.num_draft_tokens:
        topk += 1
    return {"topk": topk, "steps": tree.depth, "num_draft_tokens": tree.num_nodes}


def _num_generated(topk: int, steps: int) -> int:
    return topk + (steps - 1) * topk * topk


def _unlikeliness(path: Path) -> tuple[int, int, Path]:
    """Minus the log2 of a path's value when rank r has 2^-(r + 1); ties to the shallower."""
    return sum(path) + len(path), len(path), path


def _from_object(content: Mapping[Any, Any]) -> Tree:
    if "paths" in content:
        return _from_paths(content["paths"])
    if isinstance(content.get("speculative_config"), dict):
        content = content["speculative_config"]
    if "speculative_token_tree" in content:
        text = content["speculative_token_tree"]
        problem = f"has the speculative_token_tree {str(text)[:40]!r}; {_EXPECTED}"
        return _from_paths(_literal(text, None, problem) if isinstance(text, str) else text)
    numbers = [next((content[key] for key in keys if key in content), None) for keys in _EAGLE_KEYS]
    if all(type(number) is int for number in numbers):
        topk, steps, num_draft_tokens = numbers
        try:
            return eagle_tree(topk, steps, num_draft_tokens)  # type: ignore[arg-type]  # all ints
        except (TreeError, ValueError) as error:  # as below
            raise TreeError(f"holds no tree: {str(error)[:200]}") from None
    raise TreeError(
        f"holds a dict; {_EXPECTED}, or an object with paths, speculative_token_tree, or all of"
        f" {', '.join(keys[0] for keys in _EAGLE_KEYS)}"
    )


def _from_paths(content: object) -> Tree:
    if not isinstance(content, (list, tuple)):
        raise TreeError(f"holds a {type(content).__name__}; {_EXPECTED}")
    try:
        tree = Tree.from_paths(content)
    except (TreeError, ValueError) as error:  # Python does not print a number of 5,000 digits
        raise TreeError(f"holds no tree: {str(error)[:200]}") from None
    if tree.max_rank > MAX_RANK:
        raise TreeError(f"holds a rank beyond {MAX_RANK}, which no vocabulary has")
    return tree


def _literal(text: str, name: str | None, problem: str) -> object:
    """The value of a Python literal, alone or behind `name =`; nothing is run.

    Raises:
        TreeError: `problem`, or which of several values to choose.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of odd spellings
            parsed = ast.parse(text.strip())
        values = {
            target.id: ast.literal_eval(line.value)
            for line in parsed.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name)
        }
        if not values and len(parsed.body) == 1 and isinstance(parsed.body[0], ast.Expr):
            return ast.literal_eval(parsed.body[0].value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise TreeError(problem) from None
    if not values:
        raise TreeError(problem)
    if name is None and len(values) == 1:
        return next(iter(values.values()))
    if name not in values:
        raise TreeError(
            f"has {'several trees' if name is None else f'no tree named {name}'}; it has"
            f" {', '.join(values)}: put a colon and one of them behind the file"
        )
    return values[name]


def _listed(tree: Tree) -> str:
    return json.dumps([list(path) for path in tree.paths[1:]])


def _as_vllm(tree: Tree) -> str:
    paths = ", ".join(str(path) for path in tree.paths[1:])
    written = {
        "num_speculative_tokens": tree.num_draft_tokens,
        "speculative_token_tree": f"[{paths}]",
    }
    return json.dumps(written)


FORMS: Mapping[str, Callable[[Tree], str]] = MappingProxyType(
    {
        "paths": _listed,
        "medusa": lambda tree: f"medusa_choices = {_listed(tree)}",
        "vllm": _as_vllm,
        "eagle": lambda tree: json.dumps(eagle_triple(tree)),
    }
)
"""How to write a tree, by the form's name."""


def format_tree(tree: Tree, form: str) -> str:
    """A tree in one of `FORMS`, on one line.

    Raises:
        BadInput: there is no such form.
        TreeError: the form cannot say this tree.
    """
    if form not in FORMS:
        raise BadInput(f"unknown form {form!r} of a tree; expected one of {', '.join(FORMS)}")
    return FORMS[form](tree)


def write_tree(tree: Tree, form: str, file: FilePath) -> None:
    """Write a tree into a file, whole or not at all.

    Raises:
        BadInput: there is no such form, or the file cannot be written.
        TreeError: the form cannot say this tree.
    """
    text = format_tree(tree, form) + "\n"
    # A link stays a link, and a pipe or a device is written to, not put another file in place of.
    place = file.resolve()
    half = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):
            file.write_text(text, encoding="utf-8")
            return
        half.write_text(text, encoding="utf-8")
        half.replace(place)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise BadInput(f"cannot write {file}: {error.strerror or error}") from error
