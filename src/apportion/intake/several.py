"""Rows that lie in a bag of each of several groupings: a precinct and an age group. All bags teach alike."""

import logging
import math
from collections.abc import Hashable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from apportion.errors import DataError
from apportion.intake import mending
from apportion.intake.gaps import refuse_alike
from apportion.intake.given import placed_labels
from apportion.intake.instances import as_instances, library_of
from apportion.intake.joining import joined, joined_weights
from apportion.intake.mending import Mended
from apportion.intake.named import has_names
from apportion.intake.totals import apart


def mended_bags(
    x: Any, y: Any, ids: Any, *, proportions: Any, counts: Any, noise: Any = None, given: Any = None,
    **options: Any,
) -> Mended:  # fmt: skip
    """`mending.mended_bags`; `ids` may be {grouping: ids}, with a table or counts of each by its name, and
    noise of all or by name."""
    if not isinstance(ids, Mapping):
        refuse_tables(ids, proportions if counts is None else counts)
        table = {"proportions": proportions, "counts": counts, "noise": noise, "given": given}
        return mending.mended_bags(x, y, ids, **table, **options)
    if y is not None and np.ndim(y) > 1:
        raise DataError(
            "y has shares of one bag a row, and bags several groupings; pass proportions= of each"
        )
    tables = tables_of(ids, proportions, counts, labels=y is not None, gap=options.get("fill", False))
    levels, given, found = noise_of(noise, ids), placed_labels(given, x, ids), dict[Hashable, Mended]()
    bare, differ = torch.empty(len(x), 0), len(ids) == 1  # rows are copied once, when all is known
    for name, table in tables.items():
        told = {**table, **options, "noise": levels[name], "given": given, "differ": differ}
        with told_of(name):
            found[name] = mending.mended_bags(bare, y, ids[name], **told)
    same_classes({name: each.classes.tolist() for name, each in found.items()})
    bags = joined({name: each.bags for name, each in found.items()})
    refuse_alike(bags)
    classes = next(iter(found.values())).classes
    overall = {name: each.bags.overall.numpy() for name, each in found.items() if levels[name] is None}
    for words in apart(overall, classes.tolist(), "noise="):
        logging.getLogger("apportion").warning(words)
    bags = replace(bags, x=as_instances(x)[bags.source])
    return Mended(bags, classes, joined_weights({name: each.relax for name, each in found.items()}))


def tables_of(
    ids: Mapping[Hashable, Any], proportions: Any, counts: Any, *, labels: bool = False, gap: bool = False
) -> dict[Hashable, dict[str, Any]]:
    """What is known of each grouping: one of its proportions and its counts, or neither beside labels."""
    if not ids or any(isinstance(each, str) or not isinstance(each, Sized) for each in ids.values()):
        what = "bags is a dict with an id for each key" if ids else "bags is an empty dict"
        raise DataError(f"{what}; pass the bag ids of the rows, in their order, or {{grouping: such ids}}")
    given = {"proportions": proportions, "counts": counts}
    for what, tables in given.items():
        if not isinstance(tables, Mapping | None) or set(tables or ()) - set(ids):
            wanted = ", ".join(f"{name!r}: table" for name in list(ids)[:3])
            raise DataError(f"bags has the groupings {list(ids)[:9]}; pass {what}={{{wanted}}}, one of each")
    found = {name: {what: (tables or {}).get(name) for what, tables in given.items()} for name in ids}
    for name, tables in found.items():
        if sum(table is not None for table in tables.values()) != (not labels):
            remedy = "leave tables out where labels are counted" if labels else "pass one of the two for each"
            raise DataError(f"the grouping {name!r} has not just one of proportions and counts; {remedy}")
    return with_all_classes(found, math.nan if gap else 0.0)


def with_all_classes(found: dict[Hashable, dict[str, Any]], gap: float) -> dict[Hashable, dict[str, Any]]:
    """The tables, where {bag: {class: number}} lacks classes that only bags of another grouping have."""
    plain = [table for tables in found.values() for table in tables.values() if table is not None]
    named = [isinstance(each, Mapping) and len(each) and all(map(has_names, each.values())) for each in plain]
    if len(plain) < 2 or not all(named):
        return found
    lack = {name: gap for table in plain for row in table.values() for name in dict(row)}
    wide = {id(table): {bag: lack | dict(row) for bag, row in table.items()} for table in plain}
    return {
        name: {what: wide.get(id(table)) for what, table in tables.items()} for name, tables in found.items()
    }


def noise_of(noise: Any, ids: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Of each grouping; by name where it is a dict, of which those that it does not name are exact."""
    if not isinstance(noise, Mapping):
        return dict.fromkeys(ids, noise)
    for name in set(noise) - set(ids):
        raise DataError(f"noise is that of the grouping {name!r}, but bags has {list(ids)[:9]}; name these")
    return {name: noise.get(name) for name in ids}


def refuse_tables(ids: Any, table: Any) -> None:
    """A dict of whole tables for bags of one grouping, of which there is one id a row."""
    one = isinstance(table, Mapping) and len(getattr(ids, "shape", ())) < 2
    for name, each in table.items() if one else ():
        if library_of(each) in ("pandas", "polars") and len(each.shape) == 2:
            remedy = "pass bags={name: ids} with the same names, if rows lie in a bag of each"
            raise DataError(
                f"there is a whole table for {name!r}, but the bags are of one grouping; {remedy}"
            )


@contextmanager
def told_of(grouping: Hashable) -> Iterator[None]:
    """Errors about a grouping that has a name say which it is."""
    try:
        yield
    except DataError as problem:
        if grouping is None:
            raise
        raise DataError(f"grouping {grouping!r}: {problem}") from None


def same_classes(classes: Mapping[Hashable, list[Any]]) -> None:
    """Refuse groupings whose classes are not the same."""
    for (one, here), (other, there) in pairwise(classes.items()):
        if here != there:
            what = f"the grouping {one!r} has the classes {here}, {other!r} has {there}"
            remedy = "give all tables the same, nought for a class that nobody has, or classes= for arrays"
            raise DataError(f"{what}; {remedy}")
