"""Several --bag of one table: check, fit and predict, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pl = pytest.importorskip("polars")

from apportion import Bags, ProportionClassifier, Proportions, condition_on_proportions  # noqa: E402
from apportion.cli import app  # noqa: E402
from apportion.errors import DataError, SettingsError  # noqa: E402
from apportion.intake.joining import joined  # noqa: E402
from apportion.models import load_model  # noqa: E402
from apportion.tables.asking import Asked  # noqa: E402
from apportion.tables.groupings import check_groupings  # noqa: E402
from apportion.tables.holding import hold_parts  # noqa: E402

N = 400
TEXTS = {"town": pl.String, "age": pl.String}
BAGS = ("--bag", "town", "--bag", "age")
BOTH = ("people.csv", *BAGS, "--counts", "town.csv", "--counts", "age.csv")
QUICK = ("--first-epochs", "3", "--second-epochs", "2")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def read(name: str) -> pl.DataFrame:
    return pl.read_csv(name, schema_overrides=TEXTS)


def same_weights(one: Any, other: Any) -> None:
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), its.detach(), atol=1e-5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """People of 10 towns and 4 age groups, and the counts and shares of both."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, N))
    right = a + b + 0.3 * rng.normal(size=N) > 0
    town = [f"{i:02d}" for i in np.digitize(a + rng.normal(size=N), np.linspace(-2, 2, 9))]
    age = np.array(["20", "40", "60", "80"])[np.digitize(b + 0.5 * rng.normal(size=N), [-1, 0, 1])]
    frame = pl.DataFrame({"town": town, "age": age, "a": a, "b": b})
    frame.write_csv("people.csv")
    for name in ("town", "age"):
        table = frame.select(name, left=~right, right=right).group_by(name).sum().sort(name)
        table.write_csv(f"{name}.csv")
        shares = table.with_columns(pl.col("left", "right") / (pl.col("left") + pl.col("right")))
        shares.select(name, "right", "left").write_csv(f"{name}-shares.csv")
    return tmp_path


def test_check_tells_of_every_grouping_and_keeps_its_columns_from_the_features(folder):
    result = run("check", *BOTH)
    assert result.exit_code == 0
    assert "people.csv: 400 rows in 10 bags by 'town' of" in result.output
    assert "people.csv: 400 rows in 4 bags by 'age' of" in result.output
    last = result.output.splitlines()[-1]
    assert last == "nothing is wrong: a (number), b (number) -> left, right"
    kept = run("check", *BOTH, "--keep", "age").output.splitlines()[-1]
    assert kept == "nothing is wrong: age (category), a (number), b (number) -> left, right"


def test_rows_have_their_own_features_in_every_grouping_and_classes_one_order(folder):
    people = Path("people.csv")
    asked = [
        Asked(people, "town", proportions=Path("town-shares.csv"), beside=("age",)),
        Asked(people, "age", counts=Path("age.csv"), beside=("town",)),
    ]
    found = check_groupings(asked)
    assert [each.classes for each in found] == [("right", "left")] * 2
    counts = read("age.csv")
    np.testing.assert_allclose(
        found[1].shares[:, 1], counts["left"] / (counts["left"] + counts["right"]), atol=1e-9
    )
    table = read("people.csv")
    standard = ((table["a"] - table["a"].mean()) / table["a"].std(ddof=0)).to_numpy()
    parts, columns = hold_parts(asked, found, lambda groupings: groupings)
    assert [column.name for column in columns] == ["a", "b"]
    for question, part in zip(asked, parts, strict=True):
        assert sorted(part.source.tolist()) == list(range(N))
        assert (table[question.bag].to_numpy()[part.source] == np.repeat(part.ids, part.sizes.numpy())).all()
        np.testing.assert_allclose(part.x[:, 0], standard[part.source], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("--noise", "2"), {"town": 2.0, "age": 2.0}),
        (("--noise", "0", "--noise", "2"), {"age": 2.0}),
    ],
)
def test_fit_is_the_estimators_fit_of_both_groupings(folder, words, options):
    assert run("fit", *BOTH, "--out", "model", *QUICK, *words).exit_code == 0
    frame = read("people.csv")
    x = frame.select("a", "b").to_numpy()
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    tables = {name: read(f"{name}.csv") for name in TEXTS}
    other = ProportionClassifier(epochs=3, student_epochs=2, random_state=0)
    tables = {name: Proportions(table, "counts", std=options.get(name)) for name, table in tables.items()}
    other.fit(x, bags={name: frame[name].to_numpy() for name in tables}, proportions=tables)
    same_weights(load_model(Path("model")).network, other.model_)


