"""Everything that can be wrong with the proportions of bags, each rule in one place.

`find_problems` checks the numbers that `align` has read and yields a `Problem` for each finding. The
estimator raises the first one as `DataError`; `apportion check` prints all of them. The other functions check
what is known only later, such as the rows of each bag, or warn of what can be learned from all the same.
"""

import csv
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import combinations
from shlex import quote
from typing import Any, Literal, NoReturn
from unicodedata import normalize

import numpy as np

from apportion.bags.denoise import (
    cells_beyond_noise,
    sums_beyond_noise,
    to_common_total,
)
from apportion.bags.proportions import (
    COUNT_TOLERANCE,
    SUM_TOLERANCE,
    Aligned,
    Proportions,
    align_to_itself,
    rename_bags,
)
from apportion.errors import DataError

MANY = 3  # with more ids of another spelling, one message has the first ones and their number
FEW_TO_LEARN = 10  # bags; with fewer, what is learned may be chance
FEWEST_TO_DIAGNOSE = 6  # bags; that is MIN_BAGS of selection/diagnosis
FEW = 3  # with at least this many bags, sums that fit are not a coincidence
NEARLY_ALL = 0.95  # of the bags: a few typing errors must not hide what a column is
MAX_STRAY_COLUMNS = 3  # the most columns to search for that are not classes, besides those above the total
SURE = 1e-3  # noise gives nearly all sums the same sign this rarely
COVERED = 0.98  # sums below this part of their totals are more than rounded
OVERALL_TOLERANCE = 0.01  # overall shares of two groupings may differ by this much, for example by rounding
SAME = 1e-6  # shares that differ by less are equal

# options that hints may name: in Python, and on the command line
OPTIONS = {
    "normalize": ("Proportions(..., normalize=True)", "--normalize"),
    "std": ("Proportions(..., std=...)", "--std DEVIATION"),
    "estimate": ('Proportions(..., std="estimate")', "--std estimate"),
    "missing_bags": ('Proportions(..., missing_bags="allow")', "--missing-bags allow"),
    "missing_cells": ('Proportions(..., missing_cells="impute")', "--missing-cells impute"),
    "rest": ("Proportions(..., rest=NAME)", "--rest NAME"),
    "counts": ('Proportions(..., kind="counts")', "--counts FILE"),
    "shares": ('Proportions(..., kind="shares")', "--proportions FILE"),
    "percent": ('Proportions(..., kind="percent")', "--percent"),
}


@dataclass(frozen=True)
class Problem:
    """One finding about the data: what is wrong, what to do about it, and the parts for programs."""

    rule: str  # the same for all findings of one kind, such as "sum"
    message: str  # names the bag, the class and the value
    hint: str | None = None  # what to do; {normalize} and other options are rendered by `text`
    bag: Hashable = None
    class_name: Hashable = None
    value: Any = None
    row: int | None = None  # the row of the table, counted from 0
    suggested_classes: tuple[Hashable, ...] = ()  # what {classes} in the hint stands for

    def text(self, style: Literal["python", "cli"] = "python") -> str:
        """The message and the hint, with options written for Python or for the command line."""
        hint = self.render_hint(style)
        return f"{self.message}; {hint}" if hint else self.message

    def render_hint(self, style: Literal["python", "cli"] = "python") -> str:
        """The hint with options written for Python or for the command line; empty if there is none."""
        hint = self.hint or ""
        for name, words in OPTIONS.items():
            hint = hint.replace(f"{{{name}}}", words[style == "cli"])
        if style == "cli":
            classes = f"--classes {option_list(self.suggested_classes)}"
        else:
            classes = f"Proportions(..., classes={list(self.suggested_classes)})"
        return hint.replace("{classes}", classes)


def option_list(names: Iterable[Hashable]) -> str:
    """Names as an option takes several: separated by commas, quoted where needed, ready for a shell."""
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return quote(line.getvalue())


def raise_problem(problem: Problem) -> NoReturn:
    """Raise a finding as `DataError`."""
    raise DataError(problem.text(), bag=problem.bag, value=problem.value, problems=[problem])


def find_problems(aligned: Aligned) -> Iterator[Problem]:
    """All findings about the numbers of a table, rule by rule.

    Later rules skip bags that already have a finding, so that one mistake is reported once.
    """
    spellings = _find_spellings(aligned)
    yield from _check_bags(aligned, spellings)
    aligned = rename_bags(aligned, {other: bag for other, (bag, _) in spellings.items()})
    if not (aligned.rows >= 0).any():
        yield from _check_columns_alone(aligned)
        return
    strays = list(_find_stray_columns(aligned))
    yield from strays
    names = {problem.class_name for problem in strays}
    if names:
        aligned = aligned.drop_classes(
            [j for j, name in enumerate(aligned.classes.tolist()) if name in names]
        )
    if len(aligned.classes) < 2:
        yield _too_few_classes(aligned)
        return
    kind = _check_kind(aligned)
    if kind is not None:
        yield kind
        return
    doubtful = aligned.rows < 0
    for rule in (_check_missing, _check_cells, _check_sums, _check_noise):
        for problem, bags in rule(aligned, doubtful):
            doubtful[bags] = True
            yield problem
    if not names and not doubtful.any():
        yield from _check_anything_known(aligned)


_Finding = tuple[Problem, Any]  # a problem, and the indices of the bags that it settles


# --- ids


