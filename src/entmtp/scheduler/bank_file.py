"""A bank of trees as a JSON file: written whole or not at all, read strictly.

Knows: the file. Does not know: models, how a bank is made.

Every key must be there and no other may be, but for those that an older version lacks and whose
lack means something; numbers are finite. Keys stand in one order and floats are written with six
digits (as many as they have meaning), so that the same bank is the same file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from entmtp.data.strict_json import MAX_COUNT, parse_json
from entmtp.data.whole import whole
from entmtp.errors import ArtefactError, BadInput, TreeError
from entmtp.scheduler.bank import TreeBank
from entmtp.trees import Tree

SCHEMA_VERSION = 5
_READABLE = (1, 2, 3, 4, SCHEMA_VERSION)
_ABSENT = {
    "switch_seconds": 0.0,
    "root_seconds": 0.0,
    "read_seconds": 0.0,
    "live": [],
    "num_threads": 0,
    "batches": [],
    "best_in_company": [],
    "blind": {"score": "accepted", "by_tree": []},
    "looks_at_root": True,
}
"""What older versions lack, and what that means: version 1 took switches for free, version 2 looks
too, and nothing was run live; version 3 does not say how many threads its times are of; version 4
has times of one sequence alone, and only the first stage that `throughput` uses"""
MAX_CHARACTERS = 20_000_000
_REMEDY = "make it again with `entmtp calibrate`"
_BROKEN = (
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
    TreeError,
    BadInput,
    ArtefactError,
)


def write_bank(bank: TreeBank, path: str | Path) -> None:
    """Write a bank, whole or not at all.

    Raises:
        ArtefactError: rounded to six digits it would contradict itself.
    """
    path = Path(path)
    text = bank_text(bank)
    try:
        _parse(text)
    except _BROKEN as error:
        raise ArtefactError(f"the bank cannot be written to {path}: {error}") from error
    with whole(path) as half:
        half.write_text(text, encoding="utf-8")


def bank_text(bank: TreeBank) -> str:
    """The file's text; `timing` is the last section."""
    content = {"schema_version": SCHEMA_VERSION, **_plain(bank)}
    sections = (f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(sections) + "\n}\n"


def read_bank(path: str | Path) -> TreeBank:
    """Read a bank.

    Raises:
        ArtefactError: there is none, it is of another version, or broken.
    """
    path = Path(path)
    if not path.is_file():
        raise ArtefactError(f"there is no bank {path}; make one with `entmtp calibrate`")
    try:
        text = path.read_text(encoding="utf-8")
        return _parse(text)
    except _OtherVersion as error:
        raise ArtefactError(f"{path} {error}; {_REMEDY}") from error
    except _BROKEN as error:
        raise _broken(path, error) from error


class _OtherVersion(Exception):
    """A file that is whole, but not of this program's schema."""


def _parse(text: str) -> TreeBank:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters")
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")
    version = content.pop("schema_version", None)
    if version not in _READABLE:
        raise _OtherVersion(f"has schema version {version}, this program reads {SCHEMA_VERSION}")
    bank = _read(TreeBank, content, "bank")
    assert isinstance(bank, TreeBank)
    return bank


def _broken(path: Path, error: Exception) -> ArtefactError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ArtefactError(f"{path} is broken ({reason}); {_REMEDY}")


def _plain(value: Any) -> Any:
    """A dataclass or named tuple as JSON values."""
    if isinstance(value, Tree):
        return [list(path) for path in value.paths[1:]]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ArtefactError(f"a bank holds the number {value}; all must be finite")
        return float(f"{value:.6g}")
    return value


def _lines(value: Any) -> str:
    """One entry of a section a line."""
    if isinstance(value, dict):
        inside = (f"  {json.dumps(key)}: {_dense(each)}" for key, each in value.items())
        return "{\n" + ",\n".join(inside) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {_dense(each)}" for each in value) + "\n]"
    return _dense(value)


def _dense(value: Any) -> str:
    """Without spaces, which would be a twelfth of a bank."""
    return json.dumps(value, separators=(",", ":"))


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of the declared type from JSON values.

    Raises:
        ValueError: it is none; says where.
        TreeError, BadInput, ArtefactError: it is one that contradicts itself.
    """
    if kind is Tree:
        return _read_tree(value, where)
    if get_origin(kind) is tuple:
        return _read_tuple(get_args(kind), value, where)
    if get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        of = get_args(kind)[1]
        return {key: _read(of, each, f"{where}.{key}") for key, each in value.items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _read_fields(kind, value, where)
    return _read_scalar(kind, value, where)


def _read_tree(value: Any, where: str) -> Tree:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list of rank paths")
    return Tree.from_paths(value)


def _read_tuple(of: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    if of == (float, ...) and all(type(each) is float and math.isfinite(each) for each in value):
        return tuple(value)  # most of a bank: not worth a name for each number
    kinds = [of[0]] * len(value) if of[-1] is Ellipsis else list(of)
    if len(kinds) != len(value):
        raise ValueError(f"{where} has {len(value)} entries, not {len(kinds)}")
    return tuple(
        _read(each, one, f"{where}[{place}]")
        for place, (each, one) in enumerate(zip(kinds, value, strict=True))
    )


_hints = cache(get_type_hints)


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    hints = _hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    if isinstance(value, dict):
        value = {name: absent for name, absent in _ABSENT.items() if name in names} | value
    if not isinstance(value, dict) or set(value) != set(names):
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"{where} holds {found}, not {sorted(names)}")
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in names})


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    assert not isinstance(kind, UnionType), "a bank has no optional parts"
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # True is an int to Python, and no count.
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{where} is {value!r}, not of type {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    if kind is int and abs(value) > MAX_COUNT:
        raise ValueError(f"{where} is {value}, which is no count")
    return value
