"""The log of a training run: whole lines count, up to the first that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from entmtp.train.metrics import MetricsLog, read_metrics


@pytest.mark.parametrize(
    "line",
    ['{"step": 3', "3", "{}", '{"step": "3"}', '{"step": 3, "loss": NaN}', "[" * 100_000],
)
def test_what_is_no_entry_ends_the_log(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2):
        log.write({"step": step, "loss": 0.5})
    path.write_text(f"{path.read_text()}{line}\n" + '{"step": 4}\n')
    assert [entry["step"] for entry in read_metrics(path)] == [1, 2]
    log.truncate(1)
    assert read_metrics(path) == [{"step": 1, "loss": 0.5}]