def _find_spellings(aligned: Aligned) -> dict[str, tuple[str, str]]:
    """Ids of the table that are written otherwise in the data, see `find_other_spellings`."""
    listed = set(aligned.table_bags or ())
    here = set(aligned.bags)
    absent = [bag for bag in aligned.bags if bag not in listed]
    return find_other_spellings(absent, [bag for bag in dict.fromkeys(listed) if bag not in here])


def _check_columns_alone(aligned: Aligned) -> Iterator[Problem]:
    """What is wrong with the columns of a table, none of whose bags is in the data."""
    if not aligned.table_bags or len(aligned.classes) < 2:
        return
    alone = align_to_itself(aligned)
    strays = list(_find_stray_columns(alone))
    yield from strays
    kind = None if strays else _check_kind(alone)
    if kind is not None:
        yield kind


def _check_bags(aligned: Aligned, spellings: Mapping[str, tuple[str, str]]) -> Iterator[Problem]:
    """The bags of the data are in the table, each once, and written alike."""
    if aligned.table_bags is None:
        return
    listed = set(aligned.table_bags)
    here = set(aligned.bags)
    absent = [bag for bag in aligned.bags if bag not in listed]
    yield from _describe_spellings(spellings, aligned.table_bags)
    if not spellings and absent and len(absent) == len(aligned.bags) and len(aligned.table_bags):
        one, other = aligned.bags[0], aligned.table_bags[0]
        message = (
            f"no bag of the data is in the table: the data has {one!r} ({type(one).__name__}), "
            f"the table {other!r} ({type(other).__name__})"
        )
        hint = "write the ids the same way in both, as text or as numbers"
        texts = [bag for bag in (*aligned.bags, *aligned.table_bags) if isinstance(bag, str)]
        if {type(one), type(other)} == {int, str} and texts[0].isdigit():
            width = max(len(text) for text in texts if text.isdigit())
            zeros = f".str.zfill({width})" if any(text.startswith("0") for text in texts) else ""
            hint += f", such as with .astype(str){zeros} of pandas for the numbers"
        yield Problem("no common bag", message, hint, bag=one)
        return
    seen = set()
    for i, bag in enumerate(aligned.table_bags):
        if bag in seen and bag in here:
            hint = "keep one row per bag; if there is one row per class, make the classes columns (pivot)"
            yield Problem("repeated bag", f"bag {bag!r} is in the table twice", hint, bag=bag, row=i)
        seen.add(bag)
    if aligned.options.missing_bags == "allow":
        return
    misspelled = {bag for bag, _ in spellings.values()}
    for bag, size in zip(aligned.bags, aligned.sizes.tolist(), strict=True):
        if bag not in listed and bag not in misspelled:
            message = f"bag {bag!r} has {_rows(size)} of data but no row in the table"
            hint = _advise(aligned, "add it or drop its rows", missing_bags="if its proportions are unknown")
            yield Problem("missing bag", message, hint, bag=bag, value=size)


def _describe_spellings(
    spellings: Mapping[str, tuple[str, str]], rows: Sequence[Hashable]
) -> Iterator[Problem]:
    """A problem for each misspelled id, or one for all of them if they are many."""
    first_row = {bag: i for i, bag in reversed(list(enumerate(rows)))}
    found = sorted(spellings.items(), key=lambda each: first_row[each[0]])
    hint = "spell it the same way in both"
    if len(found) > MANY:
        some = ", ".join(f"{other!r} {how}" for other, (_, how) in found[:MANY])
        message = f"{len(found)} bags of the table are spelled otherwise in the data: {some}, …"
        pairs = [(other.strip(), bag.strip()) for other, (bag, _) in found]
        if all(other.lstrip("0") == bag.lstrip("0") for other, bag in pairs):
            width = max(len(name) for pair in pairs for name in pair)
            hint = (
                f"write zeros at the front in both or in neither, such as with .str.zfill({width}) of pandas"
            )
        other, (bag, _) = found[0]
        yield Problem("spelling", message, hint, bag=bag, value=other, row=first_row[other])
        return
    for other, (bag, how) in found:
        message = f"bag {other!r} of the table {how} in the data"
        yield Problem("spelling", message, hint, bag=bag, value=other, row=first_row[other])


def find_other_spellings(
    absent: Iterable[Hashable], strange: Iterable[Hashable]
) -> dict[str, tuple[str, str]]:
    """Misspelled ids: {strange id: (absent id, how they differ)}.

    `absent` ids are in the data only, `strange` ids in the table only. They match if they differ by case,
    surrounding spaces, leading zeros or Unicode form, where é may be an e and an accent.
    """
    forms = {_plain(name): name for name in absent if isinstance(name, str)}
    found: dict[str, tuple[str, str]] = {}
    for name in strange:
        if not isinstance(name, str) or _plain(name) not in forms:
            continue
        other = forms[_plain(name)]
        how = f"is {other!r}"
        if normalize("NFC", name) == normalize("NFC", other):
            how = "has other Unicode characters (unicodedata.normalize('NFC', id) makes them the same)"
        found[name] = other, how
    return found


def _plain(name: str) -> str:
    return normalize("NFC", name).strip().lower().lstrip("0") or "0"


# --- columns that are not classes


