"""Ways to compute a target's forward, beside one another, all under the same law.

A runtime is a subclass of `TargetModel` and a cache of its own. Of the first it replaces

    new_cache(batch_size, capacity)           room for sequences; grows by itself
    forward(ids, positions, among, cache)     hidden states of B x T rows behind what is committed
    logits(hidden)                            float32 logits of whichever rows are asked for
    warm_up(num_rows)                         whatever would make a first step slow

and of the second, a `KVCache`, what moves rows: `keep`, `advance`, `truncate`, `copy_row`,
`add_row`, `view`. `TargetModel` and `KVCache` themselves are the runtime `eager`.

Knows: which runtime fits what was asked for. Does not know: how one works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

from entmtp.data.cache import Progress
from entmtp.errors import BadInput, EntmtpError, ModelRefused
from entmtp.target.architecture import FULL
from entmtp.target.model import TargetModel
from entmtp.target.output import is_plain
from entmtp.target.runtimes.graphs import GraphsTarget, misfit
from entmtp.target.runtimes.openvino import FORMATS, OpenVinoTarget

RUNTIMES = ("auto", "eager", "openvino", "graphs")
INT8 = "int8"
"""The format that no `torch` dtype stands for."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

_log = logging.getLogger(__name__)


def parse_runtime(name: str, number_format: str, device: str = "") -> str:
    """Refuse what cannot be, before anything is loaded.

    Args:
        device: where the model is to be, if that is known.
    """
    if name not in RUNTIMES:
        raise BadInput(f"unknown runtime {name!r}; expected one of {', '.join(RUNTIMES)}")
    if name == "graphs" and device == "cpu":
        raise BadInput(
            "the graphs runtime is for CUDA devices, and the device is cpu; use --device cuda, or"
            " another --runtime"
        )
    if name in ("eager", "graphs") and number_format == INT8:
        raise BadInput(
            "int8 needs --runtime openvino, where a command has it; else choose another --dtype"
        )
    missing = _missing(number_format)
    if missing and must_be_openvino(name, number_format):
        raise BadInput(f"the openvino runtime cannot be used: {missing}")
    return name


def must_be_openvino(runtime: str, number_format: str) -> bool:
    """Whether nothing else will do."""
    return runtime == "openvino" or number_format == INT8


def on_runtime(
    target: TargetModel,
    runtime: str,
    number_format: str,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> TargetModel:
    """`target` itself or its like on another runtime, checked either way.

    Raises:
        BadInput: the runtime that was asked for does not serve this target.
        ModelRefused: the model fails the check.
    """
    parse_runtime(runtime, number_format)
    is_on_cuda = target.device.type == "cuda" and number_format != INT8
    if runtime == "graphs" or (runtime == "auto" and is_on_cuda):
        return _on_graphs(target, runtime == "graphs", check, progress)
    reason = _missing(number_format) or _misfit(target)
    is_demanded = must_be_openvino(runtime, number_format)
    if reason and is_demanded:
        raise BadInput(f"the openvino runtime cannot be used: {reason}; use --runtime eager")
    if runtime == "eager" or reason:
        if runtime == "auto":
            progress(f"runtime eager: {reason}")
        check(target)
        return target
    if runtime == "auto":
        progress("runtime openvino: it is installed and has the model's layers and format")
    try:
        fast = _on_openvino(target, number_format, progress)
        check(fast)
    except EntmtpError as error:
        if is_demanded:
            raise
        check(target)
        _log.warning("falling back to runtime eager, which is slower: %s", error)
        return target
    return fast


def _on_graphs(
    target: TargetModel,
    is_demanded: bool,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> TargetModel:
    """`target` by CUDA graphs, or (unless they are demanded) itself where that cannot be."""
    reason = misfit(target)
    if reason is None and (experts := _experts(target)):
        reason = f"the model chooses experts ({experts}), and a graph has no choices"
    if reason is None:
        progress("runtime graphs: the model is on a CUDA device")
        try:
            fast = GraphsTarget(target, progress=progress)
            check(fast)
            return fast
        except EntmtpError as error:
            if is_demanded:
                raise
            reason = str(error)
    elif is_demanded:
        raise BadInput(f"the graphs runtime cannot be used: {reason}; use --runtime eager")
    check(target)
    _log.warning("falling back to runtime eager, which is slower: %s", reason)
    return target


def _on_openvino(target: TargetModel, number_format: str, progress: Progress) -> TargetModel:
    """Raises ModelRefused: OpenVINO cannot make a graph of it, or not compile that."""
    try:
        return OpenVinoTarget(target, number_format, progress)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ModelRefused(
            f"the openvino runtime cannot compute {target.config.model_type} in {number_format}"
            f" ({type(error).__name__}: {' '.join(str(error).split())}); use --runtime eager"
        ) from error


def _missing(number_format: str) -> str | None:
    """Why openvino cannot be used here, whatever the model."""
    if find_spec("openvino") is None:
        return "openvino is not installed (pip install 'entmtp[openvino]')"
    if number_format not in FORMATS:
        return f"it has no {number_format}; expected one of {', '.join(FORMATS)}"
    return None


def _misfit(target: TargetModel) -> str | None:
    """Why openvino cannot be used for this target."""
    if target.device.type != "cpu":
        return f"it is for CPUs, and the model is on {target.device}"
    if kinds := target.architecture.kinds - {FULL}:
        return f"it has no masks for layers of kind {', '.join(sorted(kinds))}"
    if target.shipped_attention is None:
        return (
            f"{target.config.model_type} keeps attention of its own, and a row of that may differ"
        )
    if not all(is_plain(weight) for weight in target.transformers_model.parameters()):
        return "the model's weights are packed by a quantisation package"
    if experts := _experts(target):
        return f"the model chooses experts ({experts}), and a graph has no choices"
    return None


def _experts(target: TargetModel) -> str | None:
    """The setting that says that rows go different ways, which a traced graph cannot hold."""
    settings = target.config.to_dict()
    return next((name for name in _EXPERTS if (settings.get(name) or 0) > 1), None)


__all__ = [
    "RUNTIMES",
    "GraphsTarget",
    "OpenVinoTarget",
    "must_be_openvino",
    "on_runtime",
    "parse_runtime",
]
