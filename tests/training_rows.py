"""Rows for training tests: what RING says."""

from __future__ import annotations

from entmtp.train.rows import Row


def ring_rows(vocab_size: int, num_rows: int) -> list[Row]:
    """Prompts of different lengths and starts, and the only answer that RING gives."""
    rows = []
    for index in range(num_rows):
        num_prompt = 2 + index // vocab_size
        ids = [(index + place) % vocab_size for place in range(num_prompt + 15 + index % 5)]
        rows.append(Row(str(index), "", 0.0, tuple(ids[:num_prompt]), tuple(ids[num_prompt:])))
    return rows
