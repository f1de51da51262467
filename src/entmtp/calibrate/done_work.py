"""Whether a file of finished work holds what its stage makes: names, types, shapes, values.

Knows: answered groups, and what heads said of them. Does not know: how any of it is computed, when
files are written.

That a file is whole says nothing of what is in it. What is wrong here would not fail where it is
read, but far from there, or never: a bank would be made of it.

Dimension key: L tokens of a group's rows · N starts · K draft heads · M nodes of the wide tree ·
H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from entmtp.calibrate.answers import Group
from entmtp.engine.questions import Question
from entmtp.errors import ArtefactError
from entmtp.target import TargetModel
from entmtp.trees.replay import MAX_RANK, MISS

ROUNDING = 1e-3
"""By which a probability may lie above 1, and an entropy below 0"""

Tensors = Mapping[str, torch.Tensor]


def group_of(
    path: Path, tensors: Tensors, questions: Sequence[Question], target: TargetModel
) -> Group:
    """The answers to some questions, from a file's tensors.

    Raises:
        ArtefactError: they are none to these questions by this target.
    """
    _demand(path, set(tensors) == set(Group._fields), f"it holds {', '.join(sorted(tensors))}")
    group = Group(**tensors)
    _check_rows(path, group, questions)
    num_tokens, num_starts = len(group.token_ids), int(group.answer_lengths.sum())
    ids = group.token_ids
    _demand(path, int(ids.min()) >= 0 and int(ids.max()) < target.vocab_size, "its ids are no ids")
    for number, (question, (row, length)) in enumerate(zip(questions, group.rows(), strict=True)):
        is_same = ids[row][:length].tolist() == list(question.prompt_ids)
        _demand(path, is_same, f"its row {number} is no answer to the prompt {question.id}")
    _check_floats(path, "hidden", group.hidden, (num_tokens, target.hidden_size))
    _check_shape(path, "root", group.root, torch.float32, (num_starts, 2))
    _check_floats(path, "root", group.root, (num_starts, 2))
    probability, entropy = group.root.unbind(1)
    is_right = bool((probability >= 0).all() and (probability <= 1 + ROUNDING).all())
    _demand(path, is_right and bool((entropy >= -ROUNDING).all()), "its root signals are none")
    return group


def ranks_of(path: Path, tensors: Tensors, num_starts: int, num_draft_heads: int) -> torch.Tensor:
    """Ranks `[N, K]` int32 of the true tokens, from a file's tensors.

    Raises:
        ArtefactError: they are none.
    """
    ranks = _only(path, tensors, "ranks")
    _check_shape(path, "ranks", ranks, torch.int32, (num_starts, num_draft_heads))
    is_rank = ((ranks >= 0) & (ranks < MAX_RANK)) | (ranks == MISS)
    _demand(path, bool(is_rank.all()), "its ranks are none")
    return ranks


def log_probs_of(path: Path, tensors: Tensors, num_starts: int, num_nodes: int) -> torch.Tensor:
    """Log-probabilities `[N, M]` float32 of the wide tree's nodes, from a file's tensors.

    Raises:
        ArtefactError: they are none.
    """
    log_probs = _only(path, tensors, "log_probs")
    _check_shape(path, "log_probs", log_probs, torch.float32, (num_starts, num_nodes))
    _demand(path, bool((log_probs <= ROUNDING).all()), "its log_probs are none")
    return log_probs


def _check_rows(path: Path, group: Group, questions: Sequence[Question]) -> None:
    for name in ("prompt_lengths", "answer_lengths"):
        _check_shape(path, name, getattr(group, name), torch.int64, (len(questions),))
    lengths = [len(question.prompt_ids) for question in questions]
    is_right = group.prompt_lengths.tolist() == lengths and int(group.answer_lengths.min()) > 0
    num_tokens = int((group.prompt_lengths + group.answer_lengths).sum())
    _demand(path, is_right, "its rows are not as long as prompts with their answers")
    _check_shape(path, "token_ids", group.token_ids, torch.int64, (num_tokens,))


def _only(path: Path, tensors: Tensors, name: str) -> torch.Tensor:
    _demand(path, set(tensors) == {name}, f"it holds {', '.join(sorted(tensors))}, not {name}")
    return tensors[name]


def _check_shape(
    path: Path, name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    found = f"{name} is {tensor.dtype} of {list(tensor.shape)}, not {dtype} of {list(shape)}"
    _demand(path, tensor.dtype == dtype and tuple(tensor.shape) == shape, found)


def _check_floats(path: Path, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    _demand(path, tensor.is_floating_point(), f"{name} is {tensor.dtype}")
    _check_shape(path, name, tensor, tensor.dtype, shape)
    _demand(path, bool(tensor.isfinite().all()), f"{name} holds what is no finite number")


def _demand(path: Path, is_right: bool, otherwise: str) -> None:
    if not is_right:
        raise ArtefactError(f"{path} is broken ({otherwise}); delete it and run again")
