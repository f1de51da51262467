"""Imports go down only (docs/architecture.md), and a test says so rather than a reviewer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "entmtp"

EVERYWHERE = {"errors", "data"}
TARGET = {"trees", "target"}
ENGINE = {*TARGET, "heads", "decode", "scheduler", "engine"}
MEASURE = {*ENGINE, "measure"}
WORKSHOPS = {"calibrate", "train", "bench", "serve"}

MAY_IMPORT = {
    "errors": set(),
    "data": {"errors"},
    "trees": EVERYWHERE,
    "target": {*EVERYWHERE, "trees"},
    "heads": {*EVERYWHERE, *TARGET},
    "decode": {*EVERYWHERE, *TARGET},
    # The scheduler never sees a model.
    "scheduler": {*EVERYWHERE, "trees"},
    "engine": {*EVERYWHERE, *ENGINE},
    # What a clock says, for whoever compares: bench and calibrate.
    "measure": {*EVERYWHERE, *ENGINE},
    **{room: {*EVERYWHERE, *MEASURE} for room in WORKSHOPS},
    "cli": {*EVERYWHERE, *MEASURE, *WORKSHOPS},
    # The package's own face.
    "__init__": {*EVERYWHERE, *MEASURE, *WORKSHOPS},
}


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(module: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import of this package, wherever in the file it stands."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            names = [node.module or ""]
            if node.module == "entmtp":
                names = [f"entmtp.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "entmtp":
                yield node.lineno, rest.partition(".")[0] or "__init__"


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(module: Path) -> None:
    room = room_of(module)
    assert room in MAY_IMPORT, f"{room} is a room this test does not know: give it its place"
    allowed = {room, *MAY_IMPORT[room]}
    wrong = [
        f"line {line}: {other}" for line, other in imported_rooms(module) if other not in allowed
    ]
    assert not wrong, f"{wrong}: {room} may import only {sorted(allowed)}"


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("import entmtp.cli.app\ndef f():\n    from entmtp import engine, errors\n")
    assert list(imported_rooms(module)) == [(1, "cli"), (3, "engine"), (3, "errors")]