@np.errstate(over="ignore", invalid="ignore")  # infinite numbers are found by a later rule
def _find_stray_columns(aligned: Aligned) -> Iterator[Problem]:
    """Columns that are not classes: totals, years, ids, turnout. If `classes` are named, there are none.

    Where the sums of all bags are right, every column is a class, whatever its numbers look like.
    """
    options = aligned.options
    values = aligned.values
    here = aligned.rows >= 0
    if options.classes is not None or _sums_fit(values[here], aligned.totals[here]):
        return
    columns = [j for j, name in enumerate(aligned.classes.tolist()) if name != options.rest]
    reasons = _find_counting_columns(aligned, columns)
    columns = [j for j in columns if j not in reasons]
    total = find_sum_column(values[here][:, columns])
    if total is not None:
        j = columns.pop(total)
        reasons[j] = "it is the sum of the others in every bag"
    if aligned.counts:
        for j in _find_size_columns(aligned, columns):
            columns.remove(j)
            reasons[j] = "it is the number of rows of every bag, a total"
    if options.rest is None:
        sizes = aligned.sizes[here] if aligned.counts else None
        for i in find_extra_columns(values[here][:, columns], sizes):
            reasons[columns[i]] = "the other columns add up without it"
    classes = [name for j, name in enumerate(aligned.classes.tolist()) if j not in reasons]
    suggested = tuple(name for name in classes if name != options.rest)
    bag = int(np.flatnonzero(here)[0])
    for j in sorted(reasons):
        name = aligned.classes.tolist()[j]
        if len(suggested) > 1 or options.rest is not None:
            what = "drop it, or pass {classes} to say which columns are classes"
        else:
            what = "drop it, and pass {rest} to add a class for the rest"
        value = float(values[bag, j])
        message = f"column {name!r} is not a class: {reasons[j]} (bag {aligned.bags[bag]!r}: {value:g})"
        yield Problem(
            "stray column",
            message,
            what,
            bag=aligned.bags[bag],
            class_name=name,
            value=value,
            row=int(aligned.rows[bag]),
            suggested_classes=suggested,
        )


def _sums_fit(values: np.ndarray, totals: np.ndarray) -> bool:
    complete = np.isfinite(values).all(1)
    if not complete.any():
        return False
    return np.allclose(values[complete].sum(1), totals[complete], rtol=0, atol=SUM_TOLERANCE)


def _find_counting_columns(aligned: Aligned, columns: Sequence[int]) -> dict[int, str]:
    """Columns that number the rows of the table or repeat the ids of the bags, with the reason."""
    here = aligned.rows >= 0
    if here.sum() < FEW or aligned.table_bags is None:
        return {}
    rows = aligned.rows[here]
    ids = _as_numbers([bag for bag, there in zip(aligned.bags, here, strict=True) if there])
    reasons = {}
    for j in columns:
        column = aligned.values[here, j]
        if (column == ids).all():
            reasons[j] = "it repeats the ids of the bags"
        elif (column == rows).all() or (column == rows + 1).all():
            reasons[j] = "it numbers the rows of the table"
    return reasons


def _as_numbers(ids: Sequence[Hashable]) -> np.ndarray:
    numbers = np.full(len(ids), np.nan)
    for i, each in enumerate(ids):
        try:
            numbers[i] = float(each)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return numbers
    return numbers


def find_sum_column(values: np.ndarray) -> int | None:
    """The column that is the sum of all others in every complete row, up to rounding."""
    complete = values[np.isfinite(values).all(1)]
    m, k = complete.shape
    if k < 3 or m < 2 or not complete.any():
        return None
    tolerance = 1e-4 + 2e-3 * np.abs(complete)
    if m >= FEW:
        rounding = k * _rounding_step(complete) / 2
        tolerance = np.maximum(tolerance, np.minimum(rounding, 0.03 * np.median(np.abs(complete), axis=0)))
    distance = np.abs(complete.sum(1, keepdims=True) - 2 * complete)
    sums = (distance <= tolerance).all(0) & (complete > 0).any(0)
    return int(sums.argmax()) if sums.any() else None


def _find_size_columns(aligned: Aligned, columns: Sequence[int]) -> list[int]:
    """Columns of counts that are the number of rows of every bag, such as clicks beside conversions.

    For counts of a larger group, a class may have that number by coincidence if all bags have one size.
    """
    complete = np.isfinite(aligned.values).all(1)
    counts = aligned.values[complete][:, columns]
    sizes = aligned.sizes[complete]
    if len(sizes) < 2 or not sizes.any() or not (counts.sum(1) > sizes).any():
        return []
    if aligned.options.normalize and np.ptp(sizes) == 0:
        return []
    same = (counts == sizes[:, None]).all(0)
    return [columns[i] for i in np.flatnonzero(same).tolist()]


