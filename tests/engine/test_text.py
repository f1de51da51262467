"""Ids to text as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.engine.text import TextStream
from fixtures import EOS, byte_tokenizer, piece_tokenizer

PIECES = ("<s>", "a", "b", "ab", "ba", "bb", "aab", " ")


def stream(
    ids: list[int],
    stop: tuple[str, ...] = (),
    seed: int = 0,
    *,
    pieces: bool = False,
    min_tokens: int = 0,
) -> tuple[list[str], str, int | None]:
    """Chunks in blocks of any length, the whole text, and where a stop string ended it."""
    tokenizer = piece_tokenizer(PIECES) if pieces else byte_tokenizer()
    text = TextStream(tokenizer, stop, min_tokens)
    dice, chunks = random.Random(seed), []
    for place, token in enumerate(ids):
        if text.push(token):
            chunks += [text.take(), text.flush()]
            return chunks, text.text, place
        if dice.random() < 0.4:
            chunks.append(text.take())
    chunks += [text.take(), text.flush()]
    return chunks, text.text, None


@given(st.text(max_size=12), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_characters_are_never_cut(text: str, seed: int) -> None:
    chunks, whole, _ = stream(list(text.encode()), seed=seed)
    assert "".join(chunks) == whole == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in chunk for chunk in chunks)


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_half_character_at_the_end_is_shown_as_one(cut: int) -> None:
    ids = [*b"ok ", *"😀".encode()[:cut]]
    chunks, whole, _ = stream(ids)
    assert whole == "".join(chunks) == bytes(ids).decode(errors="replace")


def test_bytes_that_are_no_character() -> None:
    ids = [*b"a", 0xFF, *b"b", 0xC3, *b"c", 0x80, 0x80, *"é".encode()]
    chunks, whole, _ = stream(ids)
    assert whole == "".join(chunks) == bytes(ids).decode(errors="replace")


def test_special_tokens_have_no_text() -> None:
    chunks, whole, _ = stream([*b"a", EOS, *b"b"])
    assert whole == "".join(chunks) == "ab"


def earliest(ids: list[int], stop: tuple[str, ...], min_tokens: int) -> tuple[str, int | None]:
    """The slow way: all text again after every token; a stop string must end in the new part."""
    text = ""
    for place, token in enumerate(ids):
        old, text = len(text), text + PIECES[token]
        found = [
            at
            for string in stop
            for at in range(len(text))
            if string and text[at:].startswith(string) and at + len(string) > old
        ]
        if found and place >= min_tokens:
            return text[: min(found)], place
    return text, None


some_stops = st.lists(st.text("ab ", max_size=4), max_size=3).map(tuple)


@given(
    st.lists(st.integers(1, len(PIECES) - 1), max_size=12),
    some_stops,
    st.integers(0, 9),
    st.sampled_from([0, 0, 1, 3, 20]),
)
@settings(max_examples=150, deadline=None)
def test_stop_strings(ids: list[int], stop: tuple[str, ...], seed: int, min_tokens: int) -> None:
    chunks, whole, place = stream(ids, stop, seed, pieces=True, min_tokens=min_tokens)
    assert (whole, place) == earliest(ids, stop, min_tokens)
    assert "".join(chunks) == whole


def test_a_stop_string_of_the_first_tokens_is_text_for_ever() -> None:
    a, b = PIECES.index("a"), PIECES.index("b")
    for min_tokens, expected in ((0, ("", 0)), (1, ("ab", 2)), (2, ("ab", 2)), (3, ("aba", 3))):
        _, whole, place = stream([a, b, a, a], ("a",), pieces=True, min_tokens=min_tokens)
        assert (whole, place) == expected
    # One that begins among them counts when it ends behind them.
    assert stream([a, b, a], ("ba",), pieces=True, min_tokens=2)[1:] == ("a", 2)


@given(st.lists(st.integers(1, len(PIECES) - 1), max_size=12), some_stops)
@settings(max_examples=60, deadline=None)
def test_no_more_is_held_back_than_must_be(ids: list[int], stop: tuple[str, ...]) -> None:
    text, shown, said = TextStream(piece_tokenizer(PIECES), stop), "", ""
    for token in ids:
        if text.push(token):
            break
        shown, said = shown + text.take(), said + PIECES[token]
        held = said[len(shown) :]
        assert said.startswith(shown)
        assert not held or any(string.startswith(held) for string in stop)


def test_without_a_tokenizer_there_is_no_text() -> None:
    text = TextStream(None, ())
    assert not text.push(3)
    assert text.take() == text.flush() == text.text == ""
