"""Rules: what is wrong with proportions is found, with bag, class and value; what is right is left alone."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from apportion.bags.build import build_bags
from apportion.bags.problems import (
    FEWEST_TO_DIAGNOSE,
    OPTIONS,
    Problem,
    check_overall_shares,
    find_coverage,
    find_doubts,
    find_extra_columns,
    find_other_spellings,
    find_problems,
    find_sum_column,
    spread_of_bags,
)
from apportion.bags.proportions import Proportions, align
from apportion.errors import ApportionWarning, DataError
from apportion.selection.diagnosis import MIN_BAGS, bag_spread

BAGS = list("abc")
SIZES = np.array([2, 3, 1])
SHARES = pd.DataFrame({"no": [0.5, 1 / 3, 1.0], "yes": [0.5, 2 / 3, 0.0]}, index=BAGS)
COUNTS = pd.DataFrame({"no": [1, 1, 1], "yes": [1, 2, 0]}, index=BAGS)
NAN = math.nan


def problems_of(table: Any, bags=BAGS, sizes=SIZES, **options: Any) -> list[Problem]:
    return list(find_problems(align(Proportions(table, **options), bags, np.asarray(sizes))))


def changed(table: pd.DataFrame, bag: str, *values: float) -> pd.DataFrame:
    table = table.astype(float)
    table.loc[bag] = values
    return table


# case: table, options, rule, bag, class, value
WRONG: dict[str, tuple[Any, dict, str, Any, Any, Any]] = {
    "sum too small": (changed(SHARES, "b", 0.3, 0.6), {}, "sum", "b", None, 0.9),
    "sum too large": (changed(SHARES, "b", 0.3, 0.8), {}, "sum", "b", None, 1.1),
    "percentages that miss 100": (
        changed(100 * SHARES, "b", 30, 60), {"kind": "percent"}, "sum", "b", None, 90,
    ),
    "counts that miss the size": (changed(COUNTS, "b", 3, 4), {"kind": "counts"}, "sum", "b", None, 7),
    "negative share": (changed(SHARES, "c", -0.25, 1.25), {}, "negative", "c", "no", -0.25),
    "negative count": (changed(COUNTS, "c", -1, 2), {"kind": "counts"}, "negative", "c", "no", -1),
    "share above one": (changed(SHARES, "a", 0, 5), {}, "too large", "a", "yes", 5),
    "fraction of a person": (changed(COUNTS, "b", 1.5, 1.5), {"kind": "counts"}, "fraction", "b", "no", 1.5),
    "infinite": (changed(SHARES, "a", 0.5, math.inf), {}, "infinite", "a", "yes", math.inf),
    "nothing known of a bag": (changed(SHARES, "a", NAN, NAN), {}, "missing proportions", "a", None, NAN),
    "a class unknown": (changed(SHARES, "a", 0.5, NAN), {}, "missing class", "a", "yes", NAN),
    "all zero": (changed(SHARES, "b", 0, 0), {}, "all zero", "b", None, 0),
    "all zero, rescaled": (changed(SHARES, "b", 0, 0), {"normalize": True}, "all zero", "b", None, 0),
    "more than all, imputed": (
        changed(SHARES.assign(more=NAN), "b", 0.7, 0.6, NAN), {"missing_cells": "impute"},
        "sum", "b", None, 1.3,
    ),
    "nothing left for the rest": (changed(SHARES, "b", 0.7, 0.6), {"rest": "x"}, "sum", "b", None, 1.3),
    "shares that are counts": (COUNTS, {}, "kind", "b", None, [1, 2]),
    "shares that are percentages": (100 * SHARES, {}, "kind", "c", None, [100, 0]),
    "percentages that are shares": (SHARES, {"kind": "percent"}, "kind", "c", None, [1, 0]),
    "counts that are shares": (SHARES, {"kind": "counts"}, "kind", "b", None, [1 / 3, 2 / 3]),
    "counts that are shares, rescaled": (
        SHARES, {"kind": "counts", "normalize": True}, "kind", "b", None, [1 / 3, 2 / 3],
    ),
    "one class": (SHARES[["no"]], {}, "classes", None, "no", None),
    "a bag twice": (pd.concat([SHARES, SHARES.loc[["a"]]]), {}, "repeated bag", "a", None, None),
    "a bag missing": (SHARES.drop("c"), {}, "missing bag", "c", None, 1),
    "no bag in common": (SHARES.set_axis([1, 2, 3]), {}, "no common bag", "a", None, None),
    "another spelling": (SHARES.rename({"a": " A"}), {}, "spelling", "a", None, " A"),
    "std above one half": (SHARES, {"std": 2.8}, "std", None, None, 2.8),
    "nothing to estimate from": (SHARES, {"std": "estimate"}, "std", None, None, "estimate"),
    "sum beyond noise": (
        changed(COUNTS, "b", 30, 40), {"kind": "counts", "std": 0.5}, "noise", "b", None, 70,
    ),
    "number beyond noise": (
        changed(COUNTS, "b", 13, -10), {"kind": "counts", "std": 0.5}, "noise", "b", "no", 13,
    ),
    "fractions to estimate from": (
        COUNTS + [0.37, -0.37], {"kind": "counts", "std": "estimate"}, "noise", "a", "no", 1.37,
    ),
    "nothing to rescale": (
        changed(COUNTS, "b", -2, -1), {"kind": "counts", "std": 1.0, "normalize": True}, "sum", "b", None, -3,
    ),
    "people missing, rescaled": (
        SHARES.mul([0.43, 0.88, 0.6], axis=0), {"normalize": True}, "sum", "a", None, 0.43,
    ),
    "registered among the classes, rescaled": (
        3 * COUNTS.assign(registered=[9, 3, 1]), {"kind": "counts", "normalize": True}, "sum", "b", None, 18,
    ),
    "a total": (COUNTS.assign(all=[2, 3, 1]), {"kind": "counts"}, "stray column", "a", "all", 2),
    "a total of two": (
        COUNTS[["yes"]].assign(all=[2, 3, 1]), {"kind": "counts"}, "stray column", "a", "all", 2,
    ),
    "a total off by rounding": (
        pd.DataFrame({"x": [33, 20, 10], "y": [33, 31, 10], "z": [33, 50, 80], "all": [100, 100, 101]}, BAGS),
        {"kind": "percent"}, "stray column", "a", "all", 100,
    ),
    "row numbers": (SHARES.assign(row=[1, 2, 3]), {}, "stray column", "a", "row", 1),
    "turnout": (SHARES.assign(turnout=[0.42, 0.61, 0.08]), {}, "stray column", "a", "turnout", 0.42),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_with_its_parts(case):
    table, options, rule, bag, class_name, value = WRONG[case]
    problem, *_ = problems_of(table, **options)
    assert (problem.rule, problem.bag, problem.class_name) == (rule, bag, class_name)
    if value is not None:
        assert problem.value == pytest.approx(value, nan_ok=True)
    for part in (bag, class_name):
        assert part is None or repr(part) in problem.message
    if problem.row is not None and bag in SHARES.index and rule != "repeated bag":
        assert table.index[problem.row].strip().lower() == bag


@pytest.mark.parametrize("case", WRONG)
def test_the_estimators_way_in_raises_the_first_problem(case):
    table, options, _, bag, _, value = WRONG[case]
    x = np.arange(12.0).reshape(6, 2)
    with pytest.raises(DataError) as error:
        build_bags(x, bags=np.repeat(BAGS, SIZES), proportions=Proportions(table, **options))
    assert error.value.bag == bag
    assert error.value.problems[0].text() == str(error.value)


@pytest.mark.parametrize("case", WRONG)
def test_a_hint_never_recommends_what_was_passed(case):
    table, options, *_ = WRONG[case]
    for problem in problems_of(table, **options):
        python, cli = problem.text(), problem.text("cli")
        assert "{" not in python.replace("{class: number}", "")
        for name, value in options.items():
            if name != "std":
                said = f"{name}={value!r}"
                assert said not in python
        if options.get("normalize"):
            assert "--normalize" not in cli
        assert "Proportions(" not in cli


def test_hints_are_written_for_python_and_for_the_command_line():
    problem = Problem(
        "sum", "it is wrong", "pass {normalize}, or {classes}", suggested_classes=("a b", "c,d")
    )
    assert problem.text() == (
        "it is wrong; pass Proportions(..., normalize=True), or Proportions(..., classes=['a b', 'c,d'])"
    )
    assert problem.text("cli") == "it is wrong; pass --normalize, or --classes 'a b,\"c,d\"'"
    assert Problem("sum", "it is wrong").text() == "it is wrong"
    assert all(python != cli for python, cli in OPTIONS.values())


def test_all_problems_are_found_and_each_bag_is_named_once():
    bags = [f"b{i}" for i in range(12)]
    table = pd.DataFrame(np.full((12, 2), 0.5), bags, ["x", "y"])
    table.loc["b1"], table.loc["b4"], table.loc["b5"] = [0.5, NAN], [-0.1, 1.1], [0.2, 0.3]
    table.loc["b7"], table.loc["b8"] = [NAN, NAN], [0.4, 0.4]
    found = problems_of(table.drop("b10"), bags, np.full(12, 3))
    named = {(problem.rule, problem.bag) for problem in found}
    assert named == {
        ("missing bag", "b10"), ("missing class", "b1"), ("negative", "b4"), ("sum", "b5"),
        ("missing proportions", "b7"), ("sum", "b8"),
    }  # fmt: skip
    assert len(found) == 6


RIGHT: dict[str, tuple[Any, dict]] = {
    "shares": (SHARES, {}),
    "four printed digits": (SHARES.round(4), {}),
    "rounding residue": (SHARES.assign(z=-1e-17), {}),
    "counts": (COUNTS, {"kind": "counts"}),
    "rounded percentages": ((100 * SHARES).round(), {"kind": "percent", "normalize": True}),
    "per mille": (1000 * SHARES, {"normalize": True}),
    "shares rounded to 0.05": (
        pd.DataFrame({"x": [0.3, 0.35, 0.1], "y": [0.35, 0.3, 0.45], "z": [0.3, 0.3, 0.4]}, BAGS),
        {"normalize": True},
    ),
    "counts of a larger group": (30 * COUNTS, {"kind": "counts", "normalize": True}),
    "counts of groups of any size": (
        COUNTS.mul([3, 50, 7], axis=0), {"kind": "counts", "normalize": True, "classes": ["no", "yes"]},
    ),
    "voters of 43 to 88 percent": (SHARES.mul([0.43, 0.88, 0.6], axis=0), {"rest": "stayed at home"}),
    "insisted on": (
        SHARES.assign(turnout=[0.42, 0.6, 0.1]), {"normalize": True, "classes": ["no", "turnout", "yes"]},
    ),
    "unknown bags": (changed(SHARES, "a", NAN, NAN).drop("b"), {"missing_bags": "allow"}),
    "a class unknown": (changed(SHARES, "a", NAN, 0.5), {"missing_cells": "impute"}),
    "noise": (COUNTS + 0.7, {"kind": "counts", "std": 1.0}),
    "a class that counts": (pd.DataFrame({"a": [1, 2, 0], "b": [1, 1, 1]}, BAGS), {"kind": "counts"}),
    "halves": (pd.DataFrame({"control": 0.5, "x": [0.1, 0.2, 0.3], "y": [0.4, 0.3, 0.2]}, BAGS), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_left_alone(case):
    table, options = RIGHT[case]
    assert problems_of(table, **options) == []


def test_one_bag_in_many_of_a_larger_table_is_enough():
    table = pd.concat([SHARES, pd.DataFrame({"no": [7.0, NAN], "yes": [5.0, NAN]}, ["x", "x"])])
    assert problems_of(table) == []  # other bags of the table may have anything, and twice


# --- columns that are not classes


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({"turnout": [0.42, 0.61, 0.08]}, 1),
        ({"year": 2020}, 100),
        ({"year": 2020, "people": [1200, 900, 77], "turnout": [0.4, 0.6, 0.5]}, 1),
        ({"total": [1.0, 1.01, 0.99], "turnout": [0.41, 0.6, 0.53]}, 1),
        ({"total": [100, 101, 99], "registered": [1200, 900, 77]}, 100),
    ],
)
def test_columns_beside_shares_are_named_all_at_once(extra, factor, normalize):
    table = (SHARES * factor).assign(**extra)
    kind = "percent" if factor == 100 else "shares"
    found = problems_of(table, kind=kind, normalize=normalize)
    assert {problem.class_name for problem in found if problem.rule == "stray column"} == set(extra)
    assert all(problem.suggested_classes == ("no", "yes") for problem in found)
    assert problems_of(table, kind=kind, classes=["no", "yes"]) == []


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("values", [[5, 4, 8], [1, 1, 2], [2020, 2020, 2020]])
def test_columns_beside_counts_of_all_rows_are_named(values, normalize):
    found = problems_of(COUNTS.assign(more=values), kind="counts", normalize=normalize)
    assert [problem.class_name for problem in found] == ["more"]


def test_a_few_odd_bags_and_small_shares_hide_no_extra_column():
    parts = np.random.default_rng(0).dirichlet([3, 3], 40)
    parts[7] *= 0.9
    assert find_extra_columns(np.column_stack([parts, np.full(40, 0.02)])) == [2]
    spread = np.column_stack([parts[:, 0], np.linspace(0.3, 0.7, 40), parts[:, 1]])
    assert find_extra_columns(spread) == [1]
    assert find_extra_columns(np.column_stack([parts * 0.98, np.full(40, 0.02)])) == []


@pytest.mark.parametrize("step", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("weights", [[5, 3, 0.2], [1, 1, 1, 1], [10, 0.1, 0.1]])
def test_rounded_and_noisy_shares_are_all_classes(step, weights):
    random = np.random.default_rng(1)
    for m in (3, 12, 50):
        parts = random.dirichlet(weights, m)
        rounded = np.rint(parts / step) * step
        assert find_extra_columns(rounded) == []
        assert (
            problems_of(dict(zip(range(m), rounded, strict=True)), range(m), np.full(m, 9), normalize=True)
            == []
        )
        assert find_extra_columns(100 * parts + random.normal(0, 100 * step, parts.shape)) == []
        assert find_extra_columns(random.multinomial(60, parts[0], m), random.integers(5, 30, m)) == []


def test_rare_classes_that_happen_to_sum_to_one_are_classes():
    table = np.array([[50, 42, 1, 0], [44, 50, 0, 1], [52, 41, 1, 0], [40, 53, 0, 1], [47, 46, 0, 1]], float)
    assert find_extra_columns(table) == []
    ones = np.array([[4, 1, 0], [5, 0, 1], [3, 1, 0], [4, 0, 1], [6, 1, 0]], float)
    assert find_extra_columns(ones, np.ones(5)) == []


def test_a_sum_column_is_found_up_to_rounding():
    parts = np.rint(100 * np.random.default_rng(0).dirichlet([1, 1, 1], 30))
    assert find_sum_column(np.column_stack([parts, parts.sum(1)])) == 3
    assert find_sum_column(np.column_stack([np.full(30, 100.0), parts])) == 0
    assert find_sum_column(parts) is None


def test_clicks_of_which_some_convert_are_no_class():
    sizes = np.random.default_rng(4).integers(10, 30, 20)
    table = pd.DataFrame({"clicks": sizes, "converted": sizes // 3})
    for options in ({}, {"normalize": True}, {"std": 1.0}):
        found = problems_of(table, range(20), sizes, kind="counts", **options)
        assert found[0].class_name == "clicks"
        assert "rest=" in found[0].text() or options.get("normalize")
    assert problems_of(table[["converted"]], range(20), sizes, kind="counts", rest="not") == []


# --- people who are missing from the table


def table_without_nonvoters(m: int = 12):
    random = np.random.default_rng(0)
    sizes = random.integers(80, 200, m)
    table = pd.DataFrame(random.multinomial(1, [0.3, 0.45, 0.25], sizes.sum())).groupby(
        np.repeat(range(m), sizes)
    ).sum()  # fmt: skip
    return table[[0, 1]].set_axis(["left", "right"], axis=1), sizes


def test_where_people_are_missing_from_counts_the_rest_is_offered_first():
    table, sizes = table_without_nonvoters()
    found = problems_of(table, range(12), sizes, kind="counts")
    assert len(found) == 12
    hint = found[0].hint or ""
    assert 0 < hint.index("{rest}") < hint.index("{normalize}")
    assert "larger" not in hint
    assert "{estimate}" not in hint
    above = problems_of(3 * table, range(12), sizes, kind="counts")[0].hint or ""
    assert "larger" in above
    assert "{rest}" not in above
    shares = table.div(sizes, axis=0)
    assert "{rest}" in (problems_of(shares, range(12), sizes)[0].hint or "")
    for scaled in (0.9 * table.div(table.sum(axis=1), axis=0),):
        hint = problems_of(scaled, range(12), sizes)[0].hint or ""
        assert 0 < hint.index("{rest}") < hint.index("{normalize}")
    noisy = problems_of(table, range(12), sizes, kind="counts", std=0.5)[0]
    assert (noisy.rule, "{rest}" in (noisy.hint or "")) == ("noise", True)
    assert problems_of(table, range(12), sizes, kind="counts", rest="at home") == []


@pytest.mark.parametrize("m", [5, 12, 300])
def test_noise_does_not_move_all_sums_to_one_side(m):
    table, sizes = table_without_nonvoters(m)
    random = np.random.default_rng(1)
    everyone = table.assign(none=sizes - table.sum(axis=1))
    noisy = everyone + np.rint(random.normal(0, 4, everyone.shape))
    options: dict[str, Any] = {"kind": "counts", "std": "estimate"}
    assert problems_of(noisy, range(m), sizes, **options) == []
    for more, word in ((table, "{rest}"), (noisy + 8, "{normalize}")):
        found = problems_of(more, range(m), sizes, **options)
        assert [problem.rule for problem in found] == (["one-sided"] if m > 10 else [])
        assert all(word in (problem.hint or "") for problem in found)
    shares = 100 * table.div(sizes, axis=0)
    found = problems_of(shares, range(m), sizes, kind="percent", std="estimate")
    assert [problem.rule for problem in found] == (["one-sided"] if m > 10 else [])


def test_a_table_that_leaves_people_out_says_so_where_it_is_rescaled():
    table, sizes = table_without_nonvoters()
    options: dict[str, Any] = {"kind": "counts", "normalize": True, "classes": ["left", "right"]}
    covered = table.to_numpy().sum() / sizes.sum()
    coverage = find_coverage(align(Proportions(table, **options), range(12), sizes))
    assert coverage is not None
    assert coverage.value == pytest.approx(covered)
    x = np.zeros((sizes.sum(), 1))
    with pytest.warns(ApportionWarning, match=f"cover {100 * covered:.2g} %"):
        build_bags(x, bags=np.repeat(range(12), sizes), proportions=Proportions(table, **options))
    whole = [(9 * table, options), (table, {"kind": "counts", "rest": "at home"})]
    rounded = table.div(table.sum(axis=1), axis=0).round(2)
    for given, settings in [*whole, (rounded, {"normalize": True})]:
        assert find_coverage(align(Proportions(given, **settings), range(12), sizes)) is None


# --- rounded numbers


@pytest.mark.parametrize(("kind", "step"), [("percent", 0.1), ("percent", 1.0), ("shares", 0.01)])
def test_the_deviation_of_rounded_numbers_is_said_in_their_units(kind, step):
    unit = 100 if kind == "percent" else 1
    parts = np.random.default_rng(0).dirichlet([5.0, 4.0, 3.0, 2.0], 60)
    table = pd.DataFrame(np.rint(unit * parts / step) * step)
    sizes = np.full(60, 90)
    std = step / math.sqrt(12)
    for options in ({}, {"std": std / 100}):
        found = problems_of(table, range(60), sizes, kind=kind, **options)
        assert {problem.rule for problem in found} == {"noise" if options else "sum"}
        assert f"{std:.3g}" in (found[0].hint or "")
        assert "{normalize}" in (found[0].hint or "")
        assert ("percentage points" in (found[0].hint or "")) == (kind == "percent" and bool(options))
    assert problems_of(table, range(60), sizes, kind=kind, std=float(f"{std:.3g}")) == []
    assert problems_of(table, range(60), sizes, kind=kind, normalize=True) == []


# --- bags that teach little


def doubts_of(shares, sizes):
    return {problem.rule: problem.value for problem in find_doubts(shares, np.asarray(sizes))}


def test_random_bags_leave_the_range_of_the_spread_rarely_and_others_mostly():
    random = np.random.default_rng(0)
    for m, k in ((4, 2), (12, 3), (60, 4)):
        sizes = random.integers(40, 200, m)
        outside = 0
        for _ in range(1000):
            spread, low, high = spread_of_bags(
                random.multinomial(sizes, np.full(k, 1 / k)) / sizes[:, None], sizes
            )
            outside += not low <= spread <= high
        assert outside <= 8
        towns = random.dirichlet(np.full(k, 3.0), m)
        spread, _, high = spread_of_bags(towns, sizes)
        assert spread > high or m == 4
        torch_spread, _ = bag_spread(torch.from_numpy(towns), torch.from_numpy(sizes))
        assert spread == pytest.approx(torch_spread)


def test_few_bags_and_bags_that_are_alike_or_random_are_noted():
    random = np.random.default_rng(0)
    towns = random.dirichlet([3.0, 3.0, 3.0], 60)
    sizes = np.full(60, 150)
    assert doubts_of(towns, sizes) == {}
    assert doubts_of(towns[:5], sizes[:5])["few bags"] == 5
    by_chance = random.multinomial(150, [0.3, 0.3, 0.4], 60) / 150
    assert 0.6 < doubts_of(by_chance, sizes)["spread"] < 1.4
    alike = np.full((60, 3), 1 / 3) + random.choice([-1, 0, 1], (60, 1)) * [1 / 150, -1 / 150, 0]
    assert doubts_of(alike, sizes)["spread"] < 0.1
    gaps = np.concatenate([towns, np.full((3, 3), NAN)])
    assert doubts_of(gaps, np.full(63, 150)) == {}
    assert doubts_of(np.eye(3), [1, 1, 1]) == {}  # labels
    assert MIN_BAGS == FEWEST_TO_DIAGNOSE


# --- spelling, groupings


def test_many_ids_of_another_spelling_are_one_problem_with_a_remedy():
    table = SHARES.iloc[np.arange(12) % 3].set_axis([f"{i:03d}" for i in range(12)])
    (problem,) = problems_of(table, [str(i) for i in range(12)], np.full(12, 6))
    assert (problem.rule, problem.bag, problem.value, problem.row) == ("spelling", "0", "000", 0)
    assert "zfill(3)" in (problem.hint or "")
    assert all(repr(name) in problem.message for name in ("000", "001", "002"))
    few = problems_of(table.iloc[:2], ["0", "1"], [6, 6])
    assert [problem.value for problem in few] == ["000", "001"]
    (numbers,) = problems_of(table, range(12), np.full(12, 6))
    assert numbers.rule == "no common bag"
    assert ".astype(str).str.zfill(3)" in (numbers.hint or "")


def test_ids_that_are_written_otherwise_are_paired():
    assert find_other_spellings(["a", "10"], [" A ", "0010", "x"]) == {
        " A ": ("a", "is 'a'"), "0010": ("10", "is '10'"),
    }  # fmt: skip
    one, other = "\u00e9", "e\u0301"
    assert "Unicode" in find_other_spellings([one], [other])[other][1]
    assert find_other_spellings([1, ("a",)], [2, "b"]) == {}


def test_groupings_whose_overall_shares_differ_contradict_each_other():
    close = {"town": np.array([0.3, 0.7]), "age": np.array([0.305, 0.695]), "sex": np.array([NAN, NAN])}
    assert list(check_overall_shares(close, ["no", "yes"])) == []
    (problem,) = check_overall_shares(close | {"age": np.array([0.4, 0.6])}, ["no", "yes"])
    assert "'town'" in problem.message
    assert "'age'" in problem.message