@np.errstate(over="ignore", invalid="ignore")
def find_extra_columns(values: np.ndarray, sizes: np.ndarray | None = None) -> list[int]:
    """Indices of columns, such as turnout, a year or a population, without which nearly all sums are right.

    Shares (m, k) should sum to about 1 or 100, counts to the `sizes` of their bags. The result is the
    smallest set of columns whose removal achieves this. The limits below are judgments, not measurements:
    they are to find every column of the tables in tests/test_problems.py and to accuse no class there.
    """
    complete = np.isfinite(values).all(1)
    values = values[complete]
    m, k = values.shape
    if m < FEW or k < 3:
        return []
    sums = values.sum(1)
    if sizes is not None:
        if np.median(sizes[complete]) <= 1:  # two rare classes may happen to sum to one row
            return []
        wholes = [(sizes[complete].astype(float), 0.5, 0.5)]
    else:
        # rounded sums may be off by 2 %; exact sums of many bags set a small share apart from rounding
        units = [100.0] if np.mean(np.abs(sums - 100) <= 2) >= NEARLY_ALL else [1.0, 100.0]
        tolerances = [(0.02, 0.1)] + ([(1e-3, 5e-3)] if m >= 10 else [])
        wholes = [(np.full(m, unit), unit * low, unit * high) for unit in units for low, high in tolerances]
    candidates = []
    for whole, near, far in wholes:
        # more than the whole in every bag, beyond what rounding or noise adds to a class
        large = np.flatnonzero((values > 1.1 * whole[:, None]).all(0)).tolist()
        large_sum = values[:, large].sum(1)
        # several columns that nearly sum to 100 are percentages, of which some are not in the table
        percentages = len(large) > 1 and 50 <= np.median(large_sum) <= 110
        if not percentages and np.mean(np.abs(sums - whole) > far) >= 0.5:
            candidates.append((large, sums - large_sum - whole, near))
    # at most about 5,000 sets are tried; three columns of a few bags may add up by chance
    most = MAX_STRAY_COLUMNS if m >= 5 and k <= 30 else 2 if k <= 100 else 1
    for n_more in range(most + 1):
        for large, left, near in candidates:
            if k - len(large) - n_more < 2 or not (large or n_more):
                continue
            others = [j for j in range(k) if j not in large]
            for more in combinations(others, n_more):
                off = np.abs(left[:200] - values[:200, list(more)].sum(1))
                if np.mean(off <= near) < NEARLY_ALL - 0.05:  # cheap: the first bags alone
                    continue
                off = np.abs(left - values[:, list(more)].sum(1))
                if np.mean(off <= near) >= NEARLY_ALL:
                    return [*large, *more]
    return []


def _too_few_classes(aligned: Aligned) -> Problem:
    names = aligned.classes.tolist()
    if not names:
        return Problem("classes", "the table has no classes", "give it one column per class")
    message = f"the table has one class, {names[0]!r}"
    hint = _advise(aligned, "give it one column per class", rest="to add a class for the rest")
    return Problem("classes", message, hint, class_name=names[0])


# --- what the numbers are


@np.errstate(over="ignore", invalid="ignore")
def _check_kind(aligned: Aligned) -> Problem | None:
    """Counts that are shares, shares that are counts, shares that are percentages, and the reverse."""
    options = aligned.options
    if options.rest is not None or options.normalize and not aligned.counts:
        return None
    here = aligned.rows >= 0
    complete = np.isfinite(aligned.values).all(1)
    numbers = aligned.values[np.isfinite(aligned.values)]
    if not complete.any():
        return None
    values, sizes = aligned.values[complete], aligned.sizes[complete]
    sums = values.sum(1)
    whole_numbers = bool((values == np.rint(values)).all())
    if aligned.counts:
        fractions = numbers.min() >= 0 and numbers.max() <= 1 and not whole_numbers
        if fractions and (np.abs(sums - 1) <= 0.02).all() and aligned.sizes[here].max() > 1:
            return _wrong_kind(aligned, int(np.argmax(aligned.sizes)), "counts", "shares")
        return None
    first_wrong = int(np.flatnonzero(complete)[np.argmax(values.max(1))])
    if whole_numbers and (sums == sizes).all() and values.max() > 1:
        return _wrong_kind(aligned, first_wrong, "shares", "counts")
    if options.kind == "shares" and np.median(sums) > 50 and np.mean(np.abs(sums - 100) <= 5) >= NEARLY_ALL:
        return _wrong_kind(aligned, first_wrong, "shares", "percent")
    if options.kind == "percent" and np.mean(np.abs(sums - 1) <= 0.05) >= NEARLY_ALL:
        return _wrong_kind(aligned, first_wrong, "percentages", "shares")
    return None


def _wrong_kind(aligned: Aligned, i: int, given: str, kind: str) -> Problem:
    numbers = ", ".join(f"{value:.4g}" for value in aligned.values[i, :5])
    numbers += ", …" if aligned.values.shape[1] > 5 else ""
    message = f"bag {aligned.bags[i]!r} has [{numbers}] as {given}"
    message += f" of its {_rows(aligned.sizes[i])}" if aligned.sizes[i] else ""
    words = {"shares": "shares", "counts": "counts", "percent": "percentages"}[kind]
    hint = f"these look like {words}"
    if kind not in aligned.unavailable:
        hint += f": pass {{{kind}}}"
    return Problem("kind", message, hint, bag=aligned.bags[i], value=aligned.values[i].tolist(),
                   row=int(aligned.rows[i]))  # fmt: skip


# --- single numbers


def _check_missing(aligned: Aligned, doubtful: np.ndarray) -> Iterator[_Finding]:
    """Bags without any number, or with numbers for some of their classes."""
    missing = np.isnan(aligned.values)
    empty = missing.all(1)
    if aligned.options.missing_bags == "error":
        for i in np.flatnonzero(empty & ~doubtful).tolist():
            hint = _advise(aligned, "give them or drop the bag", missing_bags="if they are unknown")
            yield _about_bag(aligned, i, "missing proportions", "has no proportions", hint, math.nan), i
    if aligned.options.missing_cells == "error":
        for i in np.flatnonzero(missing.any(1) & ~empty & ~doubtful).tolist():
            j = int(missing[i].argmax())
            more = int(missing[i].sum()) - 1
            what = f"has no number for class {aligned.classes.tolist()[j]!r}"
            what += f" and {more} more" if more else ""
            hint = _advise(aligned, "fill in every class", missing_cells="to fill in what the others leave")
            yield _about_cell(aligned, i, j, "missing class", what, hint), i


