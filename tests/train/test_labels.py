"""Which positions are trained on what, and that the whole chain learns it (case T02)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draft_heads import exact_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads
from entmtp.scheduler import StaticPolicy
from entmtp.train import shards
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import load_batch, pack, plan_epoch, split_rows, supervised
from entmtp.train.features import FeatureConfig, extract_features
from entmtp.train.model import LabelMap, batch_ranks
from entmtp.train.pipeline import Places, train_from_features
from entmtp.train.rows import Row
from entmtp.train.shards import FeatureReader, list_rows, teacher_mass
from entmtp.trees import chain
from fixtures import ring, ring_order
from training_rows import ring_rows

RING = 12


def test_T02_labels_are_the_tokens_two_and_more_behind(tmp_path: Path) -> None:
    rows = [
        Row("short", "", 0.0, (3, 4, 5, 6), (7, 8)),
        Row("long", "", 0.0, (0, 1, 2), (3, 4, 5, 6, 7)),
    ]
    extract_features(ring(RING), rows, tmp_path, FeatureConfig())
    refs = sorted(list_rows(tmp_path), key=lambda ref: ref.length)
    batch = load_batch(FeatureReader(), refs, torch.device("cpu"))
    length = batch.ids.shape[1]
    found = {}
    for head in range(4):
        where = supervised(batch.has_label, head)
        labels = batch.ids.flatten()[where.teacher + 1]
        assert torch.equal(batch.ids.flatten()[where.context + head + 2], labels)
        # The teacher is the target's distribution at the label's own place: a RING is sure of it.
        teacher = batch.teacher_ids.flatten(0, 1)[where.teacher, 0]
        assert torch.equal(teacher, labels)
        found[head] = [
            (place // length, place % length, label)
            for place, label in zip(where.context.tolist(), labels.tolist(), strict=True)
        ]
    # (row, position, token): the first answer token is trained, the last one too, no padding.
    assert found[0] == [(0, 2, 7), (0, 3, 8), (1, 1, 3), (1, 2, 4), (1, 3, 5), (1, 4, 6), (1, 5, 7)]
    assert found[3] == [(0, 0, 8), (1, 0, 5), (1, 1, 6), (1, 2, 7)]


def test_T02_of_a_conversation_only_the_answers_are_labels(tmp_path: Path) -> None:
    # Two answers, 3 4 5 and 9 10, with the user's 6 7 8 between them.
    is_said = (True, True, True, False, False, False, True, True)
    row = Row("talk", "", 0.0, (0, 1, 2), (3, 4, 5, 6, 7, 8, 9, 10), is_said)
    plain = Row("plain", "", 0.0, (0, 1, 2), (3, 4, 5, 6, 7, 8, 9, 10))
    target = ring(RING)
    extract_features(target, [row, plain], tmp_path, FeatureConfig())
    refs = [ref for ref in list_rows(tmp_path) if ref.num_answer == 5]
    assert [ref.key for ref in refs] == [row.key] != [plain.key]
    batch = load_batch(FeatureReader(), refs, torch.device("cpu"))
    labels = {
        head: batch.ids[0, supervised(batch.has_label, head).teacher + 1].tolist()
        for head in range(4)
    }
    assert labels == {0: [3, 4, 5, 9, 10], 1: [3, 4, 5, 9, 10], 2: [4, 5, 9, 10], 3: [5, 9, 10]}
    # The teacher speaks in front of answers, and nowhere else.
    taught = batch.teacher_probs[0].sum(-1).nonzero().flatten().tolist()
    assert taught == [2, 3, 4, 8, 9]
    mass = teacher_mass(refs, RING)
    assert mass.round().long().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]


def test_ranks_of_a_conversation_end_with_each_answer(tmp_path: Path) -> None:
    # One token between two answers: without a limit the first would reach into the second.
    is_said = (True, True, True, False, True, True, True)
    row = Row("talk", "", 0.0, (0, 1, 2), (3, 4, 5, 6, 7, 8, 9), is_said)
    extract_features(ring(RING), [row], tmp_path, FeatureConfig())
    refs = list_rows(tmp_path)
    heads = exact_heads(ring(RING), ring_order(RING), "medusa")
    batch = load_batch(FeatureReader(), refs, torch.device("cpu"))
    traces = batch_ranks(heads, batch, LabelMap(heads))
    for trace in traces:
        found = (trace == 0).tolist()
        assert [row[:2] for row in found] == [[True, True], [True, False], [False, False]]
        assert not any(any(row[2:]) for row in found)
    assert len(traces) == 2


def test_memory_does_not_grow_with_the_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_OPEN_SHARDS", 3)
    config = FeatureConfig(rows_per_shard=2)

    def rows() -> Iterator[Row]:
        for number, row in enumerate(ring_rows(RING, 40)):
            # Whenever another row is asked for, the full shards before it are on the disk.
            assert len(list(tmp_path.glob("*.safetensors"))) == number // 2
            yield row

    extract_features(ring(RING), rows(), tmp_path, config)
    refs = list_rows(tmp_path)
    reader = FeatureReader()
    assert len({ref.shard for ref in refs}) == 20
    for epoch in range(2):
        for batch in plan_epoch(refs, 200, seed=0, epoch=epoch):
            load_batch(reader, batch, torch.device("cpu"))
            assert reader.num_open <= 3


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_T02_trained_heads_know_the_ring(kind: str, tmp_path: Path) -> None:
    target = ring(RING)
    extract_features(target, ring_rows(RING, 24), tmp_path / "features", FeatureConfig())
    config = TrainConfig(
        kind=kind,
        num_layers=1,
        draft_vocab_size=0,
        output="own",
        epochs=300 / 2,
        batch_tokens=400,
        lr=2e-2,
        warmup_steps=10,
        dropout=0.0,
        weight_decay=0.0,
        validation_share=0.2,
        validate_every=100,
        checkpoint_every=1000,
    )
    with pytest.warns(UserWarning, match="only 24 rows"):
        trained = train_from_features(
            target,
            list_rows(tmp_path / "features"),
            Places(tmp_path / "work", tmp_path / "heads"),
            config,
        )
    assert trained.result.validation["top_shares"]["top-1"] == [1.0] * 4
    # Each step brings 5, but rows of 15 to 19 tokens cut their last one short.
    assert trained.result.validation["mean_acceptance_length"]["chain-4"] > 4.0
    heads = load_heads(tmp_path / "heads", target)
    engine = Engine(target, heads, StaticPolicy(chain(4)))
    result = engine.generate([5, 6, 7], GenerationParams(max_tokens=41))
    assert list(result.token_ids) == [(8 + i) % RING for i in range(41)]
    assert result.stats.mean_acceptance_length == pytest.approx(5.0)


def test_no_prompt_is_on_both_sides_of_the_split(tmp_path: Path) -> None:
    rows = [
        Row(f"{start}-{size}", "", 0.0, (start, start + 1), tuple(range(3, 3 + size)))
        for start in range(10)
        for size in (2, 3, 4)
    ]
    extract_features(ring(RING), rows, tmp_path, FeatureConfig())
    refs = list_rows(tmp_path)
    split = split_rows(refs, 0.4)
    assert {r.prompt_key for r in split.train}.isdisjoint(r.prompt_key for r in split.validation)
    assert len(split.train) + len(split.validation) == len(refs) == 30
    assert split.validation
    assert split.train


def test_batches_hold_every_row_once_and_keep_to_their_size(tmp_path: Path) -> None:
    extract_features(ring(RING), ring_rows(RING, 30), tmp_path, FeatureConfig())
    refs = list_rows(tmp_path)
    for batches in (pack(refs, 100), plan_epoch(refs, 100, seed=0, epoch=1)):
        assert sorted(ref.key for batch in batches for ref in batch) == sorted(r.key for r in refs)
        assert all(max(r.length for r in batch) * len(batch) <= 100 for batch in batches)
    assert plan_epoch(refs, 100, 0, 0) == plan_epoch(refs, 100, 0, 0)
    assert plan_epoch(refs, 100, 0, 0) != plan_epoch(refs, 100, 0, 1)
