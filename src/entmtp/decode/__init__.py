"""One step as stateless maths: sampling, acceptance, signals. Knows no text, no sequences."""

from entmtp.decode.accept import Acceptance, Acceptor, Draw, ExactAcceptor, TypicalAcceptor
from entmtp.decode.sampling import Sampler, Sampling, make_sampler
from entmtp.decode.signals import RootSignals, copy_to_host, root_signals
from entmtp.decode.step import verify

__all__ = [
    "Acceptance",
    "Acceptor",
    "Draw",
    "ExactAcceptor",
    "RootSignals",
    "Sampler",
    "Sampling",
    "TypicalAcceptor",
    "copy_to_host",
    "make_sampler",
    "root_signals",
    "verify",
]
