"""What `entmtp` exports is what it says it exports. (ruff keeps `__all__` sorted.)"""

from __future__ import annotations

import entmtp


def test_all_names_exist_once() -> None:
    assert len(entmtp.__all__) == len(set(entmtp.__all__))
    missing = [name for name in entmtp.__all__ if not hasattr(entmtp, name)]
    assert not missing


def test_nothing_public_is_left_out() -> None:
    public = {
        name
        for name, value in vars(entmtp).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("entmtp")
    }
    assert public <= set(entmtp.__all__)
