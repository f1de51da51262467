"""The garbage collector pauses while a command gets ready, and only then."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from entmtp.cli import app, collection
from entmtp.cli.collection import no_collection


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_it_pauses_inside_the_block_whatever_happens_there() -> None:
    seen: list[bool] = []

    def fail() -> None:
        with no_collection():
            seen.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("is_one_command", [False, True])
def test_only_what_ends_with_its_command_keeps_what_was_made(
    monkeypatch: pytest.MonkeyPatch, is_one_command: bool
) -> None:
    gc.unfreeze()
    monkeypatch.setattr(collection, "_is_one_command", False)
    if is_one_command:
        collection.for_one_command()
    with no_collection():
        pass
    assert bool(gc.get_freeze_count()) == is_one_command


def test_a_caller_without_it_is_left_without_it() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_verb_is_imported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    imported = app.import_module

    def watched(name: str) -> object:
        enabled.append(gc.isenabled())
        return imported(name)

    monkeypatch.setattr(app, "import_module", watched)
    app.build("tree")
    assert enabled == [False]
    assert gc.isenabled()
