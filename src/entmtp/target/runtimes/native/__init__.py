"""The runtime `native`: a decoder's step in C++, compiled once for a machine.

Knows: its own doors. Does not know: which runtime fits.
"""

from entmtp.target.runtimes.native.library import missing
from entmtp.target.runtimes.native.target import FORMATS, NativeTarget
from entmtp.target.runtimes.native.weights import misfit

__all__ = ["FORMATS", "NativeTarget", "misfit", "missing"]
