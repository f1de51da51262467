"""Text as it comes against a search of the whole text, for any cut of the text into tokens.

A token may be a part of a character, or hold several; the stop string may begin and end anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from entmtp.engine.text import TextStream

HALF = "\ufffd"
texts = st.text("ab é€😀\n", max_size=14)
Split = Callable[[bytes, Sequence[int]], tuple[PreTrainedTokenizerFast, list[int]]]


def wrapped(vocabulary: dict[str, int], decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pieces_of(raw: bytes, cuts: Sequence[int]) -> list[bytes]:
    ends = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[start:stop] for start, stop in pairwise(ends)]


def byte_level(raw: bytes, cuts: Sequence[int]) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """As GPT-2's: tokens are strings of bytes."""
    letters = bytes_to_unicode()
    names = ["".join(letters[byte] for byte in piece) for piece in pieces_of(raw, cuts)]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(["Ġ", *names]))}
    return wrapped(vocabulary, decoders.ByteLevel()), [vocabulary[name] for name in names]


def byte_fallback(raw: bytes, cuts: Sequence[int]) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """As Llama-2's: tokens are characters, or single bytes where a cut goes through one."""
    names = []
    for piece in pieces_of(raw, cuts):
        try:
            names.append(piece.decode().replace(" ", "▁"))
        except UnicodeDecodeError:
            names += [f"<0x{byte:02X}>" for byte in piece]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(["▁", *names]))}
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return wrapped(vocabulary, decoders.Sequence(steps)), [vocabulary[name] for name in names]


def naive(
    tokenizer: PreTrainedTokenizerFast, ids: list[int], stop: Sequence[str]
) -> tuple[str, int | None]:
    """The text up to the first stop string, and the token that completed it."""
    whole = ""
    for end in range(1, len(ids) + 1):
        decoded = str(tokenizer.decode(ids[:end]))
        if decoded.endswith(HALF) and end < len(ids):
            continue  # not a whole character yet
        whole = decoded
        found = [whole.find(string) for string in stop if string and string in whole]
        if found:
            return whole[: min(found)], end - 1
    return whole, None


def check(tokenizer: PreTrainedTokenizerFast, ids: list[int], stop: tuple[str, ...]) -> None:
    expected, place = naive(tokenizer, ids, stop)
    stream, shown = TextStream(tokenizer, stop), ""
    ended = None
    for index, token in enumerate(ids):
        is_over = stream.push(token)
        chunk = stream.take()
        # Bytes that are no text end in one for good.
        assert not chunk.endswith(HALF) or HALF in expected
        shown += chunk
        if is_over:
            ended = index
            break
    shown += stream.flush()
    assert stream.text == shown == expected
    # A half character at the very end is seen by `flush` only: nothing can end the sequence there.
    assert ended == place or (ended is None and place == len(ids) - 1)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[bytes, list[int], tuple[str, ...]]:
    """A text, places to cut its bytes at, and stop strings, most of which are in it."""
    text = draw(texts)
    cuts = draw(st.lists(st.integers(0, 60), max_size=20))
    places = st.tuples(st.integers(0, 14), st.integers(1, 4))
    inside = places.map(lambda at: text[at[0] : at[0] + at[1]])
    stop = draw(st.lists(st.one_of(inside, texts.map(lambda some: some[:3])), max_size=3))
    return text.encode(), cuts, tuple(stop)


@given(cut_texts(), st.sampled_from([byte_level, byte_fallback]))
def test_stop_strings_in_any_cut(
    case: tuple[bytes, list[int], tuple[str, ...]], split: Split
) -> None:
    raw, cuts, stop = case
    tokenizer, ids = split(raw, cuts)
    check(tokenizer, ids, stop)


@given(
    st.binary(max_size=12), st.lists(st.integers(0, 12), max_size=12), st.lists(texts, max_size=2)
)
def test_bytes_that_are_no_text(raw: bytes, cuts: list[int], stop: list[str]) -> None:
    tokenizer, ids = byte_level(raw, cuts)
    check(tokenizer, ids, tuple(string[:3] for string in stop))
