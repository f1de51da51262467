"""Where a measurement comes from, and whether it may be used here.

Knows: fingerprints of target and heads, number format, runtime. Does not know: files, traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from entmtp.errors import ArtefactError
from entmtp.heads import DraftHeads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.target import TargetModel


class Origin(NamedTuple):
    """What every figure of a calibration depends on, whatever the prompts."""

    model: str
    """Fingerprint"""
    heads: str
    """Fingerprint"""
    number_format: str
    runtime: str
    device: str

    @classmethod
    def of(cls, target: TargetModel, heads: DraftHeads) -> Origin:
        return cls(
            target.fingerprint,
            heads_fingerprint(heads),
            target.number_format,
            target.runtime,
            target.device.type,
        )

    def demand(self, path: Path, wanted: Origin) -> None:
        """Refuse a file that was made with something else than what is to be run.

        Raises:
            ArtefactError: naming each difference.
        """
        pairs = zip(self._fields, self, wanted, strict=True)
        changes = [
            f"{name.replace('_', ' ')} {found}, not {own}"
            for name, found, own in pairs
            if found != own
        ]
        if changes:
            raise ArtefactError(
                f"{path} was made for something else ({'; '.join(changes)}); calibrate again, or"
                " use what it was made for"
            )
