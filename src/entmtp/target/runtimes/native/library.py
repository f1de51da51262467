"""The kernels of `native` as a shared library, compiled once for a machine.

Knows: the C++ compiler, the processor that the code needs, and the C structs. Does not know: what
a model is, or how the kernels compute (`kernels.cpp`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import POINTER, Array, Structure, c_bool, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import BadInput
from entmtp.target.runtimes.native.memory import packed_memory
from entmtp.target.runtimes.one_thread import torch_on_one_thread
from entmtp.target.runtimes.packages import machine

TILE_INPUTS = 64
"""What widths are multiples of (`matrix.h`)."""
LANES = 16
"""Positions of a block of keys (`attention.h`), and outputs of a block of weights."""

_FOLDER = Path(__file__).parent
_SOURCE = "kernels.cpp"
_LIBRARY = "kernels.so"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    # A product and a sum become one operation where the source says so, and nowhere else: a row
    # must have the same bits in every copy of a loop.
    "-ffp-contract=off",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fno-gnu-unique",  # two of these in one process share nothing
    "-w",
)
_ABILITIES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")


class Matrix(Structure):
    """`struct Matrix` of `matrix.h`."""

    _fields_ = [
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("num_outputs", c_int64),
        ("num_inputs", c_int64),
        ("span", c_int64),
        ("is_bfloat16", c_bool),
    ]


class Layer(Structure):
    """`struct Layer` of `kernels.cpp`."""

    _fields_ = [
        ("query_key_value", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("first_norm", c_void_p),
        ("second_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
    ]


class Body(Structure):
    """`struct Body` of `kernels.cpp`."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("last_norm", c_void_p),
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_size", c_int64),
        ("inner_size", c_int64),
        ("rotary_size", c_int64),
        ("epsilon", c_float),
        ("scale", c_float),
    ]


class Embedding(Structure):
    """`struct Embedding` of `embedding.h`."""

    _fields_ = [("rows", c_void_p), ("size", c_int64), ("format", c_int64)]


