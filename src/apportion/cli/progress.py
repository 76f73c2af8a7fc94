"""Progress of long work: bars with the time left in a terminal, plain lines every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Any

from apportion._untrusted import printable

PLAIN_SECONDS = 10.0  # between plain lines


class Progress:
    """Shows how far each of several tasks is.

    >>> with Progress() as progress:
    ...     for epoch in range(1, 4):
    ...         progress.update("first stage", epoch, 3, "loss 0.5")
    first stage: epoch 1 of 3, loss 0.5
    first stage: epoch 3 of 3, loss 0.5
    """

    def __init__(self, step: str = "epoch") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self.step = step
        self.console = Console()
        self.bars: Bars | None = None
        if self.console.is_terminal:
            name = TextColumn("{task.description}", markup=False)
            text = TextColumn("{task.fields[text]}", markup=False)
            self.bars = Bars(
                name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text, console=self.console
            )
        self.tasks: dict[str, Any] = {}
        self.name = ""  # of the task that goes on
        self.pending = ""  # its last line, if it was not printed
        self.printed = 0.0

    def __enter__(self) -> "Progress":
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()
        self._print_pending()

    def update(self, name: str, done: int, total: int, text: str) -> None:
        """Report how many steps of a task are done; `text` says how it is going."""
        name, text = printable(name), printable(text)
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=total, text="")
            self.bars.update(self.tasks[name], completed=done, total=total, text=text)
            return
        if name != self.name:  # the last task may have ended before its last step
            self._print_pending()
            self.name = name
        self.pending = f"{name}: {self.step} {done} of {total}" + (f", {text}" if text else "")
        if done == total or time.monotonic() - self.printed > PLAIN_SECONDS:
            self._print_pending()

    def update_part(self, task: str, part: str, done: int, total: int) -> None:
        """Report on a part of a task that has many: a bar in a terminal, elsewhere one line for the task."""
        if self.bars is not None:
            self.update(f"{task}, {part}" if part else task, done, total, "")
        elif printable(task) != self.name:
            self._print_pending()
            self.name = printable(task)
            print(self.name, flush=True)

    def show_epoch(self, name: str, epochs: int, line: dict[str, Any]) -> None:
        """A line of the log of a run of so many epochs."""
        terms = ", ".join(f"{term} {value:.4g}" for term, value in line["terms"].items())
        self.update(name, line["epoch"], epochs, f"test {line['test_accuracy']:.2f} %, {terms}")

    def print(self, line: str) -> None:
        """A line of its own, above the bars."""
        self._print_pending()
        self.console.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    def _print_pending(self) -> None:
        if self.pending:
            print(self.pending, flush=True)
            self.pending = ""
            self.printed = time.monotonic()