def _check_cells(aligned: Aligned, doubtful: np.ndarray) -> Iterator[_Finding]:
    """Numbers that no bag can have, whatever it sums to."""
    word = {"counts": "count", "shares": "share", "percent": "percentage"}[aligned.options.kind]
    names = aligned.classes.tolist()
    for rule, wrong, what, hint in _cell_rules(aligned):
        for i, j in np.argwhere(wrong & ~doubtful[:, None]).tolist():
            if not doubtful[i]:
                has = f"has {aligned.values[i, j]:g} as the {word} of class {names[j]!r}, {what}"
                yield _about_cell(aligned, i, j, rule, has, hint), i
    if aligned.options.std is None:
        zero = (aligned.values == 0).all(1)
        for i in np.flatnonzero(zero & ~doubtful).tolist():
            yield _about_bag(aligned, i, "all zero", f"has {word}s that are all zero", "drop the bag", 0.0), i


@np.errstate(invalid="ignore")
def _cell_rules(aligned: Aligned) -> Iterator[tuple[str, np.ndarray, str, str]]:
    """Rule, (m, k) where it is broken, what is wrong there, and what to do."""
    options = aligned.options
    values = aligned.values
    yield "infinite", np.isinf(values), "which is not finite", "give a finite number, or drop the bag"
    if options.std is not None:  # noisy numbers may be negative, fractions, and too large
        return
    hint = _advise(aligned, "give 0 or more", std="if noise was added")
    yield "negative", (values < 0) & (aligned.classes != options.rest), "which is negative", hint
    if options.normalize:
        return
    if aligned.counts:
        fractions = np.isfinite(values) & (values != np.rint(values))
        hint = _advise(aligned, "round it", shares="if these are shares", std="if noise was added")
        yield "fraction", fractions, "which is not a whole number", hint
    else:
        hint = _advise(aligned, "correct it", percent="if these are percentages")
        too_large = values > aligned.totals[:, None] * (1 + SAME)
        yield "too large", too_large, f"which is more than {aligned.totals[0]:g}", hint


# --- sums


@np.errstate(over="ignore", invalid="ignore")
def _check_sums(aligned: Aligned, doubtful: np.ndarray) -> Iterator[_Finding]:
    """Bags whose numbers do not sum to their total."""
    options = aligned.options
    values, totals = aligned.values, aligned.totals
    usable = ~doubtful & ~np.isnan(values).all(1)
    sums = np.nansum(values, axis=1)
    missing = np.isnan(values)
    some_missing = missing.any(1) & ~missing.all(1)
    exceeding = some_missing & (sums > totals * (1 + SUM_TOLERANCE))
    for i in np.flatnonzero(exceeding & usable).tolist():
        what = f"has {sums[i]:g} for some of its classes, more than {totals[i]:g} for all"
        hint = _advise(aligned, "correct them", percent="if these are percentages")
        yield _about_bag(aligned, i, "sum", what, hint, sums[i]), i
    usable &= ~some_missing
    if options.rest is not None:
        rest = aligned.classes.tolist().index(options.rest)
        columns = sums - values[:, rest]
        tolerance = totals * SUM_TOLERANCE if options.std is None else np.inf
        for i in np.flatnonzero((values[:, rest] < -tolerance) & usable).tolist():
            what = f"has columns that sum to {columns[i]:g}, more than {totals[i]:g}, so nothing is left"
            what += f" for class {options.rest!r}"
            yield _about_bag(aligned, i, "sum", what, "correct them", columns[i]), i
        return
    if options.normalize:
        yield from _check_common_total(aligned, usable)
        return
    if options.std is not None:
        return
    tolerance = 1e-8 + COUNT_TOLERANCE * totals if aligned.counts else SUM_TOLERANCE * totals
    off = np.abs(sums - totals) > tolerance
    wrong = np.flatnonzero(off & usable)
    hint = _sum_hint(aligned, usable) if len(wrong) else ""
    for i in wrong.tolist():
        what = f"has {_plural(aligned)} that sum to {sums[i]:.6g}"
        if aligned.counts:
            what += f" but {_rows(totals[i])} of data"
        yield _about_bag(aligned, i, "sum", what, hint, sums[i]), i


def _sum_hint(aligned: Aligned, usable: np.ndarray) -> str:
    """What to do about sums that are off, judged by those of all bags."""
    totals = aligned.totals[usable]
    sums = aligned.values[usable].sum(1)
    short = _fall_short(sums, totals)
    if aligned.counts and short:
        return _advise(
            aligned, "correct them", rest="if the other rows are a class of their own, such as non-voters",
            normalize="if the other rows are divided like these",
        )  # fmt: skip
    if aligned.counts:
        return _advise(
            aligned, "correct them", normalize="if they are counts of a larger group",
            estimate="if noise was added to them",
        )  # fmt: skip
    if (np.abs(sums - totals) <= _rounding_tolerance(aligned, usable)).all():
        step, noise = _find_rounding(aligned.values[usable], totals), "if noise was added"
        if step:
            noise += f", or {step / math.sqrt(12):.3g} for numbers rounded to {step:g} (step / √12)"
        return _advise(aligned, "correct them", normalize="if they are rounded", std=noise)
    if _is_interval(aligned, usable):
        both = "give [1 - middle, middle], and width / √12 as the standard deviation"
        return f"if they are the ends of an interval, {both}"
    if _sums_are_constant(aligned, usable):
        rest = {"rest": "if the rest is a class of its own"}
        rescaled = {"normalize": "if all bags are meant to have this sum"}
        cases = rest | rescaled if short else rescaled | rest
        return _advise(aligned, "correct them", **cases)
    if short or (sums <= totals * (1 + SUM_TOLERANCE)).all():
        return _advise(aligned, "correct them", rest="if the rest is a class of its own")
    return _advise(aligned, "correct them, or drop columns that are not classes", std="if noise was added")


