"""TensorBoard's event files beside the log, for those who look at runs there."""

from pathlib import Path
from types import TracebackType
from typing import Any


class Scalars:
    """Every number of a line of the log, in the run's own folder; nothing unless `wanted`."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.writers: dict[Path, Any] = {}
        if wanted:
            self._maker()  # what is missing is told before anything is trained

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for writer in self.writers.values():
            writer.close()

    def show(self, folder: Path, line: dict[str, Any] | None) -> None:
        if not self.wanted or line is None:
            return
        from apportion.report.numbers import numbers

        if folder not in self.writers:
            # a run that goes on repeats the epochs after its checkpoint: what was told of them is dropped
            self.writers[folder] = self._maker()(str(folder), purge_step=line["epoch"])
        for name, value in numbers(line):
            if name != "epoch":
                self.writers[folder].add_scalar(name.replace(".", "/"), value, line["epoch"])

    def _maker(self) -> Any:
        from apportion.errors import RunError

        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise RunError("--tensorboard needs tensorboardX; pip install 'apportion[tensorboard]'") from None
        return SummaryWriter
