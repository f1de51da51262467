"""Finished work that is whole, but not what its stage makes, is one line and no bank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_heads import random_heads
from entmtp.calibrate.collect import TraceConfig
from entmtp.errors import ArtefactError
from rank_traces import ANSWERS, collect, talker

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]


def without(name: str) -> Change:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


def renamed(tensors: Tensors) -> Tensors:
    return {f"{name}-of-others": value for name, value in tensors.items()}


WRONG: list[tuple[str, Change, str]] = [
    ("answers", without("root"), "it holds answer_lengths, hidden, prompt_lengths, token_ids"),
    ("answers", renamed, "it holds answer_lengths-of-others"),
    ("answers", changed("hidden", lambda x: x * torch.nan), "hidden holds what is no finite"),
    ("answers", changed("hidden", lambda x: x[:, :-1]), "hidden is torch.float32 of"),
    ("answers", changed("hidden", torch.Tensor.long), "hidden is torch.int64"),
    ("answers", changed("root", lambda x: x * 0 + 2), "its root signals are none"),
    ("answers", changed("root", lambda x: x[:-1]), "root is torch.float32 of"),
    ("answers", changed("token_ids", lambda x: x[:-1]), "token_ids is torch.int64 of"),
    ("answers", changed("token_ids", torch.Tensor.float), "token_ids is torch.float32 of"),
    ("answers", changed("token_ids", lambda x: x * 0 + 999), "its ids are no ids"),
    ("answers", changed("token_ids", lambda x: x * 0), "its row 0 is no answer to the prompt"),
    ("answers", changed("prompt_lengths", lambda x: x + 1), "its rows are not as long"),
    ("answers", changed("prompt_lengths", lambda x: x[:-1]), "prompt_lengths is torch.int64 of"),
    ("answers", changed("answer_lengths", lambda x: x - x), "its rows are not as long"),
    ("answers", changed("answer_lengths", lambda x: x + 2**61), "token_ids is torch.int64 of"),
    ("ranks", renamed, "it holds ranks-of-others, not ranks"),
    ("ranks", changed("ranks", lambda x: x[:-1]), "ranks is torch.int32 of"),
    ("ranks", changed("ranks", torch.Tensor.long), "ranks is torch.int64 of"),
    ("ranks", changed("ranks", lambda x: x - 2**20), "its ranks are none"),
    ("draft", renamed, "it holds log_probs-of-others, not log_probs"),
    ("draft", changed("log_probs", lambda x: x[:, :-1]), "log_probs is torch.float32 of"),
    ("draft", changed("log_probs", lambda x: x * torch.nan), "its log_probs are none"),
    ("draft", changed("log_probs", lambda x: x + 3), "its log_probs are none"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished work."""
    folder = tmp_path_factory.mktemp("finished") / "work"
    trace(folder.with_name("trace"), folder)
    return folder


def trace(out: Path, work: Path) -> None:
    answers = replace(ANSWERS, max_tokens=6)
    collect(talker(), random_heads(talker(), "medusa"), out, TraceConfig(answers, work=work))


@pytest.mark.parametrize(("stage", "change", "said"), WRONG)
def test_T09_what_a_stage_does_not_make_is_named(
    finished: Path, tmp_path: Path, stage: str, change: Change, said: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for file in finished.iterdir():
        if file.is_file():
            (work / file.name).write_bytes(file.read_bytes())
    path = min(work.glob(f"{stage}-*"))
    save_file(change(load_file(path)), path)
    with pytest.raises(ArtefactError) as caught:
        trace(tmp_path / "trace", work)
    assert str(caught.value).startswith(f"{path} is broken ({said}")
    assert str(caught.value).endswith("); delete it and run again")
    assert not (tmp_path / "trace").exists()
    path.unlink()
    trace(tmp_path / "trace", work)
    assert (tmp_path / "trace").read_bytes() == finished.with_name("trace").read_bytes()
