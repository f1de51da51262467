"""What rules out every token is refused: id 0 would be said, though it is ruled out, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import BadInput
from fixtures import ring


@pytest.mark.parametrize(
    ("params", "behind"),
    [
        ({"banned_ids": tuple((one,) for one in range(12))}, ""),
        ({"banned_ids": tuple((3, one) for one in range(12))}, r" behind \[3\]"),
        # The sequences of (1, 3), of (3) and of () count behind 1, 3.
        (
            {"banned_ids": ((1, 3, 0), (3, 1), *((one,) for one in range(2, 12)))},
            r" behind \[1, 3\]",
        ),
        ({"banned_ids": tuple((one,) for one in range(11)), "delays": ((11, 1),)}, ""),
    ],
)
def test_where_no_token_is_left_it_is_said(params: dict[str, Any], behind: str) -> None:
    engine = Engine(ring())
    with pytest.raises(BadInput, match=f"rule out all 12 tokens of the vocabulary{behind}; leave"):
        engine.add([1], GenerationParams(4, Sampling(**params)))


def test_an_end_that_is_all_there_is_may_not_come_too_early() -> None:
    words = tuple((one,) for one in range(11))
    params = GenerationParams(4, Sampling(banned_ids=words), stop_token_ids=(11,))
    assert Engine(ring()).generate([1], params).token_ids == (11,)
    with pytest.raises(BadInput, match="ends that are too early rule out all 12 tokens"):
        Engine(ring()).generate([1], replace(params, min_tokens=2))


def test_one_token_left_behind_every_text_is_enough() -> None:
    """Nothing twice, and behind 3 all but one token ruled out: every id ends some sequence."""
    words = (*((one, one) for one in range(12)), *((3, one) for one in range(12) if one != 7))
    params = GenerationParams(4, Sampling(banned_ids=words))
    assert Engine(ring()).generate([2], params).token_ids == (3, 7, 8, 9)
