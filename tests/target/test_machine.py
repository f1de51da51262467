"""The name under which times are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from entmtp.target.machine import _cpu_name, machine_name

CORE = "processor\t: 0\nmodel name\t: Big Core\nflags\t\t: sse avx512f{more}\nbugs\t\t: a: b\n\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CORE.format(more=""), "Big Core"),
        (CORE.format(more=" amx_tile amx_int8") * 2, "Big Core with AMX"),
        (CORE.format(more=" amx_tiled"), "Big Core"),
    ],
)
def test_a_processor(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert _cpu_name(tmp_path / "cpuinfo") == name


def test_a_machine_always_has_a_name(tmp_path: Path) -> None:
    assert machine_name(torch.device("cpu"))
    assert _cpu_name(tmp_path / "missing")
    (tmp_path / "other").write_text("Features\t: fp asimd\n", encoding="utf-8")
    assert _cpu_name(tmp_path / "other")
