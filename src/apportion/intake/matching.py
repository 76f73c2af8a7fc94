"""The bags of a table are those of the instances: each stands in both, once."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from apportion.intake.instances import BagError
from apportion.intake.remedies import ESTIMATOR, Way
from apportion.intake.twins import written_otherwise


def check_names(keys: Sequence[Hashable], names: Sequence[Hashable], way: Way = ESTIMATOR) -> None:
    """Refuse a table whose bags are not those of the instances, each once."""
    seen, known = set(), set(names)
    _refuse_other_form(keys, known)
    if keys and known.isdisjoint(keys):
        one, other = (f"{each[0]!r} ({type(each[0]).__name__})" for each in (keys, names))
        remedy = "write both alike, such as by map(str, ...)"
        raise BagError(f"no bag of the table is one of the instances': {one} there, {other} here; {remedy}")
    for name in keys:
        if name in seen:
            raise BagError(f"bag {name!r} stands twice in the table; keep one row a bag")
        if name not in known and not way.subset:
            raise BagError(f"bag {name!r} is in the table but has no instance; drop it from the table")
        seen.add(name)
    for name in (name for name in names if name not in seen):
        raise BagError(f"bag {name!r} has instances but no row in the table; {way.lost}")


def check_order(names: Sequence[Hashable]) -> None:
    """Refuse sorted ids that are texts of numbers in another order than the numbers', where rows of a table
    without names are to follow them: '10' comes before '2'."""
    numbers = [name for name in names if isinstance(name, str) and name.isdecimal()]
    for one, other in pairwise(numbers):
        if int(one) > int(other):
            what = f"the table has no names, and the bags are texts, of which {one!r} comes before {other!r}"
            remedy = "pass a dict, a DataFrame with the bags in its index, or ids as numbers"
            raise BagError(f"{what}; {remedy}")


def _refuse_other_form(keys: Sequence[Hashable], known: set[Hashable]) -> None:
    lost = [name for name in known.difference(keys) if isinstance(name, str)]
    strange = [key for key in keys if isinstance(key, str) and key not in known]
    for key, how in written_otherwise(lost, strange)[:1]:
        raise BagError(f"bag {key!r} of the table {how} among the instances; write both alike")
