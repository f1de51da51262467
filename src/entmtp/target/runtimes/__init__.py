"""Ways to compute a target's forward, beside one another, all under the same law.

A runtime is a subclass of `TargetModel` and a cache of its own. Of the first it replaces

    new_cache(batch_size, capacity)           room for sequences; grows by itself
    forward(ids, positions, among, cache)     hidden states of B x T rows behind what is committed
    logits(hidden)                            float32 logits of whichever rows are asked for
    warm_up(num_rows)                         whatever would make a first step slow
    make_room(num_sizes)                      room for more of that, for those who compare

and of the second, a `KVCache`, what moves rows: `keep`, `advance`, `truncate`, `copy_row`,
`add_row`, `view`. `TargetModel` and `KVCache` themselves are the runtime `eager`.

Knows: which runtime fits what was asked for. Does not know: how one works. A runtime is imported
when it is used: most of them run `transformers`' models, whose import alone takes seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from entmtp.data.cache import Progress
from entmtp.errors import BadInput, EntmtpError, ModelRefused
from entmtp.target.architecture import FULL
from entmtp.target.gguf_file import first_line
from entmtp.target.model import TargetModel
from entmtp.target.runtimes import native
from entmtp.target.runtimes.choice import fastest
from entmtp.target.runtimes.native import NativeTarget
from entmtp.target.runtimes.packages import Place, remembered_place

RUNTIMES = ("auto", "eager", "native", "compiled", "openvino", "graphs")
INT8 = "int8"
"""The format that no `torch` dtype stands for."""
AUTO = "auto"
"""The format that a runtime is best at."""
_log = logging.getLogger(__name__)


class _Fast(NamedTuple):
    """A runtime that is not PyTorch as it comes."""

    make: Callable[[TargetModel, str, Progress], TargetModel]
    formats: tuple[str, ...]


def _on_openvino(target: TargetModel, number_format: str, progress: Progress) -> TargetModel:
    from entmtp.target.runtimes.openvino import OpenVinoTarget

    return OpenVinoTarget(target, number_format, progress)


def _on_compiled(target: TargetModel, number_format: str, progress: Progress) -> TargetModel:
    from entmtp.target.runtimes.compiled import CompiledTarget

    return CompiledTarget(target, number_format, progress)


_FAST = {
    "native": _Fast(NativeTarget, native.FORMATS),
    "openvino": _Fast(_on_openvino, ("float32", "bfloat16", INT8)),
    "compiled": _Fast(_on_compiled, ("float32", "bfloat16", INT8)),
}
"""In order of preference."""
_ERRORS = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What tracers and compilers raise at a model that they cannot take."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


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
            f"int8 needs --runtime {' or '.join(_FAST)}, where a command has it; else choose"
            " another --dtype"
        )
    if name in _FAST and (missing := _missing(name, _fast_format(number_format))):
        raise BadInput(f"the {name} runtime cannot be used: {missing}")
    return name


def must_be_fast(runtime: str, number_format: str) -> bool:
    """Whether PyTorch as it comes will not do."""
    return runtime in _FAST or number_format == INT8


def can_be_native(runtime: str, number_format: str, device: str) -> bool:
    """Whether what is asked for may end on `native`."""
    is_native = runtime in ("auto", "native") and _fast_format(number_format) in native.FORMATS
    return is_native and device == "cpu" and native.missing() is None


def on_runtime(
    target: TargetModel,
    runtime: str,
    number_format: str,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> TargetModel:
    """`target` itself or its like on another runtime, checked either way.

    Raises:
        BadInput: no runtime that was asked for serves this target.
        ModelRefused: the model fails the check.
    """
    parse_runtime(runtime, number_format)
    is_on_cuda = target.device.type == "cuda" and number_format != INT8
    if runtime == "graphs" or (runtime == "auto" and is_on_cuda):
        return _on_graphs(target, runtime == "graphs", check, progress)
    if runtime == "auto":
        return _pick(target, number_format, check, progress)
    if runtime in _FAST:
        number_format = _fast_format(number_format)
        if reason := _misfit(target):
            raise BadInput(f"the {runtime} runtime cannot be used: {reason}; use --runtime eager")
        return _checked(_made(target, runtime, number_format, progress), check)
    return _checked(target, check)


def _pick(
    target: TargetModel,
    number_format: str,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> TargetModel:
    """The fastest of what is ready; why something is not is said.

    The format is settled before the race: what a model says must not hang on a stopwatch.
    """
    reasons = {}
    candidates: dict[str, Callable[[], TargetModel]] = {}
    wanted = _fast_format(number_format)
    for name in _FAST:
        if reason := _unready(target, name, wanted):
            reasons[name] = reason
        else:
            candidates[name] = _maker(target, name, wanted, check, progress)
    if number_format not in (INT8, AUTO) or (number_format == AUTO and not candidates):
        candidates["eager"] = lambda: _checked(target, check)
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    if not candidates:
        raise BadInput(f"no runtime for {number_format} is ready ({said})")
    if said:
        progress(f"not tried: {said}")
    return fastest(candidates, target.fingerprint, wanted, progress)


def _fast_format(number_format: str) -> str:
    """What `auto` is on a runtime that has int8: the fastest, and exact."""
    return INT8 if number_format == AUTO else number_format


def _maker(
    target: TargetModel,
    name: str,
    number_format: str,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> Callable[[], TargetModel]:
    return lambda: _checked(_made(target, name, number_format, progress), check)


def _checked(target: TargetModel, check: Callable[[TargetModel], None]) -> TargetModel:
    check(target)
    return target


def _made(target: TargetModel, name: str, number_format: str, progress: Progress) -> TargetModel:
    """Raises ModelRefused: the runtime cannot make code of it."""
    try:
        return _FAST[name].make(target, number_format, progress)
    except _ERRORS as error:
        raise ModelRefused(
            f"the {name} runtime cannot compute {target.config.model_type} in {number_format}"
            f" ({type(error).__name__}: {first_line(error)}); use --runtime eager"
        ) from error


def _on_graphs(
    target: TargetModel,
    is_demanded: bool,
    check: Callable[[TargetModel], None],
    progress: Progress,
) -> TargetModel:
    """`target` by CUDA graphs, or (unless they are demanded) itself where that cannot be."""
    from entmtp.target.runtimes.graphs import GraphsTarget, misfit

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


def _missing(name: str, number_format: str) -> str | None:
    """Why a runtime cannot be used here, whatever the model."""
    if name == "openvino" and find_spec("openvino") is None:
        return "openvino is not installed (pip install 'entmtp[openvino]')"
    if name == "native" and (reason := native.missing()):
        return reason
    if number_format not in (formats := _FAST[name].formats):
        return f"it has no {number_format}; expected one of {', '.join(formats)}"
    return None


def _unready(target: TargetModel, name: str, number_format: str) -> str | None:
    """Why a runtime cannot be had for this target within seconds."""
    if reason := _missing(name, number_format) or _misfit(target):
        return reason
    if name == "openvino":
        return None
    if name == "native":
        return native.misfit(target)
    try:
        is_made = is_compiled(target, number_format)
    except (EntmtpError, *_ERRORS) as error:
        return first_line(error)
    return None if is_made else "it would compile for a minute first (do so: --runtime compiled)"


def is_compiled(target: TargetModel, number_format: str) -> bool:
    """Whether the cache has what the runtime `compiled` would compile.

    Raises:
        FetchError: the cache cannot be written to.
        ModelRefused: the layers cannot be taken out of this model.
    """
    kind = {
        "model": target.unmodified.class_name,
        "config": target.unmodified.config_json,
        "dtype": str(target.dtype),
        "layout": str(target.layout),
    }

    def find() -> Place:
        from entmtp.target.runtimes.compiled import make_plan

        return make_plan(target, number_format).place

    # Tracing the layers takes seconds, at each start for as long as nobody compiles them.
    return remembered_place(kind, number_format, find).is_made


def _misfit(target: TargetModel) -> str | None:
    """Why nothing but PyTorch as it comes can be used for this target."""
    if target.unmodified.known_to_fit is not None:
        return None
    if target.device.type != "cpu":
        return f"it is for CPUs, and the model is on {target.device}"
    if kinds := target.architecture.kinds - {FULL}:
        return f"it has no masks for layers of kind {', '.join(sorted(kinds))}"
    if target.shipped_attention is None:
        return (
            f"{target.config.model_type} keeps attention of its own, and a row of that may differ"
        )
    if not target.unmodified.is_plain:
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
    "can_be_native",
    "is_compiled",
    "must_be_fast",
    "on_runtime",
    "parse_runtime",
]
