"""`benchmarks/first_token.py` on commands that stand in for `entmtp generate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from entmtp.errors import EntmtpError
from scripts import run_script, script

SAYS = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(.05);"


def test_the_time_ends_with_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("first_token", monkeypatch)
    code = f"{SAYS} print('a', end='', flush=True); time.sleep(.4); print('b')"
    start = module.start([sys.executable, "-S", "-c", code], dict(os.environ))
    assert 0.05 < start.seconds < 0.4
    [(seconds, line)] = start.notes
    assert line == "loading"
    assert seconds < start.seconds


def test_a_command_that_fails_or_says_nothing_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = script("first_token", monkeypatch)
    for code in ("import sys; print('a'); sys.exit('no such model')", "pass"):
        with pytest.raises(EntmtpError, match="it said"):
            module.start([sys.executable, "-S", "-c", code], dict(os.environ))


def test_states_of_the_cache(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command sees the cache that its state promises, and the user's own is not touched."""
    module = script("first_token", monkeypatch)
    for folder in ("smollm2-135m", "openvino-1-int8"):
        (empty_cache / folder).mkdir(parents=True)
    lists = "import os; print(sorted(os.listdir(os.environ['ENTMTP_CACHE'])), file=sys.stderr)"
    command = [sys.executable, "-S", "-c", f"import sys; {lists}; print('a')"]
    seen = {}
    for state in module.states_of("smollm2-135m"):
        start = module.start_in(state, command, dict(os.environ), tmp_path)
        seen[state.name] = start.notes[0][1]
    assert seen == {
        "warm": "['openvino-1-int8', 'smollm2-135m']",
        "converted": "['smollm2-135m']",
        "first run": "[]",
    }
    assert len(list(empty_cache.iterdir())) == 2


def test_a_whole_measurement(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_cache.mkdir()
    module = script("first_token", monkeypatch)
    monkeypatch.setattr(module, "ENTMTP", "import sys; print(sys.argv[1:])")
    flags = ["--model", "a-folder", "--repeats", "2", "--flags=--policy plain"]
    content = run_script(module, flags, tmp_path / "first.json", monkeypatch)
    assert content["command"][:2] == ["entmtp", "generate"]
    assert content["command"][-2:] == ["--policy", "plain"]
    assert {name: len(one["seconds"]) for name, one in content["states"].items()} == {
        "warm": 2,
        "first run": 2,
    }
    assert content["states"]["warm"]["is_within"]