class Step(Structure):
    """`struct Step` of `decoder.h`."""

    _fields_ = [
        ("hidden", c_void_p),
        ("ids", c_void_p),
        ("embedding", Embedding),
        ("positions", c_void_p),
        ("among", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("lengths", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("places", c_void_p),
        ("new_keys", c_void_p),
        ("new_values", c_void_p),
        ("num_sequences", c_int64),
        ("num_rows", c_int64),
        ("num_places", c_int64),
        ("capacity", c_int64),
    ]


class Head(Structure):
    """`struct Head` of `draft.h`."""

    _fields_ = [
        ("first", Matrix),
        ("blocks", POINTER(Matrix)),
        ("num_blocks", c_int64),
        ("projection", Matrix),
    ]


class Level(Structure):
    """`struct Level` of `draft.h`."""

    _fields_ = [
        ("head", POINTER(Head)),
        ("output", POINTER(Matrix)),
        *((name, c_void_p) for name in ("ways", "slots", "parents", "ranks")),
        *((name, c_int64) for name in ("num_parents", "depth", "num_slots", "num_children")),
    ]


class Draft(Structure):
    """`struct Draft` of `draft.h`."""

    _fields_ = [
        ("levels", POINTER(Level)),
        ("draft_ids", c_void_p),
        ("embedding", Embedding),
        *((name, c_void_p) for name in ("context", "ids", "log_probs")),
        *((name, c_int64) for name in ("num_levels", "num_sequences", "width", "hidden_size")),
    ]


def missing() -> str | None:
    """Why the kernels cannot be had here; None where they can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"its kernels are for x86-64 processors, and this one is {platform.machine()}"
    info = Path("/proc/cpuinfo")
    flags = info.read_text(encoding="utf-8", errors="replace").split() if info.is_file() else []
    if lacking := [ability for ability in _ABILITIES if ability not in flags]:
        return f"the processor lacks {', '.join(lacking)}"
    if not _place_is_made() and shutil.which(_compiler()) is None:
        return f"it needs a C++ compiler at its first use, and {_compiler()} is not found"
    return None


@cache
def kernels() -> ctypes.CDLL:
    """The library, compiled now (some ten seconds) where the cache does not have it.

    Raises:
        BadInput: the processor or the compiler will not do.
        FetchError: the cache cannot be written to.
    """
    if reason := missing():
        raise BadInput(f"the native runtime cannot be used: {reason}; use another --runtime")
    folder, source = _place()
    if not is_complete(folder, source):
        with new_folder(folder, source) as part:
            _compile(part / _LIBRARY)
            write_manifest(part, source)
    library = ctypes.CDLL(str(folder / _LIBRARY))
    library.entmtp_prepare.restype = c_bool
    if not library.entmtp_prepare():
        raise BadInput(
            "the native runtime cannot be used: the system does not let this process use the"
            " processor's tiles (AMX); use another --runtime"
        )
    library.entmtp_packed_bytes.argtypes = [POINTER(Matrix)]
    library.entmtp_packed_bytes.restype = c_int64
    library.entmtp_pack.argtypes = [c_void_p, POINTER(Matrix), c_void_p, c_int]
    library.entmtp_forward.argtypes = [POINTER(Body), POINTER(Step), c_int]
    library.entmtp_linear.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int]
    library.entmtp_largest.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int]
    library.entmtp_commit.argtypes = [c_void_p, c_void_p, *[c_int64] * 6, c_void_p, c_int64]
    library.entmtp_commit.argtypes += [c_void_p, c_void_p, *[c_int64] * 4]
    library.entmtp_fill.argtypes = [POINTER(Draft), c_int]
    library.entmtp_root_signals.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int]
    library.entmtp_noise.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int]
    for name in ("pack", "forward", "linear", "largest", "root_signals", "noise", "fill", "commit"):
        getattr(library, f"entmtp_{name}").restype = None
    return library


def prepare(progress: Progress) -> None:
    """Compile what is to be compiled, and say so."""
    if missing() is None and not _place_is_made():
        progress("compiling the kernels of the native runtime, once, for some ten seconds")
    kernels()


def kernels_folder() -> Path:
    """Where the library lies: another folder for other kernels and another machine."""
    return _place()[0]


def address(tensor: torch.Tensor | None) -> int | None:
    """Of a contiguous tensor's memory, which the caller must keep alive."""
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the kernels read memory as it lies"
    return tensor.data_ptr()


def numbers(values: Sequence[int]) -> Array[c_int64]:
    """In memory that a kernel can read; hold it meanwhile."""
    return (c_int64 * len(values))(*values)


class PackedMatrix:
    """A weight matrix in the form that the kernels read, and the struct that says where it is."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        num_threads: int | None = None,
        span: int = 1,
        number_format: str = "int8",
    ) -> None:
        """
        Args:
            weight: `[O, I]`; I is a multiple of `span * TILE_INPUTS`.
            bias: `[O]`
            num_threads: that pack; as many as PyTorch has where it is left out.
            span: tiles of a group, which has one scale in int8. More are faster, and coarser.
            number_format: `int8` or `bfloat16`.
        """
        library = kernels()
        num_outputs, num_inputs = weight.shape
        assert num_inputs % (span * TILE_INPUTS) == 0, "rows are made of whole groups"
        num_threads = num_threads or torch.get_num_threads()
        with torch_on_one_thread():
            rows = weight.detach().float().contiguous()
        self._bias = None
        if bias is not None:
            self._bias = torch.zeros(-(-num_outputs // LANES) * LANES)
            self._bias[:num_outputs] = bias.detach().float()
        self.num_outputs: int = num_outputs
        self.struct = Matrix(
            None,
            address(self._bias),
            num_outputs,
            num_inputs,
            span,
            number_format == "bfloat16",
        )
        self._packed = packed_memory(library.entmtp_packed_bytes(self.struct))
        self.struct.packed = address(self._packed)
        library.entmtp_pack(address(rows), self.struct, self.struct.packed, num_threads)
        self.pointer = ctypes.pointer(self.struct)

    def __call__(self, rows: torch.Tensor, num_threads: int) -> torch.Tensor:
        """`rows @ weight.T + bias` of float32 rows `[…, I]`, as float32 `[…, O]`."""
        out, count = torch.empty(*rows.shape[:-1], self.num_outputs), rows.shape[:-1].numel()
        kernels().entmtp_linear(self.struct, address(rows), count, address(out), num_threads)
        return out

    def largest(self, rows: torch.Tensor, num_threads: int) -> Sequence[int]:
        """Which number of each row of that product is the largest; of equal ones the first."""
        count = rows.numel() // rows.shape[-1]
        places = (c_int64 * count)()
        kernels().entmtp_largest(self.struct, address(rows), count, places, num_threads)
        return places[:]


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


def _place() -> tuple[Path, dict[str, str]]:
    """Where the library lies, and from what it must have been made."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in [*sorted(_FOLDER.glob("*.h")), _FOLDER / _SOURCE]:
        digest.update(path.read_bytes())
    source = {"code": digest.hexdigest(), "machine": machine()}
    name = hashlib.sha256(repr(sorted(source.items())).encode()).hexdigest()[:16]
    return cache_dir() / f"native-{name}", source


def _place_is_made() -> bool:
    return is_complete(*_place())


def _compile(path: Path) -> None:
    command = [_compiler(), *_FLAGS, str(_FOLDER / _SOURCE), "-o", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise BadInput(
            f"{_compiler()} cannot compile the kernels of the native runtime"
            f" ({said[0] if said else 'no message'}); set CXX to another compiler, or use another"
            " --runtime"
        ) from error
