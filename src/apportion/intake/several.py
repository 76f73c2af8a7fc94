"""Rows that lie in a bag of each of several groupings: a precinct and an age group. All bags teach alike."""

import logging
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from apportion.bags import Bags
from apportion.intake import mending
from apportion.intake.instances import BagError
from apportion.intake.joining import joined, joined_weights
from apportion.intake.mending import Mended

APART = 0.01  # by which overall shares of two groupings may differ before it is told


def mended_bags(x: Any, y: Any, ids: Any, *, proportions: Any, counts: Any, **options: Any) -> Mended:
    """`mending.mended_bags`; `ids` may be {grouping: ids}, with a table or counts of each by its name."""
    if not isinstance(ids, Mapping):
        return mending.mended_bags(x, y, ids, proportions=proportions, counts=counts, **options)
    if y is not None and np.ndim(y) > 1:
        raise BagError("y has shares of one bag a row, and bags several groupings; pass proportions= of each")
    found: dict[Hashable, Mended] = {}
    for name, tables in tables_of(ids, proportions, counts, labels=y is not None).items():
        with told_of(name):
            found[name] = mending.mended_bags(x, y, ids[name], **tables, **options)
    same_classes({name: each.classes.tolist() for name, each in found.items()})
    bags, classes = {name: each.bags for name, each in found.items()}, next(iter(found.values())).classes
    tell_apart(bags, classes)
    relax = joined_weights({name: each.relax for name, each in found.items()})
    return Mended(joined(bags), classes, relax)


def tables_of(
    ids: Mapping[Hashable, Any], proportions: Any, counts: Any, *, labels: bool = False
) -> dict[Hashable, dict[str, Any]]:
    """What is known of each grouping: one of its proportions and its counts, or neither beside labels."""
    if not ids:
        raise BagError("bags is an empty dict; pass the bag ids of the rows, or {grouping: ids}")
    given = {"proportions": proportions, "counts": counts}
    for what, tables in given.items():
        if not isinstance(tables, Mapping | None) or set(tables or ()) - set(ids):
            wanted = ", ".join(f"{name!r}: table" for name in ids)
            raise BagError(f"bags has the groupings {list(ids)}; pass {what}={{{wanted}}}, a table of each")
    found = {name: {what: (tables or {}).get(name) for what, tables in given.items()} for name in ids}
    for name, tables in found.items():
        if sum(table is not None for table in tables.values()) != (not labels):
            remedy = "leave tables out where labels are counted" if labels else "pass one of the two for each"
            raise BagError(f"the grouping {name!r} has not just one of proportions and counts; {remedy}")
    return found


@contextmanager
def told_of(grouping: Hashable) -> Iterator[None]:
    """Errors about a grouping say which it is."""
    try:
        yield
    except BagError as problem:
        raise BagError(f"grouping {grouping!r}: {problem}") from None


def same_classes(classes: Mapping[Hashable, list[Any]]) -> None:
    """Refuse groupings whose classes are not the same."""
    for (one, here), (other, there) in pairwise(classes.items()):
        if here != there:
            what = f"the grouping {one!r} has the classes {here}, {other!r} has {there}"
            raise BagError(f"{what}; give all tables the same, a class that nobody has with shares of nought")


def tell_apart(bags: Mapping[Hashable, Bags], classes: np.ndarray) -> None:
    """Groupings of the same rows whose shares cannot both be right."""
    overall = {name: mending.known_bags(each).overall for name, each in bags.items()}
    for (one, here), (other, there) in pairwise(overall.items()):
        worst = int((here - there).abs().argmax())
        if float((here - there).abs().max()) > APART:
            logging.getLogger("apportion").warning(
                "the groupings %r and %r have %.3g and %.3g %% of %r over all their rows, which cannot both "
                "be; if shares are noisy or of other people, noise= says so",
                one, other, 100 * float(here[worst]), 100 * float(there[worst]), classes.tolist()[worst],
            )  # fmt: skip
