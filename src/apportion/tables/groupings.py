"""Several groupings of the rows of one table, each with shares of its own: checked together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from apportion.intake.totals import apart
from apportion.tables.asking import Asked, Found
from apportion.tables.checking import check


def check_groupings(asked: Sequence[Asked], *, learn: bool = True) -> list[Found]:
    """What is found about each, with shares of the same classes; each has the problems and notes of all."""
    first = check(asked[0], learn=learn)
    found = [first, *(check(each, learn=learn, kinds=first.kinds) for each in asked[1:])]
    problems = list(dict.fromkeys(chain.from_iterable(each.problems for each in found)))
    notes = list(dict.fromkeys(chain.from_iterable(each.notes for each in found)))
    for question, each in zip(asked[1:], found[1:], strict=True) if not problems else ():
        if set(each.classes) != set(first.classes):
            here, there = ", ".join(first.classes), ", ".join(each.classes)
            what = f"the bags of {asked[0].bag!r} have the classes {here}, those of {question.bag!r} {there}"
            problems.append(f"{what}: name the same classes in both files, or choose them with --classes")
    if not problems:
        found = [_with_classes(each, first.classes) for each in found]
        shares = np.concatenate([each.shares[np.isfinite(each.shares).all(1)] for each in found])
        if learn and np.ptp(shares, axis=0).max() < 1e-6:
            problems.append("all bags have the same proportions, so that nothing tells the classes apart")
        notes += _notes_on_totals(asked, found)
    return [replace(each, problems=problems, notes=notes) for each in found]


def _with_classes(found: Found, classes: tuple[str, ...]) -> Found:
    """The shares in the order of these classes."""
    places = [found.classes.index(name) for name in classes]
    return replace(found, shares=found.shares[:, places], classes=classes)


def _notes_on_totals(asked: Sequence[Asked], found: Sequence[Found]) -> Iterator[str]:
    """Overall shares that cannot both be right; of some bags alone, and of noisy ones, nothing is known."""
    overall = {}
    for question, each in zip(asked, found, strict=True):
        if not question.noise:
            overall[question.bag] = each.sizes @ each.shares / each.sizes.sum()
    return apart(overall, list(found[0].classes), "--noise")
