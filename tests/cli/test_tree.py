"""`entmtp tree show`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from entmtp.cli.app import run_command
from entmtp.trees import Tree, draw_tree, medusa_63

Capture = pytest.CaptureFixture[str]


def test_a_picture_of_ranks() -> None:
    tree = Tree.from_paths([[0], [1], [2], [3], [5], [3, 1], [3, 2], [0, 0], [0, 0, 4]])
    assert draw_tree(tree).splitlines() == [
        "root",
        "├─ 0",
        "│  └─ 0",
        "│     └─ 4",
        "├─ 1..2",
        "├─ 3",
        "│  └─ 1..2",
        "└─ 5",
    ]


def test_show_counts_by_depth(capsys: Capture) -> None:
    assert run_command(["tree", "show", "medusa-63", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "63 draft tokens, 10/28/23/2 by depth" in lines
    shown = json.loads(lines[-1])
    assert shown["nodes_per_depth"] == [10, 28, 23, 2]
    assert Tree.from_paths(shown["paths"]) == medusa_63()


def test_show_reads_medusas_list_form(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "tree.json"
    file.write_text("[[0, 0], [0], [1]]")
    assert run_command(["tree", "show", str(file)]) == 0
    assert "3 draft tokens, 2/1 by depth" in capsys.readouterr().out


def test_the_root_alone(capsys: Capture) -> None:
    assert run_command(["tree", "show", "root"]) == 0
    assert "plain decoding" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["show", "nonsense"], "no tree named 'nonsense'"), ([], "Missing command")],
)
def test_wrong_use_is_one_line_and_2(arguments: list[str], said: str, capsys: Capture) -> None:
    assert run_command(["tree", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_pipe_is_written_to_and_a_link_stays_a_link(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    file.write_text("old")
    link.symlink_to(file)
    assert run_command(["tree", "convert", "chain-1", str(link)]) == 0
    assert link.is_symlink()
    assert file.read_text() == "[[0]]\n"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run_command(["tree", "convert", "chain-1", str(pipe)]) == 0
    assert os.read(reader, 100) == b"[[0]]\n"
    os.close(reader)
    assert pipe.is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file"}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_bytes(b"\xef\xbb\xbf[[0], [1]]\r\n")
    assert run_command(["tree", "show", str(tmp_path / "tree.json")]) == 0


def test_one_of_several_must_be_named(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "trees.py"
    file.write_text("a = [[0]]\nb = [[0], [1]]\n")
    assert run_command(["tree", "show", str(file)]) == 2
    assert "has several trees; it has a, b: put a colon" in capsys.readouterr().err
