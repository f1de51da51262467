"""`entmtp tree show`."""

from __future__ import annotations

import json
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
