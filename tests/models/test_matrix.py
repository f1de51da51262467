"""The matrix: every row is exact or refused as expected, and the page says what it gave."""

from __future__ import annotations

from functools import lru_cache

import pytest

from draft_heads import KINDS, random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.trees import full
from model_matrix import PROMPTS, Admission, admit, demand_exactness, generated
from model_roster import ROWS
from model_table import PAGE, line, page

NAMES = [row.name for row in ROWS]


@lru_cache
def admission(name: str) -> Admission:
    return admit(ROWS[NAMES.index(name)])


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", [row.name for row in ROWS if not row.refused])
def test_exact(name: str) -> None:
    bare, target, refusal = admission(name)
    assert target is not None, refusal
    demand_exactness(bare, target)


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.refused])
def test_refused(name: str) -> None:
    row = ROWS[NAMES.index(name)]
    target, refusal = admission(name)[1:]
    assert target is None
    assert row.refused in refusal
    assert "\n" not in refusal
    assert row.model_type.removesuffix("_text") in refusal


def test_the_page_is_what_the_matrix_gives() -> None:
    """Made again by `python tests/model_table.py`."""
    lines = [line(row, admission(row.name)) for row in ROWS]
    assert PAGE.read_text(encoding="utf-8") == page(lines)


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "falcon", "gemma3_text", "gpt_neox"])
def test_every_kind_of_heads_fits(model_type: str) -> None:
    """Hydra++ builds a layer in the shape of the target's; configurations name shapes unlike."""
    bare, target, refusal = admission(next(n for n in NAMES if n.startswith(model_type)))
    assert target is not None, refusal
    plain = Engine(target).generate(PROMPTS[0], GenerationParams(20)).token_ids
    for kind in KINDS:
        engine = Engine(target, random_heads(target, kind), StaticPolicy(full(3, 2)))
        assert engine.generate(PROMPTS[0], GenerationParams(20)).token_ids == plain
    assert plain == generated(bare, PROMPTS[0], 20)