def test_the_card_tells_of_both_groupings_and_counts_rows_once(folder):
    run("fit", *BOTH, "--out", "model", *QUICK, "--held-out", "0.2", "--choose", "likelihood")
    config = json.loads(Path("model/config.json").read_text())
    assert N // 2 < config["data"]["rows"] <= N
    assert config["data"]["bags by"] == "town, age"
    assert config["data"]["shares from"] == "town.csv, age.csv"
    assert config["facts"]["groupings"] == 2
    assert config["facts"]["bags"] + config["facts"]["held_out"] == 14


def test_predict_meets_the_shares_of_both_groupings(folder):
    run("fit", *BOTH, "--out", "model", *QUICK)
    shares = ("--proportions", "town-shares.csv", "--proportions", "age-shares.csv")
    assert run("predict", "model", "people.csv", *BAGS, *shares, "--out", "met.parquet").exit_code == 0
    assert run("predict", "model", "people.csv", "--out", "plain.parquet").exit_code == 0
    met, plain = pl.read_parquet("met.parquet"), pl.read_parquet("plain.parquet")
    tables = {name: read(f"{name}-shares.csv") for name in TEXTS}
    for name, known in tables.items():
        means = met.group_by(name).agg(pl.col("p(right)").mean()).sort(name)
        np.testing.assert_allclose(means["p(right)"], known["right"], atol=1e-3)
    python = condition_on_proportions(
        plain.select("p(left)", "p(right)").to_numpy(),
        {name: plain[name].to_numpy() for name in tables},
        tables,
        classes=["left", "right"],
    )
    np.testing.assert_allclose(met["p(right)"], python[:, 1], atol=1e-4)


