"""The page of a model: its numbers are those of the model, diagnose and tabulate; names are only text."""

import json
import re
import shlex
import shutil
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
from apportion.errors import DataError, ModelError, SettingsError
from apportion.report.model_evidence import ModelEvidence
from apportion.report.model_page import model_contents, model_page
from apportion.selection.calibration import count_residuals, reliability_bins
from apportion.tables.importance import permutation_importances, tree_importances

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