def _fall_short(sums: np.ndarray, totals: np.ndarray) -> bool:
    """Whether nearly all sums are below their totals."""
    return bool(np.mean(sums < totals * (1 - SUM_TOLERANCE)) >= NEARLY_ALL)


def find_coverage(aligned: Aligned) -> Problem | None:
    """What is to be known of numbers that `normalize` scales up: they leave out a part of the rows."""
    sums = aligned.values.sum(1)
    known = sums > 0  # not NaN
    total = aligned.totals[known].sum()
    if not aligned.options.normalize or not total or sums[known].sum() >= COVERED * total:
        return None
    part = float(sums[known].sum() / total)
    message = f"{_plural(aligned)} cover {100 * part:.2g} % of the rows"
    message += "; the other rows are assumed to be divided like these"
    hint = "if they are a class of their own, pass {rest} in place of normalizing"
    return Problem("coverage", message, hint, value=part)


def _is_interval(aligned: Aligned, usable: np.ndarray) -> bool:
    """Whether two numbers per bag look like a lower and an upper bound."""
    values = aligned.values[usable]
    unnamed = aligned.classes.tolist() == [0, 1]
    if not unnamed or len(values) <= 2:
        return False
    off = np.abs(values.sum(1) / aligned.totals[usable] - 1)
    return bool((values[:, 0] <= values[:, 1]).all()) and float((off > 0.05).mean()) > 0.5


def _check_common_total(aligned: Aligned, usable: np.ndarray) -> Iterator[_Finding]:
    """Sums that `normalize` would rescale, although their differences mean something.

    Sums of rounded numbers, and of counts of a larger group, are all the same multiple of the right total.
    Where they vary more, a column may not be a class, or people may be missing from the columns.
    """
    sums = np.nansum(aligned.values, axis=1)
    for i in np.flatnonzero((sums <= 0) & usable).tolist():
        what = f"has {_plural(aligned)} that sum to {sums[i]:g}, which cannot be rescaled"
        yield _about_bag(aligned, i, "sum", what, "leave the bag out", sums[i]), i
    usable = usable & (sums > 0)
    if not usable.any() or aligned.options.classes is not None or _sums_are_constant(aligned, usable):
        return
    ratio = np.where(usable, sums / aligned.totals, np.nan)
    low, high = int(np.nanargmin(ratio)), int(np.nanargmax(ratio))
    least, most = (ratio[low], ratio[high]) if aligned.counts else (sums[low], sums[high])
    ends = f"{least:.3g} (bag {aligned.bags[low]!r}) to {most:.3g} (bag {aligned.bags[high]!r})"
    times = " times the size of the bag" if aligned.counts else ""
    message = f"the sums vary from {ends}{times}, more than rounding explains, and normalizing would hide it"
    hint = "drop columns that are not classes, or pass {classes} with those that are"
    if (ratio[usable] <= 1 + SUM_TOLERANCE).all():
        hint += "; pass {rest} in place of normalizing if what is missing is a class of its own"
    problem = _about_bag(aligned, low, "sum", "", hint, sums[low])
    suggested = tuple(aligned.classes.tolist())
    yield replace(problem, message=message, suggested_classes=suggested), []


def _sums_are_constant(aligned: Aligned, usable: np.ndarray) -> bool:
    """Whether all sums are the same multiple of their totals, up to rounding and noise."""
    values, totals = aligned.values[usable], aligned.totals[usable]
    sums = np.nansum(values, axis=1)
    expected = np.median(sums / totals) * totals
    tolerance = _rounding_tolerance(aligned, usable) * expected / totals
    if isinstance(aligned.options.std, int | float):
        m, k = values.shape
        tolerance = tolerance + (6 + math.log(m)) * math.sqrt(k) * aligned.options.std
    return bool((np.abs(sums - expected) <= tolerance).all())


def _find_rounding(values: np.ndarray, totals: np.ndarray) -> float:
    """The step to which all numbers are rounded if that explains the errors of all sums, or 0."""
    step = _rounding_step(values)
    explained = np.abs(values.sum(1) - totals) <= 1.001 * values.shape[1] * step / 2
    return step if step and explained.all() else 0.0


def _rounding_tolerance(aligned: Aligned, usable: np.ndarray) -> np.ndarray:
    """(bags,) how far rounding may move the sum of a bag, in the units of its total."""
    values, totals = aligned.values[usable], aligned.totals[usable]
    scale = np.median(np.nansum(values, axis=1) / totals) if len(values) else 1.0
    return 0.02 * totals + values.shape[1] * _rounding_step(values) / 2 / max(scale, 1e-9)


def _rounding_step(values: np.ndarray) -> float:
    """The step to which all numbers are rounded, up to a tenth of the usual sum of a row, or 0."""
    numbers = values[np.isfinite(values)]
    if not len(numbers):
        return 0.0
    usual = float(np.median(np.nansum(values, axis=1)))
    if not 0 < usual < math.inf:
        return 0.0
    power = math.floor(math.log10(usual))
    for exponent in range(power, power - 6, -1):
        for factor in (5.0, 2.5, 2.0, 1.0):
            step = factor * 10.0**exponent
            if step <= usual / 10 and np.abs(numbers / step - np.rint(numbers / step)).max() < 1e-6:
                return step
    return 0.0


