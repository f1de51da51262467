"""Case T08: a run killed at any time (kill -9) and started again ends as if it had not been."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from entmtp.data.lock import alone_in
from killed_runs import Fault, run_killed, run_small
from training_commands import Capture, command, refused, talks, write

KILLS = {
    "answers": Fault("entmtp.train.answers:_line", 6, "before"),
    "the first shard": Fault("entmtp.train.shards:save_file", 1, "middle"),
    "a later shard": Fault("entmtp.train.shards:save_file", 2, "middle"),
    "the best, not yet the last": Fault("entmtp.train.trainer:save_weights", 1, "behind"),
    "a step": Fault("entmtp.train.trainer:batch_loss", 17, "before"),
    "half a save": Fault("entmtp.train.checkpoint:torch.save", 3, "middle"),
    "a save without its rename": Fault("entmtp.train.checkpoint:torch.save", 1, "behind"),
    "half the heads": Fault("entmtp.heads.format:save_file", 1, "middle"),
    "heads without trees": Fault("entmtp.train.pipeline:write_static_trees", 1, "before"),
}
"""In the order in which a run meets them: each goes on from where the one before died."""


def long_command(model: Path, folder: Path, prompts: Path, *more: str) -> list[str]:
    source = ("--prompts", str(prompts), "--num-tokens", "120", "--max-tokens", "9")
    pace = ("--epochs", "12", "--validate-every", "15", "--checkpoint-every", "7")
    return command(model, folder, *source, *pace, *more, kind="hydra++")


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that a run leaves, but for its checkpoints."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pt"]
    assert not [path for path in files if path.name.startswith(".")], "halves lie about"
    return {str(path.relative_to(folder)): _content(path) for path in files}


def _content(path: Path) -> bytes:
    """Of safetensors the tensors: their metadata stand in no order."""
    if path.suffix != ".safetensors":
        return path.read_bytes()
    return safetensors.torch.save(load_file(path))


@pytest.fixture(scope="module")
def whole(model: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_small(long_command(model, folder, prompts)) == 0
    return folder


def test_T08_killed_anywhere_and_again_a_run_ends_with_the_same_files(
    model: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = long_command(model, tmp_path, prompts)
    for fault in KILLS.values():
        run_killed(arguments, fault)
    assert run_small(arguments) == 0
    expected, found = contents(whole), contents(tmp_path)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    states = [torch.load(folder / "work/run-hydra++/last.pt") for folder in (whole, tmp_path)]
    assert states[0]["progress"] == states[1]["progress"]
    for name, value in states[0]["module"].items():
        assert torch.equal(states[1]["module"][name], value), name


def test_T08_changed_data_or_settings_are_said_and_made_anew_only_if_asked(
    model: Path, prompts: Path, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    arguments = long_command(model, tmp_path, prompts)
    assert run_small(arguments) == 0
    before = contents(tmp_path)
    fewer = write(tmp_path / "fewer.jsonl", [{"prompt": f"question {i}"} for i in range(7)])
    for more, words in (
        (("--lr", "0.01"), r"last.pt belongs to .* \(lr 0.002 -> 0.01\).* pass --restart"),
        (("--prompts", str(fewer)), r"answers.jsonl belongs to .*\(num_prompts 8 -> 15, prompts"),
        (("--max-tokens", "8"), r"answers.jsonl belongs to .*\(max_tokens 9 -> 8\)"),
        (("--dtype", "bfloat16"), r"answers.jsonl belongs to .*\(dtype float32 -> bfloat16\)"),
    ):
        assert run_small([*arguments, *more]) == 2
        assert re.search(words, capsys.readouterr().err.strip().splitlines()[-1])
    fewer.unlink()
    assert contents(tmp_path) == before
    assert run_small([*arguments, "--lr", "0.01", "--restart"]) == 0
    after = contents(tmp_path)
    assert after["heads/heads.safetensors"] != before["heads/heads.safetensors"]
    assert after["work/answers.jsonl"] == before["work/answers.jsonl"], "what fits is kept"
    assert run_small([*arguments, "--restart"]) == 0
    assert contents(tmp_path) == contents(whole)


def test_T08_new_heads_killed_while_written_leave_no_mixture(
    model: Path, prompts: Path, tmp_path: Path
) -> None:
    arguments = long_command(model, tmp_path, prompts)
    assert run_small(arguments) == 0
    fault = Fault("entmtp.heads.format:save_file", 1, "behind")
    run_killed([*arguments, "--lr", "0.01", "--restart"], fault)
    assert not (tmp_path / "heads/heads.json").exists(), "what names the old heads is gone"


def test_T09_a_second_run_in_a_work_folder_is_refused(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(9))
    arguments = command(model, tmp_path, "--answers", str(file))
    with alone_in(tmp_path / "work", "train-heads run", keep_empty=False):
        line = refused(arguments, capsys)
    assert f"another train-heads run is at work in {tmp_path / 'work'}; wait until" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    assert run_small(arguments) == 0


def test_a_full_disk_is_one_line(
    model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(9))

    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        line = refused(command(model, tmp_path, "--answers", str(file)), capsys)
    assert "best.pt" in line
    assert "free some space and run again" in line
    (tmp_path / "work/features").rename(tmp_path / "elsewhere")
    (tmp_path / "work/features").write_text("in the way")
    line = refused(command(model, tmp_path, "--answers", str(file)), capsys)
    assert "features: File exists; see to it and run again" in line
