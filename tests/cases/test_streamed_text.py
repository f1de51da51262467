"""Cases B04, B06, S01 and S02 of known faults: stop strings and characters in long blocks."""

from __future__ import annotations

import pytest

from draft_heads import exact_heads
from entmtp.engine import Engine, FinishEvent, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.trees import chain
from fixtures import (
    BOS,
    byte_tokenizer,
    markov,
    piece_tokenizer,
    ring_order,
    script,
    script_order,
    sure,
)


def spoken(
    pieces: tuple[str, ...], depth: int, prompt: list[int], stop: tuple[str, ...]
) -> tuple[str, str]:
    """Text and streamed text of a model that says the pieces round and round."""
    order = ring_order(len(pieces))
    target = markov(sure(order), piece_tokenizer(pieces))
    heads = exact_heads(target, order, "medusa", num_draft_heads=5)
    engine = Engine(target, heads, StaticPolicy(chain(depth)) if depth else None)
    events = list(engine.stream(prompt, GenerationParams(40, stop=stop)))
    last = events[-1]
    assert isinstance(last, FinishEvent)
    assert last.result.finish_reason == "stop"
    return last.result.text, "".join(event.text for event in events)


@pytest.mark.parametrize("stop", ["b", "bc", "fg"])
@pytest.mark.parametrize("start", range(6))
def test_B04_a_stop_string_early_in_a_block(stop: str, start: int) -> None:
    letters = "abcdefghij"
    order = ring_order(len(letters))
    said = (letters[start + 1 :] + 2 * letters)[: 2 * len(letters)]
    expected = said[: said.index(stop)]
    for depth in range(6):
        assert spoken(tuple(letters), depth, [order[start] - 1], (stop,)) == (expected, expected)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("k brown",), "quic"),
        (("own fox",), "quick br"),
        (("x",), "quick brown fo"),
        (("own fox", "k b"), "quic"),
        (("fox", "own f"), "quick br"),
        (("", "zzz", "wn"), "quick bro"),
    ],
)
@pytest.mark.parametrize("depth", range(5))
def test_B06_a_stop_string_across_tokens(depth: int, stop: tuple[str, ...], expected: str) -> None:
    pieces = ("<s>", "qu", "ick br", "own f", "ox", "!", "?")
    assert spoken(pieces, depth, [0], stop) == (expected, expected)


def test_S01_only_whole_characters_are_streamed() -> None:
    text = "hé中😀!"
    target = script(text)
    num_bytes = len(text.encode())
    heads = exact_heads(target, script_order(text), "medusa")
    for depth in range(5):
        policy = StaticPolicy(chain(depth)) if depth else None
        engine = Engine(target, heads, policy)
        for max_tokens in range(1, num_bytes + 1):
            events = list(engine.stream([BOS], GenerationParams(max_tokens)))
            chunks = [event.text for event in events]
            last = events[-1]
            assert isinstance(last, FinishEvent)
            assert "".join(chunks) == last.result.text
            assert last.result.text == text.encode()[:max_tokens].decode(errors="replace")
            assert not any("\ufffd" in chunk for chunk in chunks[:-1])
            assert chunks[0] == "h"  # nothing whole is held back
    assert byte_tokenizer().decode(text.encode()[:2]) == "h\ufffd"


def test_S02_nothing_of_a_stop_string_is_streamed() -> None:
    pieces = ("<s>", "qu", "ick br", "own f", "ox", "!", "?")
    order = ring_order(len(pieces))
    target = markov(sure(order), piece_tokenizer(pieces))
    heads = exact_heads(target, order, "medusa")
    for depth in range(4):
        policy = StaticPolicy(chain(depth)) if depth else None
        engine = Engine(target, heads, policy)
        shown = ""
        for event in engine.stream([0], GenerationParams(30, stop=("own fox",))):
            shown += event.text
            assert "quick br".startswith(shown)
        assert shown == "quick br"
        # A beginning of a stop string that comes to nothing is shown after all.
        params = GenerationParams(5, stop=("own foxes",))
        assert engine.generate([0], params).text == "quick brown fox!"
