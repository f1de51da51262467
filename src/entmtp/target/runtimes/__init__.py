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
from entmtp.errors import BadInput, EntmtpError
from entmtp.target.model import TargetModel, refusing_misfits
from entmtp.target.runtimes.openvino import FORMATS, OpenVinoTarget

RUNTIMES = ("auto", "eager", "openvino")
INT8 = "int8"
"""The format that no `torch` dtype stands for."""

_log = logging.getLogger(__name__)


def parse_runtime(name: str, number_format: str) -> str:
    """Refuse what cannot be, before anything is loaded."""
    if name not in RUNTIMES:
        raise BadInput(f"unknown runtime {name!r}; expected one of {', '.join(RUNTIMES)}")
    if name == "eager" and number_format == INT8:
        raise BadInput("int8 needs --runtime openvino; or choose another --dtype")
    missing = _missing(number_format)
    if missing and (name == "openvino" or number_format == INT8):
        raise BadInput(f"the openvino runtime cannot be used: {missing}")
    return name


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
    reason = _missing(number_format) or _misfit(target)
    must_be_openvino = runtime == "openvino" or number_format == INT8
    if reason and must_be_openvino:
        raise BadInput(f"the openvino runtime cannot be used: {reason}")
    if runtime == "eager" or reason:
        if runtime == "auto":
            progress(f"runtime eager: {reason}")
        check(target)
        return target
    if runtime == "auto":
        progress("runtime openvino: it is installed and has the model's layers and format")
    try:
        with refusing_misfits(target.transformers_model):
            fast = OpenVinoTarget(target, number_format, progress)
        check(fast)
    except EntmtpError as error:
        if must_be_openvino:
            raise
        check(target)
        _log.warning("falling back to runtime eager, which is slower: %s", error)
        return target
    return fast


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
    kinds = set(getattr(target.config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"it has no masks for layers of kind {', '.join(sorted(kinds))}"
    return None


__all__ = ["RUNTIMES", "OpenVinoTarget", "on_runtime", "parse_runtime"]
