"""Whether heads are whole and belong to a target: tensors, sizes, weights, tokenizer.

Knows: what heads may say of the model that they were trained for. Does not know: files, layouts.

Sizes that differ are refused: such heads cannot run. Other weights or another tokenizer are only
warned of: the output stays exact, drafts are accepted less often.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from entmtp.errors import ArtefactError, HeadsError
from entmtp.target.fingerprint import is_alike
from entmtp.target.model import TargetModel

_HARMLESS = "the output stays exact, but few drafts may be accepted"


def describe_base(target: TargetModel) -> dict[str, Any]:
    """What heads keep of their target, to know it again in whatever numbers it is held."""
    return {
        "name": target.name,
        "fingerprint": target.fingerprint,
        "dtype": _dtype_name(target),
        "sketch": target.sketch,
        "tokenizer": tokenizer_fingerprint(target),
    }


def tokenizer_fingerprint(target: TargetModel) -> str | None:
    """SHA-256 over the tokens and their ids; None where the target has no tokenizer."""
    if target.tokenizer is None:
        return None
    vocabulary = json.dumps(sorted(target.tokenizer.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def check_size(where: object, word: str, ours: int, theirs: int, target: TargetModel) -> None:
    """Refuse heads of another `word` (hidden size, vocabulary) than the target's.

    Raises:
        HeadsError: the sizes differ.
    """
    if ours != theirs:
        raise HeadsError(
            f"heads in {where} are for {word} {ours}, the model {target.name} has {theirs};"
            " use heads trained for this model"
        )


def check_tensors(
    where: object,
    shapes: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    which: str,
) -> None:
    """Check that a file holds exactly the expected tensors.

    Raises:
        ArtefactError: names every tensor that is missing or unexpected, or one of another shape.
    """
    missing = sorted(expected.keys() - shapes.keys())
    unexpected = sorted(shapes.keys() - expected.keys())
    if missing or unexpected:
        raise ArtefactError(
            f"{where} does not hold the tensors {which}; missing: {listed(missing)};"
            f" unexpected: {listed(unexpected)}"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ArtefactError(
                f"{where}: {name} has shape {list(shapes[name])}, expected {list(shape)}"
            )


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names on one line, however odd; the first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(" ".join(name.split()) for name in names[:most]) or "none") + more


def check_base(base: Mapping[str, Any], target: TargetModel, where: object) -> None:
    """Warn of heads that were trained for other weights or another tokenizer."""
    name, fingerprint, tokenizer = (base.get(k) for k in ("name", "fingerprint", "tokenizer"))
    if fingerprint is None:
        _check_name(name, target, where)
    elif not _is_the_base(base, target):
        _warn(
            f"heads in {where} were trained for {name} ({fingerprint}), the model is"
            f" {target.name} ({target.fingerprint}); {_HARMLESS}"
        )
    ours = tokenizer_fingerprint(target) if tokenizer is not None else None
    if ours is not None and ours != tokenizer:
        _warn(
            f"heads in {where} were trained with another tokenizer ({tokenizer}, the model"
            f" {target.name} has {ours}); {_HARMLESS}"
        )


def _is_the_base(base: Mapping[str, Any], target: TargetModel) -> bool:
    """Whether heads were made for these weights, in this number format or in another."""
    if base.get("fingerprint") == target.fingerprint:
        return True
    # Rounded to float16 before, the same weights have another fingerprint.
    theirs, dtypes = base.get("sketch"), (base.get("dtype"), _dtype_name(target))
    return "float16" in dtypes and isinstance(theirs, str) and is_alike(theirs, target.sketch)


def _dtype_name(target: TargetModel) -> str:
    return str(target.dtype).removeprefix("torch.")


def _check_name(name: object, target: TargetModel, where: object) -> None:
    """Published heads only name their base, by a path or a hub id: its last part must do."""
    if not isinstance(name, str) or not name:
        return
    theirs, ours = (PurePath(text).name.lower() for text in (name, target.name))
    if theirs != ours:
        _warn(
            f"heads in {where} say that they were trained for {name}, the model is {target.name};"
            f" if these are not the same, {_HARMLESS}"
        )


def _warn(message: str) -> None:
    warnings.warn(" ".join(message.split()), stacklevel=4)
