"""`benchmarks/remedies.py` and its parts: dry, on a tiny model, and on traces made up."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from entmtp.calibrate.answers import AnswerConfig
from entmtp.calibrate.association import mutual_information
from entmtp.calibrate.live import LiveConfig
from entmtp.calibrate.pipeline import CalibrationConfig, calibrate
from entmtp.calibrate.scores import Score
from entmtp.calibrate.timing import TimingConfig
from entmtp.data import Message, Prompt
from entmtp.heads import load_heads
from entmtp.scheduler import StaticPolicy, write_bank
from entmtp.target.load import load_target
from made_banks import fit
from made_traces import RISING, by_chance
from scripts import run_script, script, tiny_heads_folder, tiny_model_folder

pytestmark = pytest.mark.filterwarnings("ignore:only")
NUM_TOKENS = 12


@cache
def banks() -> Path:
    """A folder with one bank under the names of all."""
    folder = Path(mkdtemp(prefix="entmtp-banks-"))
    target = load_target(str(tiny_model_folder()), "float32")
    heads = load_heads(tiny_heads_folder(), target)
    asked = [(Message("user", f"question {place}"),) for place in range(4)]
    prompts = [Prompt(f"p/{n}", "code", one, is_text=True) for n, one in enumerate(asked)]
    config = CalibrationConfig(
        AnswerConfig(max_tokens=NUM_TOKENS), TimingConfig(seconds=0), LiveConfig(0)
    )
    bank = calibrate(target, heads, prompts, folder / "bank.json", config).bank
    for kind in ("code", "maths"):
        write_bank(bank, folder / f"bank-{kind}.json")
    return folder


def test_every_variant_has_a_promise_and_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("remedies", monkeypatch)
    for name in ("code", "maths", "held-out"):
        rows = [{"id": f"{name}/{n}", "prompt": f"{name} {n}"} for n in range(3)]
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ["--source", f"code={tmp_path / 'code'}", "--source", f"maths={tmp_path / 'maths'}"]
    flags += ["--calibration", str(tmp_path / "held-out"), "--limit", "4", "--max-tokens"]
    flags += [str(NUM_TOKENS), "--model", str(tiny_model_folder()), "--runtime", "eager"]
    flags += ["--heads", str(tiny_heads_folder()), "--banks", str(banks()), "--dtype", "float32"]
    content = run_script(
        module, [*flags, "--timing-seconds", "0"], tmp_path / "out.json", monkeypatch
    )
    rows = {row["name"]: row for row in content["variants"]}
    assert list(rows)[:2] == ["plain", "static"]
    causes = {row["cause"] for row in rows.values()}
    assert {"features", "calibration", "time model"} <= causes
    for name, row in rows.items():
        assert row["live"]["num_identical"] == 4, name
        assert row["steps"]["num_as_replayed"] == 4, name
        assert row["replay"]["tokens_per_second"] > 0 < row["live"]["decode_ratio"]
        assert set(row["live_by_kind"]) == {"code", "maths"}
    assert rows["static"]["live"]["ratio"] == 1
    assert rows["static"]["replay"]["gain"] == rows["static"]["replay_by_own_times"]["gain"] == 0
    assert set(content["throughput_over"]) == {"static", "ladder", "hysteresis", "per-step"}
    assert {"blend0", "blend1", "p0", "accepted"} <= {
        row["name"] for row in content["signals"]["scores"]
    }
    assert set(content["by_score"]["blend1"]) == {"priced", "free"}
    assert [row["prior"] for row in content["by_prior"]] == 2 * [6, 20, 60, 200, None]
    assert str(tmp_path) not in json.dumps(content)


def test_promises_are_measured_between_the_static_tree_and_the_perfect_chooser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promises_of = script("remedy_promises", monkeypatch).Promises
    traces = {"code": by_chance(8, 40), "maths": by_chance(8, 40, seed=3)}
    bank = fit(traces["code"])
    found = promises_of(traces, bank, RISING, 40)
    static = found.of(
        found.seconds_of(found.replay(dict.fromkeys(traces, StaticPolicy(bank.best_static))))
    )
    assert static["gain"] == static["gap_share"] == 0
    assert found.bounds["bank_perfect"]["gap_share"] == pytest.approx(1)
    assert 0 < found.bounds["bank_this_step"]["gap_share"] <= 1
    dearer = promises_of(traces, bank, replace(RISING, host_seconds=9.0), 40)
    assert (
        dearer.bounds["bank_perfect"]["tokens_per_second"]
        < (found.bounds["bank_perfect"]["tokens_per_second"])
    )


def test_a_blend_finds_what_no_single_score_says(monkeypatch: pytest.MonkeyPatch) -> None:
    blend = script("remedy_signals", monkeypatch).Blend
    generator = np.random.default_rng(0)
    one, other = generator.random((2, 4000))
    accepted = ((one + other) * 2).astype(np.int64)
    known = {"p0": Score("p0", one, 0), "g1": Score("g1", other, 1)}
    half = np.arange(4000) < 2000
    found = blend(known, accepted, half).of(known)
    told = mutual_information(found.values[~half], accepted[~half])
    assert (found.name, found.levels) == ("blend1", 1)
    for score in known.values():
        assert told > 1.5 * mutual_information(score.values[~half], accepted[~half])


def test_entropy_is_in_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = script("remedy_signals", monkeypatch).entropy
    assert entropy(np.array([3, 3])) == 0
    assert entropy(np.array([0, 1, 0, 1])) == pytest.approx(np.log(2))


def test_a_table_tells_where_time_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = script("remedy_tables", monkeypatch)

    def steps(live: tuple[float, ...], table: tuple[float, ...]) -> dict[str, dict[str, float]]:
        named = zip(("draft", "verify", "host", "look", "switch"), table, strict=True)
        return {
            "live_milliseconds": dict(zip(tables.PARTS, live, strict=True)),
            "table_milliseconds": dict(named),
        }

    static = steps((2.0, 16.0, 2.0), (1.0, 8.0, 1.0, 0.0, 0.0))  # twice as slow as the table
    same = steps((2.0, 16.0, 2.0), (1.0, 8.0, 1.0, 0.0, 0.0))
    assert tables.losses(same, static) == [0, 0, 0]
    slower = steps((2.0, 17.0, 4.0), (1.0, 8.0, 1.0, 0.5, 0.5))
    assert tables.losses(slower, static) == pytest.approx([0, 0, 0.05])


def test_figures_without_an_interval_or_a_ratio_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = script("remedy_tables", monkeypatch)
    assert tables.promised({"gain": 0.1, "low": None, "high": None}) == "1.100x"
    assert tables.ratio({"ratio": None, "ratio_low": None, "ratio_high": None}, "ratio") == "-"
    assert tables.percent(None) == "-"
    assert tables.percent(-0.256) == "-26 %"
