"""One step as stateless maths: sampling, acceptance, signals. Knows no text, no sequences."""

from entmtp.decode.accept import (
    Acceptance,
    Acceptor,
    Draw,
    ExactAcceptor,
    HostAcceptance,
    TypicalAcceptor,
)
from entmtp.decode.history import History, Past, Record
from entmtp.decode.logprobs import TokenLogprob, logprobs_of
from entmtp.decode.sampler import Sampler
from entmtp.decode.sampling import Sampling
from entmtp.decode.signals import (
    RootSignals,
    Signals,
    copy_to_host,
    packed,
    signals_on_host,
    unpacked,
)
from entmtp.decode.step import node_positions, verify

__all__ = [
    "Acceptance",
    "Acceptor",
    "Draw",
    "ExactAcceptor",
    "History",
    "HostAcceptance",
    "Past",
    "Record",
    "RootSignals",
    "Sampler",
    "Sampling",
    "Signals",
    "TokenLogprob",
    "TypicalAcceptor",
    "copy_to_host",
    "logprobs_of",
    "node_positions",
    "packed",
    "signals_on_host",
    "unpacked",
    "verify",
]
