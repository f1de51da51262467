"""Exported graphs on disk: made once for a checkpoint, never used for another.

Knows: where a graph lies in the cache folder and what it must have been made from. Does not know:
how a graph is made in detail, or how it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.export import export_body, export_output
from entmtp.target.runtimes.rewrite import quantise_weights

BODY, OUTPUT = "body.xml", "output.xml"
_RECIPE = "8"
"""Raised by one when the graph changes, so that graphs of the old kind are made anew."""


class Graphs(NamedTuple):
    """Files of one target: its body and its output layer."""

    folder: Path
    body: Path
    output: Path


def stored_graphs(target: TargetModel, number_format: str, progress: Progress) -> Graphs:
    """The graphs of `target`, exported now where the cache does not have them.

    Raises:
        FetchError: the cache cannot be written to.
    """
    source = {
        "number_format": number_format,
        "weights": hash_of_tensors(target.transformers_model.state_dict()),
        "config": hashlib.sha256(target.config.to_json_string().encode()).hexdigest(),
    }

    def export(folder: Path) -> None:
        progress(f"exporting {target.name} to OpenVINO, {number_format} (once)")
        body = export_body(target.transformers_model, target.layout)
        save_graph(body, folder / BODY, number_format)
        output = export_output(target.output_weight, target.output_bias)
        save_graph(output, folder / OUTPUT, number_format)

    folder = stored(f"openvino-{target.fingerprint}-{number_format}", source, export)
    return Graphs(folder, folder / BODY, folder / OUTPUT)


def stored(name: str, source: Mapping[str, str], export: Callable[[Path], None]) -> Path:
    """A folder of graphs made from `source`, filled by `export` where the cache does not have it.

    Raises:
        FetchError: the cache cannot be written to.
    """
    final = cache_dir() / f"{name}-{_RECIPE}"
    versions = {package: version(package) for package in ("openvino", "transformers")}
    source = {**source, **versions, "recipe": _RECIPE}
    if not is_complete(final, source):
        with new_folder(final, source) as folder:
            export(folder)
            write_manifest(folder, source, {"torch": version("torch")})
    return final


def save_graph(graph: Any, path: Path, number_format: str) -> None:
    """Write a float32 graph in its format: int8 becomes that here, the others when compiled."""
    import openvino as ov

    if number_format == "int8":
        quantise_weights(graph)
    ov.save_model(graph, path, compress_to_fp16=False)


def hash_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over every bit of every tensor, as they are in memory."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
