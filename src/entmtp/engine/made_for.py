"""What a bank of trees is right for: this target, these heads, this machine.

Knows: loaded models and heads. Does not know: banks, files.
"""

from __future__ import annotations

import torch

from entmtp.heads import DraftHeads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.scheduler import MadeFor
from entmtp.target import TargetModel
from entmtp.target.machine import machine_name


def made_for(target: TargetModel, heads: DraftHeads) -> MadeFor:
    """Names of all that a bank depends on."""
    return MadeFor(
        target=target.fingerprint,
        heads=heads_fingerprint(heads),
        runtime=target.runtime,
        number_format=target.number_format,
        machine=machine_name(target.device),
        num_threads=torch.get_num_threads() if target.device.type == "cpu" else 0,
    )
