"""Progress: a bar in a terminal, a plain line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Any

PLAIN_SECONDS = 10.0


class Progress:
    """`show` takes a run's name, its number of epochs and a line of its log, None if it was done before."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self.console = Console()
        self.bars: Bars | None = None
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self.bars = Bars(*columns, TextColumn("{task.fields[now]}"), console=self.console)
        self.tasks: dict[str, Any] = {}
        self.printed = 0.0
        self.name, self.last = "", ""  # the run that goes on, and its last line where it was not printed

    def __enter__(self) -> "Progress":
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()
        self._say()

    def _say(self) -> None:
        """Print the line that was held back, if there is one."""
        if self.last:
            print(self.last, flush=True)
            self.last, self.printed = "", time.monotonic()

    def show(self, name: str, epochs: int, line: dict[str, Any] | None) -> None:
        if name != self.name:  # a stage may end before its last epoch
            self._say()
            self.name = name
        if line is None:
            self.console.print(f"{name}: finished before, skipped", highlight=False)
            return
        now = f"test {line['test_accuracy']:.2f} %"
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=epochs, now="")
            self.bars.update(self.tasks[name], completed=line["epoch"], now=now)
        else:
            terms = ", ".join(f"{term} {value:.4g}" for term, value in line["terms"].items())
            self.last = f"{name}: epoch {line['epoch']} of {epochs}, {now}, {terms}"
            if line["epoch"] == epochs or time.monotonic() - self.printed > PLAIN_SECONDS:
                self._say()
