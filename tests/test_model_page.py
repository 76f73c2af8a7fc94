"""The page of a model: its numbers are those of the model, diagnose and tabulate; names are only text."""

import itertools
import json
import math
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from apportion import ProportionClassifier, load
from apportion.bags.build import build_bags_without_features
from apportion.cli.app import app
from apportion.cli.options import ProportionOptions, make_spec
from apportion.errors import ApportionWarning, DataError, ModelError, SettingsError
from apportion.report.colors import NAMES, OTHERS, class_colors
from apportion.report.model_evidence import ModelEvidence
from apportion.report.model_page import (
    accuracy_contents,
    accuracy_limits,
    certainty_words,
    headline,
    model_contents,
    model_page,
    table_contents,
    unused_columns,
)
from apportion.report.page import TEMPLATE
from apportion.selection.calibration import count_residuals, reliability_bins
from apportion.selection.diagnosis import Diagnosis
from apportion.tables.importance import ColumnImportance, permutation_importances, tree_importances

HOSTILE = "<img src=x onerror=alert(1)>\u2028</script><script>alert(2)</script>\x1b[2J"
BAGS = ("--bag", "town", "--counts", "counts.csv")


def command(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code != 0
    return f"{result.output} {result.exception}"


def write_town_tables(
    folder: Path, column: str = "age", classes: tuple[str, str] = ("left", "right")
) -> None:
    """Forty towns of twenty people; the old vote for the second class."""
    random = np.random.default_rng(0)
    town = np.repeat(np.arange(40), 20)
    age = random.normal(random.uniform(30, 60, 40)[town], 12).round(1)
    vote = random.random(800) < 1 / (1 + np.exp((45 - age) / 5))
    people = {"town": [f"t{i}" for i in town], column: age, "noise": random.normal(size=800).round(3)}
    people |= {"race": random.choice(["A", "B"], 800), "county": town // 10}
    pl.DataFrame(people).write_csv(folder / "people.csv")
    counts = {name: [int((vote[town == i] == c).sum()) for i in range(40)] for c, name in enumerate(classes)}
    pl.DataFrame({"town": [f"t{i}" for i in range(40)]} | counts).write_csv(folder / "counts.csv")


@pytest.fixture(scope="module")
def towns(tmp_path_factory) -> Path:
    """A folder with two tables and models that learned from them."""
    folder = tmp_path_factory.mktemp("towns")
    write_town_tables(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shared = ("fit", "people.csv", *BAGS, "--drop", "county,race")
        command(*shared, "--model", "linear", "--out", "linear")
        command(*shared, "--model", "trees", "--out", "trees")
        command(*shared, "--model", "mlp", "--epochs", "3", "--pseudo-labels", "none",
                "--validation-fraction", "0.25", "--out", "held-out")  # fmt: skip
    return folder


@pytest.fixture
def here(towns, monkeypatch) -> Path:
    monkeypatch.chdir(towns)
    return towns


def spec_of(**changes: Any) -> Any:
    return make_spec(
        Path("people.csv"), ProportionOptions(bag=["town"], counts=[Path("counts.csv")]), **changes
    )


def contents_of(name: str, **settings: Any) -> dict[str, Any]:
    model = load(name)
    evidence = ModelEvidence(model, Path("people.csv"), spec_of(), **settings)
    for _ in evidence.collect():
        pass
    return model_contents(Path(name), model, evidence)


# --- the numbers


def test_the_diagnosis_is_that_of_diagnose_and_the_tables_are_those_of_tabulate(here):
    found = contents_of("linear", by=[["race"], ["race", "county"]], replicates=2)
    printed = command("diagnose", "linear", "people.csv", *BAGS).splitlines()
    shown = [*found["diagnosis"]["reasons"], *map(": ".join, found["diagnosis"]["figures"])]
    assert shown == printed[-len(shown) :]
    for columns, table in zip((["race"], ["race", "county"]), found["tables"], strict=True):
        by = [word for column in columns for word in ("--by", column)]
        command("tabulate", "linear", "people.csv", *by, *BAGS, "--replicates", "2", "--out", "by.parquet")
        for row, line in zip(table["rows"], pl.read_parquet("by.parquet").rows(named=True), strict=True):
            assert row["group"] == " · ".join(str(line[column]) for column in columns)
            for name in ("rows", "count", "count_low", "count_high", "share", "share_low", "share_high"):
                assert row[name] == pytest.approx(line[name], abs=1e-12)
            assert row["share_min"] == pytest.approx(line["count_min"] / line["rows"])
            assert row["share_max"] == pytest.approx(line["count_max"] / line["rows"])


def test_bags_that_were_held_out_are_predicted_by_the_model_itself_and_so_are_the_others(here):
    found = contents_of("held-out")
    judged, others = found["bags"]["parts"]
    assert [judged["learned"], others["learned"]] == [False, True]
    assert (len(judged["bags"]), len(others["bags"])) == (10, 30)
    people = pl.read_csv("people.csv")
    probabilities = load("held-out").predict_proba(people.select("age", "noise"))
    counts = {name: (left / 20, right / 20) for name, left, right in pl.read_csv("counts.csv").rows()}
    for part in (judged, others):
        for name, known, predicted in zip(part["bags"], part["known"], part["predicted"], strict=True):
            mean = probabilities[(people["town"] == name).to_numpy()].mean(0)
            np.testing.assert_allclose(predicted, mean, atol=1e-5)
            np.testing.assert_allclose(known, counts[name], atol=1e-6)
    assert found["diagnosis"]["judged_on"] == "10 validation bags"
    assert sum(row["bags"] for row in found["calibration"]["rows"] if row["class"] == "left") == 10
    assert not found["importances"]["learned"]


def test_classes_and_columns_are_those_of_the_model(here):
    model = load("trees")
    found = model_contents(Path("trees"), model)
    shares = {row["name"]: (row["known"], row["predicted"]) for row in found["classes"]}
    for i, name in enumerate(model.classes_):
        assert shares[name] == (model.class_shares_[i], model.predicted_shares_[i])
    assert found["importances"]["kind"] == "trees"
    values = {row["column"]: row["value"] for row in found["importances"]["rows"]}
    features = model.encoder_.get_feature_names_out()
    for column in ("age", "noise"):
        mine = [name == column or name.startswith(f"{column} ") for name in features]
        assert values[column] == pytest.approx(model.feature_importances_[mine].sum())
    assert sum(values.values()) == pytest.approx(1)
    assert found["selection"]["score"] == model.selection_["score"]
    assert [row["name"] for row in found["selection"]["candidates"]] == ["trees"]


def test_the_summary_says_what_can_be_known(here):
    found = contents_of("linear", replicates=0)
    first, *others = found["summary"]
    assert "left and right" in first
    assert "800 rows in 40 bags" in first
    accuracy = found["accuracy"]
    assert 0 <= accuracy["least"] <= accuracy["most"] <= 100
    assert found["verdict"]["kind"] in ("bags", "rows")
    assert (accuracy["estimate"] is None) == (found["verdict"]["kind"] == "bags")
    assert any("100 rows" in text for text in others)
    assert found["command"] is None


JUDGED = Diagnosis(
    supported=True, reasons=("No reason.",), spread=1.0, spread_tolerance=0.3, correlation=0.9,
    critical_correlation=0.4, p_value=0.0005, accuracy=math.nan, accuracy_low=0.006, accuracy_high=0.842,
    largest_class=0.5, agreement=0.9, entropy=0.5, proportion_error_of_overall_shares=0.151,
    bag_errors=torch.full((6,), 0.106), classes=torch.zeros(60), margins=torch.zeros(60),
    accuracy_min=0.006, accuracy_max=0.842, accuracy_if_unrelated=0.294, differences="more", p_chance=0.0,
    p_classes=0.0,
)  # fmt: skip


def test_the_headline_compares_errors_of_bags_with_those_of_the_overall_shares():
    estimated = {"accuracy": 0.7, "accuracy_low": 0.6, "accuracy_high": 0.8}
    for changes, kind in (({}, "bags"), (estimated, "rows")):
        found = headline(replace(JUDGED, **changes))
        assert found["kind"] == kind
        assert found["text"].startswith(
            "Better than chance for bags: proportion error 10.6 points, 15.1 without a model"
        )
    assert headline(replace(JUDGED, proportion_error_of_overall_shares=0.1))["kind"] == "none"
    assert headline(replace(JUDGED, origin="training", supported=False))["kind"] == "none"


def test_certain_bounds_are_rounded_outwards():
    assert "at least 0 and at most 85 of 100" in accuracy_limits(JUDGED)
    assert accuracy_contents(JUDGED)["bounds"] == "0.6 – 84.2"


def test_calibration_does_not_contradict_the_bags():
    for temperature in (0.8, 1.0, 1.2):
        assert "6.6 times" in certainty_words(temperature, 6.57)
        assert "about as certain" not in certainty_words(temperature, 6.57)
    assert "about as certain" in certainty_words(1.0, 1.1)


def test_only_one_temperature_is_that_of_the_model(here):
    page = model_page(Path("linear"), load("linear"))
    assert page.split('<script type="application/json"')[0].count("temperature") == 1


@pytest.mark.parametrize("name", ["linear", "trees"])
def test_groups_of_a_column_without_importance_are_not_to_be_compared(here, name):
    model = load(name)
    evidence = ModelEvidence(model, Path("people.csv"), spec_of(), by=[["age"], ["noise"]], train=False)
    for _ in evidence.collect():
        pass
    values = [ColumnImportance("age", 0.05, 0.04, 0.06), ColumnImportance("noise", 0.0004, 0.0001, 0.0007)]
    evidence.importances = values
    tables = table_contents(evidence, unused_columns(model, evidence))
    assert [table["unused"] for table in tables] == [[], ["noise"]]
    evidence.importances = [values[0], replace(values[1], value=0.01, low=-0.001)]
    assert unused_columns(model, evidence) == {"noise"}
    assert "Do not compare the groups of noise" in model_page(Path(name), model, evidence)


# --- colors


def test_a_class_named_after_a_color_has_it_and_no_other_has_a_similar_one():
    assert dict(class_colors(["Red", "Blue", "Green", "Nonvoters"])) == {
        "Red": "red", "Blue": "blue", "Green": "green", "Nonvoters": "purple",
    }  # fmt: skip
    assert dict(class_colors(["GREY", "b"])) == {"GREY": "gray", "b": "blue"}
    assert {"red", "green"}.isdisjoint(color for _, color in class_colors(list("abcdefghijkl")))
    for n in range(1, 5):
        for own in itertools.combinations(sorted(NAMES.keys() - {"grey"}), n):
            colors = [color for _, color in class_colors([*own, "one", "two"])]
            assert tuple(colors[:n]) == own
            assert len(set(colors)) == n + 2


# Machado, Oliveira and Fernandes (2009), for linear RGB
BLIND = {
    "to red": [[0.15229, 1.05258, -0.20487], [0.1145, 0.78629, 0.09922], [-0.00388, -0.04812, 1.052]],
    "to green": [[0.36732, 0.86065, -0.22797], [0.28009, 0.6725, 0.04741], [-0.01182, 0.04294, 0.96888]],
}
TO_XYZ = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]]  # white is one


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_people_who_cannot_tell_red_from_green_tell_the_classes_apart(mode):
    found = re.findall(r"--class-(\w+): #(\w{6})", (TEMPLATE / "page.css").read_text("utf-8"))
    half = len(found) // 2
    colors = dict(found[mode * half : (mode + 1) * half])
    assert colors.keys() == {*NAMES.values(), *OTHERS}

    def seen(color: str, sight: str) -> np.ndarray:
        """The color in CIELAB."""
        c = np.array([int(colors[color][i : i + 2], 16) for i in (0, 2, 4)]) / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        x, y, z = np.cbrt(np.array(TO_XYZ) @ (np.array(BLIND[sight]) @ c).clip(0, 1))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    for together in (("red", "green", "blue", "purple"), ("red", "green", "blue", "yellow"), OTHERS[:4]):
        for one, other in itertools.combinations(together, 2):
            for sight in BLIND:
                assert np.linalg.norm(seen(one, sight) - seen(other, sight)) > 10, (one, other, sight)


# --- what a page does not claim


def test_without_a_table_the_page_names_the_command_that_adds_the_rest(here):
    found = model_contents(Path("linear"), load("linear"))
    assert found["verdict"]["kind"] == "open"
    words = ["apportion", "report", "linear", "people.csv", "--bag", "town", "--proportions", "counts.csv"]
    assert shlex.split(found["command"])[:8] == words
    assert found["accuracy"] is found["diagnosis"] is found["bags"] is None
    assert found["calibration"]["why_not"]


def test_a_quick_page_trains_nothing_and_says_so(here, monkeypatch):
    def fit(*args: Any, **settings: Any) -> None:
        raise AssertionError("something is trained")

    monkeypatch.setattr(ProportionClassifier, "iter_fit", fit)
    found = contents_of("linear", by=[["race"]], train=False)
    assert found["verdict"]["kind"] == "none"
    assert "No answer" in found["diagnosis"]["reasons"][0]
    assert "--validation-fraction" in found["calibration"]["why_not"]
    assert found["bags"]["learned"]
    assert all(row["share_low"] is None for row in found["tables"][0]["rows"])
    assert not found["with_intervals"]


def test_intervals_that_are_no_more_than_bounds_are_named_so(here, monkeypatch):
    monkeypatch.setattr("apportion.tabulation.SUPPORT", -1.0)
    with pytest.warns(ApportionWarning, match="all that arithmetic allows"):
        found = contents_of("linear", by=[["race"]], replicates=2)
    assert "no better than by chance" in found["no_support"]
    for row in found["tables"][0]["rows"]:
        assert (row["share_low"], row["share_high"]) == (row["share_min"], row["share_max"])


def test_without_bags_there_are_only_counts_by_group(here):
    model = load("linear")
    evidence = ModelEvidence(model, Path("people.csv"), None, by=[["race"]])
    assert list(evidence.collect()) == []
    found = model_contents(Path("linear"), model, evidence)
    assert sum(row["count"] for row in found["tables"][0]["rows"]) == pytest.approx(800)
    assert found["diagnosis"] is None
    assert "people.csv" in found["command"]


# --- residuals, bins, permutations


def test_residuals_of_labels_drawn_from_the_predictions_have_the_variance_of_chance():
    random = np.random.default_rng(0)
    p = random.random(60_000)
    drawn = random.random(60_000) < p
    bag = np.arange(60_000) // 60
    shares = {i: [1 - drawn[bag == i].mean(), drawn[bag == i].mean()] for i in range(1000)}
    bags = build_bags_without_features(60_000, bags=bag, proportions=shares).bags
    gap, variance = count_residuals(torch.from_numpy(np.log(np.column_stack([1 - p, p]))), bags)
    assert float((gap.square() / variance).mean()) == pytest.approx(1, abs=0.1)
    assert float(gap.sum()) == pytest.approx(0, abs=1e-3)


def test_bins_hold_every_bag_once_and_their_means_are_those_of_the_rows():
    predicted = torch.rand(25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = predicted.square()
    mass = torch.arange(1, 26)
    bins = reliability_bins(predicted, known, mass * 0.2, mass, most=6)
    assert len(bins) == 6
    assert sum(each.n_bags for each in bins) == 25
    assert [each.predicted for each in bins] == sorted(each.predicted for each in bins)
    order = predicted.argsort()[:5]
    assert bins[0].known == pytest.approx(float((mass * known)[order].sum() / mass[order].sum()))
    assert bins[0].deviation == pytest.approx(float((0.2 * mass[order].sum()).sqrt() / mass[order].sum()))
    (only,) = reliability_bins(predicted[:2], known[:2], mass[:2], mass[:2])
    assert only.n_bags == 2


def test_a_column_without_a_part_in_the_predictions_has_no_importance():
    random = np.random.default_rng(0)
    town = np.repeat(np.arange(30), 20)
    age = random.normal(np.repeat(random.normal(size=30), 20))
    X = pl.DataFrame({"age": age, "spare": random.random(600)})
    shares = {i: [1 - p, p] for i, p in enumerate((age > 0).reshape(30, 20).mean(1))}
    model = ProportionClassifier("linear", random_state=0).fit(X, bags=town, proportions=shares)
    with torch.no_grad():
        model.model_.weight[:, 1:] = 0
    bags = build_bags_without_features(600, bags=town, proportions=shares).bags
    used, spare = permutation_importances(model, X[bags.source.numpy()], bags)
    assert used.low > 0.01
    assert spare.value == pytest.approx(0, abs=1e-9)
    assert tree_importances(model) == []


# --- the command, hostile names, damaged folders


def test_the_command_writes_a_page_of_a_model_and_refuses_what_makes_no_sense(here, tmp_path):
    page = tmp_path / "page.html"
    words = ("report", "linear", "people.csv", *BAGS, "--by", "race", "--quick", "--html", str(page))
    assert (
        f"{page}, {page.stat().st_size / 1e6:.2f} MB" in command(*words) if page.exists() else command(*words)
    )
    assert "By group" in page.read_text()
    for arguments, text in (
        (("report", "linear"), "--html"),
        (("report", "linear", "--html", str(page), "--by", "race"), "table"),
        (("report", "linear", "people.csv", "--html", str(page)), "--bag"),
        (("report", ".", "people.csv", "--html", str(page)), "model.json"),
        (("report", "linear", "people.csv", *BAGS, "--by", "rac", "--html", str(page)), "'race'"),
        (("report", "linear", "people.csv", *BAGS, "--html", "people.csv"), "overwrite"),
        (("report", "linear", "--html", "linear/model.json"), "overwrite"),
    ):
        assert text in refusal(*arguments), arguments


def test_a_mistake_in_a_column_or_a_bag_is_found_before_anything_is_trained(here):
    model = load("linear")
    with pytest.raises(DataError, match="rac"):
        ModelEvidence(model, Path("people.csv"), spec_of(), by=[["rac"]])
    with pytest.raises(SettingsError, match="learned"):
        ModelEvidence(model, Path("people.csv"), spec_of(), new=True)


def test_names_that_are_code_are_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_town_tables(tmp_path, column=HOSTILE, classes=(HOSTILE, "right"))
    command("fit", "people.csv", *BAGS, "--model", "linear", "--drop", "county", "--out", "model")
    model = load("model")
    evidence = ModelEvidence(model, Path("people.csv"), spec_of(), by=[["race"]], train=False)
    for _ in evidence.collect():
        pass
    page = model_page(Path("model"), model, evidence)
    own = page.replace(re.search(r"<script>.*</script>", page, re.DOTALL).group(), "")
    assert not re.search("<img|\x1b|\u2028", own)
    assert len(re.findall("<script", own)) == 1
    assert "&lt;img" in own
    assert "\\u003cimg" in own


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("selection", {"candidates": 3}),
        ("selection", {"candidates": {"a": {"weight": "<b>"}}, "held_out_bags": 1, "temperature": 1.0}),
        ("history", [{"stage": 1, "epoch": 1}]),
        ("history", [{"stage": "first", "epoch": 1, "loss": "<b>"}]),
    ],
)
def test_a_folder_with_other_values_is_refused(here, tmp_path, path, value):
    copy = Path(shutil.copytree("linear", tmp_path / "copy"))
    values = json.loads((copy / "model.json").read_text())
    values["fit"][path] = value
    (copy / "model.json").write_text(json.dumps(values))
    with pytest.raises(ModelError):
        model_contents(copy, load(copy))
