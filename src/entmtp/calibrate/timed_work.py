"""Times of a run that is not over, in its work folder: kept until the bank is made of them.

Knows: files of times, what they were measured with. Does not know: how they are measured.

A run that was interrupted goes on with its own step times, for the bank and the finalists' times
that hang on them. Times of other settings or of another machine are measured anew without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from entmtp.calibrate.latency_table import LatencyTable, read_latency, write_latency
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.timing import TimingConfig
from entmtp.data.made_with import MadeWith, describe_changes, read_made_with, write_made_with
from entmtp.errors import ArtefactError
from entmtp.heads import DraftHeads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment


@dataclass(frozen=True)
class TimedWork:
    """Files of one target's heads in a work folder."""

    folder: Path
    target: TargetModel
    heads: DraftHeads

    @property
    def live_path(self) -> Path:
        """How far the finalists have come."""
        return self._path("live")

    def table(
        self, config: TimingConfig, measure: Callable[[TimingConfig], LatencyTable]
    ) -> LatencyTable:
        """The step times of the run that was interrupted; else they are measured and written.

        Those of each batch size have a file of their own.
        """
        names = (f"{name}-{config.batch_size}" for name in ("times", "times-made-with"))
        path, note = map(self._path, names)
        made_with = self._made_with(config)
        if not describe_changes(read_made_with(note), made_with):
            try:
                return read_latency(path, Origin.of(self.target, self.heads))
            except ArtefactError:
                pass  # it was interrupted in front of them
        table = measure(config)
        # No moment leaves times with a note of others.
        path.unlink(missing_ok=True)
        write_made_with(note, made_with)
        write_latency(path, table)
        return table

    def forget(self) -> None:
        """Remove all of it, the note last."""
        for name in ("live", "times-[0-9]*", "times-made-with-*"):
            for path in self.folder.glob(self._path(name).name):
                path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}-{heads_fingerprint(self.heads)}.json"

    def _made_with(self, config: TimingConfig) -> MadeWith:
        machine = describe_environment(self.target)
        own = {name: machine[name] for name in ("processor", "num_cpus", "num_threads")}
        return {**asdict(config), "contexts": list(config.contexts), **own}
