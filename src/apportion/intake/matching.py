"""The bags of the instances stand in a table of bags, each once."""

import re
from collections.abc import Hashable, Sequence

from apportion.errors import DataError
from apportion.intake.remedies import ESTIMATOR, ONE_ROW, Way
from apportion.intake.twins import written_otherwise


def check_names(keys: Sequence[Hashable], names: Sequence[Hashable], way: Way = ESTIMATOR) -> None:
    """Refuse a table without a bag of the instances, or with one twice; it may have bags of others."""
    seen, known = set(), set(names)
    _refuse_other_form(keys, known)
    if keys and known.isdisjoint(keys):
        one, other = (f"{each[0]!r} ({type(each[0]).__name__})" for each in (keys, names))
        remedy = "write both alike, such as by map(str, ...)"
        raise DataError(f"no bag of the table is one of the instances': {one} there, {other} here; {remedy}")
    for name in keys:
        if name in seen and name in known:
            raise DataError(f"bag {name!r} stands twice in the table; {ONE_ROW}")
        seen.add(name)
    for name in (name for name in names if name not in seen and not way.absent):
        raise DataError(f"bag {name!r} has instances but no row in the table; {way.lost}")


def check_order(names: Sequence[Hashable]) -> None:
    """Refuse sorted ids that count in another order, where rows of a table without names are to follow them:
    '10' comes before '2', and 'town 10' before 'town 2'."""
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for name in (name for name in names if isinstance(name, str)):
        if found := re.fullmatch(r"(\D*)(\d+)(\D*)", name, re.DOTALL):
            kind, number = (found[1], found[3]), int(found[2])
            before, other = last.get(kind, (number, name))
            if before > number:
                what = f"and the bags are texts, of which {other!r} comes before {name!r}"
                remedy = "pass a dict, a DataFrame with the bags in its index, or ids as numbers"
                raise DataError(f"the table has no names, {what}; {remedy}")
            last[kind] = number, name


def _refuse_other_form(keys: Sequence[Hashable], known: set[Hashable]) -> None:
    lost = [name for name in known.difference(keys) if isinstance(name, str)]
    strange = [key for key in keys if isinstance(key, str) and key not in known]
    for key, how in written_otherwise(lost, strange)[:1]:
        raise DataError(f"bag {key!r} of the table {how} among the instances; write both alike")