def test_noise_given_labels_and_gaps_work_in_every_grouping(folder):
    table = read("people.csv")
    known = ["right" if a + b > 2 else None for a, b in table.select("a", "b").rows()]
    table.with_columns(known=pl.Series(known)).write_csv("people.csv")
    read("town.csv")[1:].write_csv("town.csv")
    words = ("--given", "known", "--unlabeled", "--noise", "1.5")
    result = run("fit", *BOTH, "--out", "model", *QUICK, *words)
    assert result.exit_code == 0
    assert "1 bags have no row in town.csv" in result.output
    assert json.loads(Path("model/config.json").read_text())["facts"]["given"]
    x = table.select("a", "b").to_numpy()
    other = ProportionClassifier(epochs=3, student_epochs=2, random_state=0)
    other.fit(
        ((x - x.mean(0)) / x.std(0)).astype(np.float32),
        bags={name: table[name].to_numpy() for name in TEXTS},
        proportions={
            name: Proportions(read(f"{name}.csv"), "counts", std=1.5, missing_bags="allow") for name in TEXTS
        },
        known_labels={i: name for i, name in enumerate(known) if name},
    )
    same_weights(load_model(Path("model")).network, other.model_)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*BAGS, "--counts", "town.csv"), "2 of --bag, 0 of --proportions, 1 of --counts"),
        ((*BAGS, "--counts", "town.csv", "--proportions", "age-shares.csv"), "files of one kind as bags"),
        ((*BAGS, "--shares", "a,b"), "--shares is for one --bag"),
        (("--bag", "town", "--counts", "town.csv", "--counts", "age.csv"), "2 of --counts and one --bag"),
        ((*BOTH[1:], "--key", "town"), "1 of --key"),
        ((*BOTH[1:], *("--noise", "1") * 3), "3 of --noise and 2 of --bag"),
    ],
)
def test_files_and_bags_go_together_one_by_one(folder, words, message):
    result = run("check", "people.csv", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_problems_of_all_groupings_are_told_at_once_and_each_once(folder):
    read("age.csv").with_columns(left=pl.col("left") + 7).write_csv("age.csv")
    read("town.csv")[:-1].write_csv("town.csv")
    with pytest.raises(DataError) as problem:
        run("fit", *BOTH, "--out", "model", "--drop", "nothing")
    assert str(problem.value).startswith("3 things are wrong")
    for word in ("no row in town.csv", "age.csv, row 1, bag '20'", "no column 'nothing'"):
        assert str(problem.value).count(word) == 1
    assert not Path("model").exists()


def test_files_that_do_not_fit_together_are_told(folder):
    with pytest.raises(DataError, match="age.csv has no column 'town'"):
        run("check", "people.csv", *BAGS, "--counts", "age.csv", "--counts", "town.csv")
    with pytest.raises(DataError, match="a column is named twice"):
        run("check", "people.csv", *("--bag", "town") * 2, *("--counts", "town.csv") * 2)
    with pytest.raises(DataError, match=r"column 'a' \(--keep\) is no --bag"):
        run("check", "people.csv", "--bag", "town", "--counts", "town.csv", "--keep", "a")
    read("age.csv").rename({"left": "links"}).write_csv("age.csv")
    with pytest.raises(DataError, match="'town' have the classes left, right, those of 'age' links, right"):
        run("check", *BOTH)


def test_overall_shares_that_cannot_both_be_are_noted(folder):
    assert "cannot both be" not in run("check", *BOTH).output
    read("age.csv").with_columns(left=pl.col("right"), right=pl.col("left")).write_csv("age.csv")
    assert "the groupings 'age' and 'town' have" in run("check", *BOTH).output


def test_diagnose_takes_one_grouping_and_says_what_its_networks_lack(folder):
    run("fit", *BOTH, "--out", "model", *QUICK)
    result = run("diagnose", "model", *BOTH)
    assert result.exit_code == 2
    assert "diagnose takes one --bag at a time" in " ".join(result.output.replace("│", " ").split())
    one = run("diagnose", "model", "people.csv", "--bag", "town", "--counts", "town.csv")
    assert "but without the bags of its other groupings: the model itself is not judged" in one.output


def test_columns_of_bags_may_have_other_names_in_their_files(folder):
    for name in TEXTS:
        read(f"{name}.csv").rename({name: f"the {name}"}).write_csv(f"{name}.csv")
    with pytest.raises(DataError, match="town.csv has no column 'town'"):
        run("check", *BOTH)
    assert run("check", *BOTH, "--key", "the town", "--key", "the age").exit_code == 0


def test_a_kept_column_is_a_feature_and_no_warning(folder):
    result = run("fit", *BOTH, "--keep", "age", "--out", "model", *QUICK)
    assert "says which bag a row is of" not in result.output
    assert [column.name for column in load_model(Path("model")).columns] == ["age", "a", "b"]
    table = read("people.csv").with_columns(twin=pl.col("age"))
    table.write_csv("people.csv")
    assert "says which bag a row is of" in run("check", *BOTH).output
    assert run("predict", "model", "people.csv", "--out", "scored.csv").exit_code == 0


def test_predict_meets_noisy_shares_as_far_as_they_deserve(folder):
    run("fit", *BOTH, "--out", "model", *QUICK)
    shifted = read("age-shares.csv").with_columns(right=pl.col("right") * 0.8)
    shifted.with_columns(left=1 - pl.col("right")).write_csv("age-shares.csv")
    shares = ("--proportions", "town-shares.csv", "--proportions", "age-shares.csv")
    words = ("predict", "model", "people.csv", *BAGS, *shares, "--out", "met.parquet")
    with pytest.raises(DataError, match="the groupings contradict each other"):
        run(*words)
    assert run(*words, "--noise", "0", "--noise", "0.1").exit_code == 0
    means = pl.read_parquet("met.parquet").group_by("town").agg(pl.col("p(right)").mean()).sort("town")
    np.testing.assert_allclose(means["p(right)"], read("town-shares.csv")["right"], atol=2e-3)


def test_a_grouping_whose_bags_are_alike_is_noted_and_all_of_them_refused(folder):
    table = read("people.csv").with_columns(sex=pl.Series(["f", "m"] * (N // 2)))
    table.write_csv("people.csv")
    even = pl.DataFrame({"sex": ["f", "m"], "left": [0.5, 0.5], "right": [0.5, 0.5]})
    even.write_csv("sex.csv")
    words = ("people.csv", "--bag", "town", "--bag", "sex", "--proportions", "town-shares.csv")
    result = run("check", *words, "--proportions", "sex.csv")
    assert result.exit_code == 0
    assert "all bags by 'sex' have the same proportions" in result.output
    town = read("town-shares.csv").with_columns(left=pl.lit(0.5), right=pl.lit(0.5))
    town.write_csv("town-shares.csv")
    with pytest.raises(DataError, match="all bags have the same proportions"):
        run("check", *words, "--proportions", "sex.csv")


@pytest.mark.parametrize("held", ["0", "0.3"])
def test_bags_that_a_model_of_several_groupings_has_learnt_from_are_not_new(folder, held):
    run("fit", *BOTH, "--out", "model", *QUICK, "--held-out", held)
    assert N // 2 < json.loads(Path("model/config.json").read_text())["facts"]["rows"] <= N
    for name in TEXTS:
        words = ("diagnose", "model", "people.csv", "--bag", name, "--counts", f"{name}.csv", "--new")
        with pytest.raises(SettingsError, match="the bags that the model learned from, not new ones"):
            run(*words)
    half = read("people.csv")[: N // 2]
    half.write_csv("people.csv")
    shares = ("--proportions", "town-shares.csv", "--normalize")
    assert (
        "new to the model" in run("diagnose", "model", "people.csv", "--bag", "town", *shares, "--new").output
    )


def test_transforms_know_nothing_of_rows_that_are_learnt_from_in_no_grouping(folder):
    people, asked = Path("people.csv"), []
    for name, other in (("town", "age"), ("age", "town")):
        asked.append(Asked(people, name, counts=Path(f"{name}.csv"), beside=(other,)))

    def divide(groupings: list[Bags]) -> list[Bags]:
        whole = joined(dict(zip(("town", "age"), groupings, strict=True)))
        return [whole.select(torch.tensor([0, 11])), whole.select(torch.tensor([1, 2]))]

    (learned, held), columns = hold_parts(asked, check_groupings(asked), divide)
    rows = learned.source.unique()
    values = read("people.csv")["a"].to_numpy()
    assert columns[0].mean == pytest.approx(values[rows].mean(), rel=1e-6)
    for part in (learned, held):
        standard = (values[part.source] - values[rows].mean()) / values[rows].std()
        np.testing.assert_allclose(part.x[:, 0], standard, rtol=1e-4, atol=1e-5)


def test_a_kept_column_is_a_category_in_every_format_and_is_not_dropped(folder):
    table = read("people.csv").with_columns(pl.col("age").cast(pl.Int64))
    table.write_parquet("people.parquet")
    ages = read("age.csv").with_columns(pl.col("age").cast(pl.Int64))
    ages.write_parquet("age.parquet")
    words = ("people.parquet", *BAGS, "--counts", "town.csv", "--counts", "age.parquet", "--keep", "age")
    for said in (words, (*BOTH, "--keep", "age")):
        assert "nothing is wrong: age (category), a (number)" in run("check", *said).output
    with pytest.raises(DataError, match=r"column 'age' \(--keep\) is dropped, too"):
        run("check", *BOTH, "--keep", "age", "--drop", "age")
