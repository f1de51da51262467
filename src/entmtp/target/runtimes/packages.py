"""Compiled layers on disk: made once for a kind of layer and of machine, whatever the weights.

Knows: Inductor's ahead-of-time packages, the C++ compiler that they need, and what makes a package
another one. Does not know: models, caches, how a package is used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import BadInput
from entmtp.target.code import code_digest
from entmtp.target.gguf_file import quiet

if TYPE_CHECKING:
    from entmtp.target.runtimes.regions import Run

_RECIPE = "1"
"""Raised by one when a region's graph changes, so that packages of the old kind are made anew."""
_SETTINGS = {"cpp.dynamic_threads": True}
"""Else the number of threads in use now would be part of the code."""
_LAYERS = "layers"
"""The file of what is remembered."""


class Source(NamedTuple):
    """What is compiled, and with which tensors it is traced."""

    function: nn.Module
    example: Sequence[torch.Tensor]
    free: Sequence[dict[int, object]]
    """Of each tensor: which of its sizes are free"""


class Place(NamedTuple):
    """Where the packages of a model lie, and from what they must have been made."""

    folder: Path
    source: dict[str, str]

    @property
    def is_made(self) -> bool:
        return is_complete(self.folder, self.source)


def place_of(description: str, number_format: str) -> Place:
    """
    Args:
        description: all that decides what the layers compute, but for their weights.
    """
    return _place_of_layers(hashlib.sha256(description.encode()).hexdigest(), number_format)


def remembered_place(
    target: Mapping[str, str], number_format: str, find: Callable[[], Place]
) -> Place:
    """What `find` finds, in an instant where it was asked for the same target before.

    Args:
        target: all that the description of its layers hangs on, but for the code.

    Raises:
        FetchError: the cache cannot be written to.
    """
    source = {**target, "number_format": number_format, "code": code_digest(), "machine": machine()}
    name = hashlib.sha256(repr(sorted(source.items())).encode()).hexdigest()[:16]
    folder = cache_dir() / f"plan-{name}"
    if is_complete(folder, source):
        with suppress(OSError):  # it may be removed meanwhile
            layers = (folder / _LAYERS).read_text(encoding="utf-8")
            return _place_of_layers(layers, number_format)
    place = find()
    with new_folder(folder, source) as part:
        (part / _LAYERS).write_text(place.source["layers"], encoding="utf-8")
        write_manifest(part, source)
    return place


def _place_of_layers(layers: str, number_format: str) -> Place:
    source = {
        "layers": layers,
        "number_format": number_format,
        "machine": machine(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "recipe": _RECIPE,
    }
    name = hashlib.sha256(repr(sorted(source.items())).encode()).hexdigest()[:16]
    return Place(cache_dir() / f"compiled-{name}-{number_format}", source)


def stored_packages(
    place: Place, sources: Sequence[Source], name: str, progress: Progress
) -> list[Run]:
    """Each source as a function from tensors to tensors, compiled now where the cache has it not.

    Raises:
        BadInput: there is something to compile and no compiler.
        FetchError: the cache cannot be written to.
    """
    files = [f"region-{index}.pt2" for index in range(len(sources))]
    if not place.is_made:
        demand_compiler()
        progress(f"compiling the layers of {name}, once, for about a minute")
        with new_folder(place.folder, place.source) as folder:
            for file, source in zip(files, sources, strict=True):
                _compile(source, folder / file)
            write_manifest(folder, place.source)
    return [_load(place.folder / file) for file in files]


def demand_compiler() -> None:
    """
    Raises:
        BadInput: there is none.
    """
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise BadInput(
            f"the compiled runtime needs a C++ compiler at its first use, and {name} is not found;"
            " install it, set CXX to another one, or use --runtime eager"
        )


def machine() -> str:
    """The processor, as far as compiled code depends on it."""
    abilities = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        abilities += [line for line in lines if line.startswith(("flags", "Features"))][:1]
    return hashlib.sha256(" ".join(abilities).encode()).hexdigest()


@torch.inference_mode(False)  # its tensors cannot be traced
@torch.no_grad()
def _compile(source: Source, path: Path) -> None:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own calls are out of date in its own eyes
        program = torch.export.export(
            source.function.eval(),
            tuple(tensor.clone() for tensor in source.example),
            dynamic_shapes={"tensors": tuple(source.free)},
            strict=False,
        )
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=_SETTINGS
        )


def _load(path: Path) -> Run:
    package = torch._inductor.aoti_load_package(str(path))
    # Calling the package itself would sort arguments by name, which takes longer than a norm.
    run: Run = package.loader.run
    return run
