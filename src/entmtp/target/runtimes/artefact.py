"""Exported graphs on disk: made once for a checkpoint, never used for another.

Knows: where a graph lies in the cache folder and what it must have been made from. Does not know:
how a graph is made in detail, or how it runs.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.export import export_body, export_output, quantise_weights

BODY, OUTPUT = "body.xml", "output.xml"
_RECIPE = "4"
"""Raised by one when the graph changes, so that graphs of the old kind are made anew."""


class Graphs(NamedTuple):
    """Files of one target: its body, and its output layer where that is quantised, too."""

    folder: Path
    body: Path
    output: Path | None


def stored_graphs(target: TargetModel, number_format: str, progress: Progress) -> Graphs:
    """The graphs of `target`, exported now where the cache does not have them.

    Raises:
        FetchError: the cache cannot be written to.
    """
    is_int8 = number_format == "int8"
    final = cache_dir() / f"openvino-{target.fingerprint}-{number_format}"
    source = {
        "number_format": number_format,
        "weights": _hash_of_weights(target),
        "config": hashlib.sha256(target.config.to_json_string().encode()).hexdigest(),
        "openvino": version("openvino"),
        "transformers": version("transformers"),
        "recipe": _RECIPE,
    }
    if not is_complete(final, source):
        progress(f"exporting {target.name} to OpenVINO, {number_format} (once)")
        with new_folder(final, source) as folder:
            _export(target, folder, is_int8)
            write_manifest(folder, source, {"torch": version("torch")})
    return Graphs(final, final / BODY, final / OUTPUT if is_int8 else None)


def _export(target: TargetModel, folder: Path, is_int8: bool) -> None:
    import openvino as ov

    body = export_body(target.transformers_model, target.layout)
    if is_int8:
        quantise_weights(body)
        output = export_output(target.output_weight, target.output_bias)
        quantise_weights(output)
        ov.save_model(output, folder / OUTPUT, compress_to_fp16=False)
    ov.save_model(body, folder / BODY, compress_to_fp16=False)


def _hash_of_weights(target: TargetModel) -> str:
    """SHA-256 over every bit of every parameter and buffer, as they are in memory."""
    digest = hashlib.sha256()
    for name, tensor in sorted(target.transformers_model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
