"""One step as stateless maths: sampling, noise, acceptance. Knows no text and no sequences."""

from entmtp.decode.accept import Acceptance, Acceptor, Draw, ExactAcceptor, TypicalAcceptor
from entmtp.decode.sampling import Sampler, Sampling, make_sampler
from entmtp.decode.step import verify

__all__ = [
    "Acceptance",
    "Acceptor",
    "Draw",
    "ExactAcceptor",
    "Sampler",
    "Sampling",
    "TypicalAcceptor",
    "make_sampler",
    "verify",
]
