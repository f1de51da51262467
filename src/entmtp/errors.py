"""The errors a user may meet.

    EntmtpError             everything below; the command prints it as one line and exits with 2
    ├── BadInput            a value, path or prompt that the user gave is wrong
    ├── ModelRefused        the target model cannot be verified with a tree, or cannot be read
    ├── HeadsError          draft heads that are broken or belong to another model
    ├── TreeError           a set of rank paths that is no tree, or one that the heads cannot fill
    ├── FetchError          something could not be brought into the cache
    └── ArtefactError       a file made by this program is broken, of another version or stale

Every message is one line: what was given, what was expected, what to do. Knows nothing else;
every room may import it.
"""

from __future__ import annotations


class EntmtpError(Exception):
    """Base of all errors with a message meant for the user."""


class BadInput(EntmtpError):
    """A value, path or prompt that the user gave is wrong."""


class ModelRefused(EntmtpError):
    """The target model cannot be verified with a tree, or cannot be read."""


class HeadsError(EntmtpError):
    """Draft heads that are broken or belong to another model."""


class TreeError(EntmtpError):
    """A set of rank paths that is no tree, or one that the heads cannot fill."""


class FetchError(EntmtpError):
    """Something could not be brought into the cache."""


class ArtefactError(EntmtpError):
    """A file made by this program is broken, of another version or stale."""
