"""How runs of other processes are asked to stop: they look before every step, and leave their checkpoint."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from torch.optim.optimizer import register_optimizer_step_pre_hook

Asked = Callable[[], bool]
LOOK_SECONDS = 0.1  # between looks: a look may cost as much as a small step
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(BaseException):
    """Asked to stop; not an Exception, so that nothing on the way takes it for a run that failed."""


@contextmanager
def stop_when(asked: Asked) -> Iterator[Callable[[], None]]:
    """Raise Stop before the next step of this thread's optimizers once `asked` says so, and on each call."""
    thread, last = threading.get_ident(), time.monotonic()

    def look() -> None:
        if asked():
            raise Stop

    def before_step(*_: object) -> None:
        nonlocal last
        if threading.get_ident() == thread and time.monotonic() - last > LOOK_SECONDS:
            last = time.monotonic()
            look()

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield look
    finally:
        handle.remove()


def told_or_alone(stop: Path, parent: int) -> bool:
    """Whether the file `stop` is there, or the process that would make it is not."""
    return stop.exists() or alone(parent)


def alone(parent: int) -> bool:
    return os.getppid() != parent


@contextmanager
def signals_ask(stop: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM make the file `stop`, and do what they usually do once the body has ended; a second
    one does it at once. Outside the main thread signals are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    usual = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def back() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        came.append(number)
        back()
        stop.touch()

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        back()
        if came:
            signal.raise_signal(came[0])
