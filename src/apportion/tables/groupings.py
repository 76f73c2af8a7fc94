"""Several groupings of the rows of one table, each with shares of its own: checked together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from apportion.tables.asking import Asked, Found
from apportion.tables.checking import check

APART = 0.01  # by which overall shares may differ before it is noted: they are rounded, too


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
        notes += _apart(asked, found)
    return [replace(each, problems=problems, notes=notes) for each in found]


def _with_classes(found: Found, classes: tuple[str, ...]) -> Found:
    """The shares in the order of these classes."""
    places = [found.classes.index(name) for name in classes]
    return replace(found, shares=found.shares[:, places], classes=classes)


def _apart(asked: Sequence[Asked], found: Sequence[Found]) -> list[str]:
    """Notes on overall shares that cannot both be right."""
    overall = []
    for each in found:
        known = np.isfinite(each.shares).all(1)
        overall.append(each.sizes[known] @ each.shares[known] / each.sizes[known].sum())
    notes = []
    for question, here in zip(asked[1:], overall[1:], strict=True):
        worst = int(np.abs(here - overall[0]).argmax())
        one, other = 100 * overall[0][worst], 100 * here[worst]
        if abs(one - other) > 100 * APART:
            what = f"the bags of {asked[0].bag!r} and {question.bag!r} have {one:.3g} and {other:.3g} % of"
            remedy = "these cannot both be; --noise says that shares are inexact"
            notes.append(f"{what} {found[0].classes[worst]!r} over all rows: {remedy}")
    return notes
