"""Ctrl-C and SIGTERM, as an exception of our own."""

from types import FrameType
from typing import NoReturn


class Stopped(BaseException):
    """Not a KeyboardInterrupt, which typer would keep for itself."""


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(128 + number)  # as shells count