# --- noise


def _check_noise(aligned: Aligned, doubtful: np.ndarray) -> Iterator[_Finding]:
    """Sums and numbers that noise of the given standard deviation does not explain."""
    options = aligned.options
    usable = np.flatnonzero(~doubtful & ~np.isnan(aligned.values).all(1))
    if options.std is None or not len(usable):
        return
    values, totals, scale = to_common_total(aligned, usable)
    std = options.std if isinstance(options.std, str) else options.std * scale
    noise = "estimated noise" if isinstance(std, str) else f"noise of standard deviation {options.std:g}"
    unit = 100 if options.kind == "percent" else 1
    if not isinstance(std, str) and not aligned.counts and np.max(std) > 0.5 * unit:
        message = f"the standard deviation {options.std:g} is more than {0.5 * unit:g}, the most of a share"
        hint = _advise(aligned, "pass it in the units of the table", percent="if these are percentages")
        yield Problem("std", message, hint, value=options.std), []
        return
    sums = values.sum(1)
    if (
        isinstance(std, str)
        and not aligned.counts
        and (np.abs(sums - totals) <= SUM_TOLERANCE * totals).all()
    ):
        message = "noise is estimated from the errors of the sums, but all sums are right"
        yield Problem("std", message, "pass the standard deviation as a number", value=std), []
        return
    if isinstance(std, str) and _are_one_sided(sums - totals, totals):
        short = bool(np.median(sums - totals) < 0)
        side = "below" if short else "above"
        message = f"nearly all sums are {side} their totals, and noise would move as many up as down"
        hint = "pass the standard deviation as a number"
        if short:
            hint = "pass {rest} in place of the estimate if what is missing is a class of its own, or " + hint
        elif aligned.counts:
            hint += ", or pass {normalize} in place of the estimate if they are counts of a larger group"
        yield Problem("one-sided", message, hint, value=float(np.median((sums - totals) / totals))), []
        return
    unexplained = sums_beyond_noise(values, totals, std)
    in_units = "" if aligned.counts or options.normalize else _noise_units(aligned, values, totals)
    for i in unexplained.tolist():
        of = f" but {_rows(totals[i])} of data" if aligned.counts else ""
        what = f"has {_plural(aligned)} that sum to {sums[i]:.6g}{of}, which {noise} does not explain"
        if _fall_short(sums, totals):
            hint = _advise(aligned, "correct them", rest="if the rest is a class of its own")
        elif aligned.counts:
            hint = _advise(
                aligned, "correct them", normalize="and the deviation in their units, for a larger group"
            )
        else:
            hint = _advise(aligned, "correct them", percent="if these are percentages")
        hint += in_units
        yield _about_bag(aligned, int(usable[i]), "noise", what, hint, sums[i]), usable[i]
    if len(unexplained):
        return
    hint = "correct it, or pass the standard deviation that the noise has"
    if isinstance(std, str):
        hint = "pass the standard deviation as a number, since the sums do not show it"
    for i, j in cells_beyond_noise(values, totals, std, counts=aligned.counts).tolist():
        what = f"has {values[i, j]:g} for class {aligned.classes.tolist()[j]!r} and {totals[i]:g} for all"
        what += f", which {noise} does not explain"
        yield _about_cell(aligned, int(usable[i]), j, "noise", what, hint), usable[i]


def _noise_units(aligned: Aligned, values: np.ndarray, totals: np.ndarray) -> str:
    """More of a hint: in which units the deviation is, and what it is for rounded shares."""
    percent = aligned.options.kind == "percent"
    units = "; the standard deviation is in percentage points" if percent else ""
    step = _find_rounding(values, totals)
    if step:
        what = f"numbers rounded to {step:g} have {step / math.sqrt(12):.3g} (step / √12)"
        units += f"{',' if units else ';'} {what}, or pass {{normalize}} in its place"
    return units


def _are_one_sided(off: np.ndarray, totals: np.ndarray) -> bool:
    """Whether nearly all errors (m,) of sums have one sign, in more bags than chance explains."""
    signs = np.sign(off[np.abs(off) > 1e-9 * totals])
    n, most = len(signs), int(max((signs > 0).sum(), (signs < 0).sum()))
    if most < NEARLY_ALL * n:
        return False
    return n > 100 or 2 * sum(math.comb(n, i) for i in range(most, n + 1)) < SURE * 2**n


# --- uninformative bags, groupings that contradict each other


def _check_anything_known(aligned: Aligned) -> Iterator[Problem]:
    if np.isnan(aligned.values).all():
        yield Problem("nothing known", "no bag has proportions, so there is nothing to learn from")


def check_bags_differ(shares: np.ndarray) -> Iterator[Problem]:
    """A problem if all bags have the same shares (m, k), which cannot tell classes apart; NaN: unknown."""
    known = shares[np.isfinite(shares).all(1)]
    if len(known) and float(np.ptp(known, axis=0).max()) < SAME:
        what = "there is one bag" if len(known) == 1 else f"all {len(known)} bags have the same proportions"
        hint = "pass bags that differ, or known_labels for some rows"
        yield Problem("identical bags", f"{what}, so nothing tells the classes apart", hint)


