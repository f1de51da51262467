"""One step as stateless maths: sampling, noise, acceptance. Knows no text and no sequences."""

from entmtp.decode.accept import Acceptance, Acceptor, Draw, ExactAcceptor, TypicalAcceptor
from entmtp.decode.history import History, Past, Record
from entmtp.decode.logprobs import TokenLogprob, logprobs_of
from entmtp.decode.sampler import Sampler
from entmtp.decode.sampling import Sampling
from entmtp.decode.step import verify

__all__ = [
    "Acceptance",
    "Acceptor",
    "Draw",
    "ExactAcceptor",
    "History",
    "Past",
    "Record",
    "Sampler",
    "Sampling",
    "TokenLogprob",
    "TypicalAcceptor",
    "logprobs_of",
    "verify",
]
