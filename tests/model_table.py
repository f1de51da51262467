"""Writes docs/models.md from the matrix: `python tests/model_table.py`.

The table holds what the matrix gives, row by row; a model that is let in and not exact ends the
program before anything is written. `tests/models/test_matrix.py` holds the page against it.
"""

from __future__ import annotations

from pathlib import Path

from model_matrix import Admission, admit, demand_exactness
from model_roster import LENGTH, ROWS, Row

PAGE = Path(__file__).parent.parent / "docs" / "models.md"

_HEADER = """\
# Models

<!-- Made by `python tests/model_table.py` from the matrix; do not edit. -->

Which `transformers` models decode with trees, and what is refused and why. Every row is a tiny
random model of three layers that went through the matrix (`tests/models/`). **Exact** means, in
float32: plain decoding gives the ids of `transformers.generate` (greedy) and of whole forwards
without a cache (temperature 0.7); a tree that always holds the right path, with two sequences in
the batch, gives those ids again; and all answers go past the sliding window, where there is one.

A model that is not in the table is treated the same way: it is not refused for its name. Loading
compares a small tree of random ids with the model's own forward, with its own attention as it was
shipped, and with the sliding window narrowed so that the few ids of the check outgrow it. What
does not agree is refused in one sentence. `--allow-plain` (`allow_plain` of `load_target`) loads a
refused model all the same, without trees, if its plain decoding passes a check of its own.

| model type | variant | verdict | limits, or the sentence that refuses it |
|---|---|---|---|
"""

_FOOTER = """
## What lies behind the table

* **Sliding windows.** A layer of kind `sliding_attention` sees the keys whose position is greater
  than the query's less `sliding_window`. Positions are absolute, in the committed text and in the
  tree alike: nodes of one depth have one window, wherever they lie in the cache. Models with
  several kinds of layers get a mask for each kind. The cache keeps all rows of every layer.
* **Options of attention.** Soft caps and sinks are computed as the model asks. An option that is
  not known to leave the result alone refuses the model by that option's name.
* **Rope.** `linear`, `yarn`, `llama3` and `proportional` rotate a token by its position alone.
  `dynamic` and `longrope` change with the length of the text, so that `transformers`' own logits
  depend on how a text was cut into forwards. They are exact where they do not change, and texts
  end there: at `max_position_embeddings` (`dynamic`), at the original length (`longrope`). A longer
  prompt is refused. An unknown rope type is refused by name.
* **Logits** are float32, with the scale (Cohere, Granite) and the soft cap (Gemma) of the model.
* **Quantised models** load where `transformers` loads them on the CPU; the package that one needs
  is named if it is missing. torchao's int8 weights (`pip install torchao`) obey the law of
  their own plain decoding in float32.
* **Rows past the tokenizer.** Where the output layer is padded beyond the tokenizer, its ids may
  be said, as by `transformers.generate`. They have no text.
* **State.** What a recurrent, linear, chunked or indexed layer keeps cannot be rolled back to one
  branch of a tree; alibi counts keys by their place in the cache.
"""


def main() -> None:
    lines = []
    for row in ROWS:
        admission = admit(row)
        if admission.target is not None:
            demand_exactness(admission.bare, admission.target)
        lines.append(line(row, admission))
    PAGE.write_text(page(lines), encoding="utf-8")


def page(lines: list[str]) -> str:
    return _HEADER + "\n".join(lines) + "\n" + _FOOTER


def line(row: Row, admission: Admission) -> str:
    """One row of the table."""
    if admission.target is None:
        return f"| `{row.model_type}` | {row.what} | refused | {admission.refusal} |"
    limit = admission.target.max_length
    note = "" if limit == LENGTH else f"texts end at the original length ({limit} of {LENGTH})"
    return f"| `{row.model_type}` | {row.what} | **exact** | {note} |"


if __name__ == "__main__":
    main()