def find_doubts(shares: np.ndarray, sizes: np.ndarray) -> Iterator[Problem]:
    """What is to be known of bags with exact shares (m, k), although they can be learned from; NaN: unknown.

    They are few, or differ as little as random bags, or less. `value` is their number, or their spread.
    """
    known = np.isfinite(shares).all(1)
    shares, sizes = shares[known], sizes[known]
    m = len(shares)
    if not m or sizes.max() <= 1:
        return
    few = m < FEW_TO_LEARN
    if few:
        bags = "1 bag is" if m == 1 else f"{m} bags are"
        message = f"{bags} few: their differences may be chance, or have reasons that no column shows"
        yield Problem("few bags", message, f"diagnose needs at least {FEWEST_TO_DIAGNOSE}", value=m)
    spread, low, high = spread_of_bags(shares, sizes)
    if spread < low:
        message = f"bags differ less than if people had been dealt out at random (spread {spread:.2g}, not 1)"
        message += ": their proportions are nearly alike, were smoothed, or are not of these rows"
        yield Problem("spread", message, "nothing about single rows can be learned from them", value=spread)
    elif spread <= high:
        message = f"bags differ no more than if people had been dealt out at random (spread {spread:.2g})"
        hint = (
            "so few random bags say next to nothing"
            if few
            else "many or small random bags can be learned from"
        )
        yield Problem("spread", message, hint, value=spread)


def spread_of_bags(shares: np.ndarray, sizes: np.ndarray) -> tuple[float, float, float]:
    """The variance of shares (m, k) over that of random bags of these sizes, and the range of the latter.

    Random bags leave the range once in 500 times: ± 3.09 standard deviations of the approximation of Wilson
    and Hilferty (1931).
    """
    spread, freedom = pearson_spread(shares, sizes)
    part = 2 / (9 * freedom)
    low, high = (max(0.0, 1 - part + z * math.sqrt(part)) ** 3 for z in (-3.09, 3.09))
    return spread, low, high


def pearson_spread(shares: np.ndarray, sizes: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic of shares over its degrees of freedom, about 1 for random bags, and these."""
    n = sizes[:, None].astype(float)
    overall = (shares * n).sum(0) / n.sum()
    present = overall > 0
    freedom = max(1, (len(sizes) - 1) * (int(present.sum()) - 1))
    statistic = (n * np.square(shares - overall))[:, present] / overall[present]
    return float(statistic.sum()) / freedom, freedom


def check_same_classes(classes: Mapping[Any, Sequence[Any]]) -> Iterator[Problem]:
    """A problem for each two groupings whose classes differ."""
    names = list(classes)
    for one, other in zip(names, names[1:], strict=False):
        here, there = list(classes[one]), list(classes[other])
        if here != there:
            message = f"grouping {one!r} has the classes {here}, grouping {other!r} has {there}"
            yield Problem("classes", message, "give all tables the same, with 0 for a class that no bag has")


def check_overall_shares(overall: Mapping[Any, np.ndarray], classes: Sequence[Any]) -> Iterator[Problem]:
    """A problem if groupings of the same rows have different overall shares (k,); NaN: unknown."""
    names = [name for name, shares in overall.items() if np.isfinite(shares).all()]
    if len(names) < 2:
        return
    shares = np.stack([overall[name] for name in names])
    worst = int(np.ptp(shares, axis=0).argmax())
    low, high = int(shares[:, worst].argmin()), int(shares[:, worst].argmax())
    if shares[high, worst] - shares[low, worst] > OVERALL_TOLERANCE:
        ends = f"{100 * shares[low, worst]:.3g} % and {100 * shares[high, worst]:.3g} % of {classes[worst]!r}"
        message = f"groupings {names[low]!r} and {names[high]!r} have {ends} over all rows"
        hint = "only one can be right; pass {std} for the inexact one"
        yield Problem("overall shares", message, hint, class_name=classes[worst])


# --- words


def _advise(aligned: Aligned, what: str, **options: str) -> str:
    """`what` to do, or which options to pass in which case; those that were passed already are left out."""
    for name, case in options.items():
        if name not in aligned.unavailable and not _is_passed(aligned.options, name):
            what += f", or pass {{{name}}}{' ' if case else ''}{case}"
    return what


def _is_passed(options: Proportions, name: str) -> bool:
    return {
        "normalize": options.normalize or options.rest is not None,
        "std": options.std is not None,
        "estimate": options.std is not None or options.normalize,
        "missing_bags": options.missing_bags == "allow",
        "missing_cells": options.missing_cells == "impute" or options.rest is not None,
        "rest": options.rest is not None or options.normalize or options.missing_cells == "impute",
        "counts": options.kind == "counts",
        "shares": options.kind == "shares",
        "percent": options.kind != "shares",
    }[name]


def _rows(n: float) -> str:
    return "1 row" if n == 1 else f"{int(n):,} rows"


def _plural(aligned: Aligned) -> str:
    return {"counts": "counts", "shares": "shares", "percent": "percentages"}[aligned.options.kind]


def _about_bag(aligned: Aligned, i: int, rule: str, what: str, hint: str, value: float) -> Problem:
    bag = aligned.bags[i]
    return Problem(rule, f"bag {bag!r} {what}", hint, bag=bag, value=float(value), row=int(aligned.rows[i]))


def _about_cell(aligned: Aligned, i: int, j: int, rule: str, what: str, hint: str) -> Problem:
    problem = _about_bag(aligned, i, rule, what, hint, float(aligned.values[i, j]))
    return replace(problem, class_name=aligned.classes.tolist()[j])
