"""Errors and warnings of apportion. One base class catches them all."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class ApportionError(Exception):
    """Base class of every error that apportion raises on purpose."""


class DataError(ApportionError, ValueError):
    """The data cannot be used. The message names the bag or the row and the value, and says what to do.

    Attributes
    ----------
    bag : hashable or None
        The id of the bag that the message is about.
    value : object or None
        The value that cannot be used.
    problems : tuple of apportion.bags.problems.Problem
        The findings about a table of proportions. `apportion check` prints all of them.
    """

    def __init__(
        self, message: str = "", *, bag: Hashable = None, value: Any = None, problems: Sequence[Any] = ()
    ) -> None:
        super().__init__(message)
        self.bag = bag
        self.value = value
        self.problems = tuple(problems)


class SettingsError(ApportionError, ValueError):
    """A parameter, or a combination of parameters, is invalid."""


class ModelError(ApportionError, ValueError):
    """A saved model cannot be written or read."""


class RunError(ApportionError, RuntimeError):
    """A run of an experiment, or its folder, cannot be used."""


class CheckpointError(ApportionError, RuntimeError):
    """A checkpoint of a fit cannot be written, or the fit cannot continue from it."""


class TrainingError(ApportionError, ArithmeticError):
    """Training failed: a term of the loss is NaN or infinite."""


class ApportionWarning(UserWarning):
    """Base class of every warning that apportion issues."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Text such as " (did you mean 'precinct'?)" if `name` is nearly a known name, else an empty string."""
    names = {str(each): each for each in known}
    close = get_close_matches(str(name), list(names), n=1)
    if not close:
        lower = {each.lower().strip(): each for each in names}
        close = [lower[each] for each in get_close_matches(str(name).lower().strip(), list(lower), n=1)]
    return f" (did you mean {names[close[0]]!r}?)" if close else ""
