"""`apportion predict`, `diagnose` and `export`, and the whole path from image files to predictions."""

from pathlib import Path

import numpy as np
import pytest
from test_cli_fit import done, people, refused, run, weights, weights_of  # noqa: F401

pl = pytest.importorskip("polars")
Image = pytest.importorskip("PIL.Image")

from apportion import (  # noqa: E402
    ProportionClassifier,
    Proportions,
    condition_on_proportions,
    encoding,
    tabulate,
)
from apportion.cli.options import ProportionOptions, make_spec  # noqa: E402
from apportion.saving import load  # noqa: E402
from apportion.tables import images  # noqa: E402
from apportion.tables.diagnose import plan_diagnosis  # noqa: E402

TOWNS = ("--bag", "town", "--counts", "town-counts.csv")
GOOD = (
    "--epochs",
    "60",
    "--student-epochs",
    "20",
    "--batch-size",
    "100",
    "--drop",
    "wage,job,owner,born,age",
)
QUICK = ("--epochs", "2", "--student-epochs", "1")


@pytest.fixture
def model(people):  # noqa: F811
    done("fit", "people.csv", *TOWNS, "--out", "model", *QUICK)
    return load("model")


@pytest.fixture
def good_model(people):  # noqa: F811
    done("fit", "people.csv", *TOWNS, "--out", "model", *GOOD)
    return load("model")


def truth() -> np.ndarray:
    return pl.read_parquet("truth.parquet")["vote"].to_numpy()


def probabilities(table: str) -> np.ndarray:
    read = pl.read_csv if table.endswith(".csv") else pl.read_parquet
    return read(table).select("p(left)", "p(right)").to_numpy()


# --- predictions


def test_predictions_are_those_of_the_classifier_in_every_format(people, model):  # noqa: F811
    expected = model.predict_proba(people.drop("town"))
    for table in ("people.csv", "people.parquet"):
        for out in ("out.csv", "out.parquet"):
            done("predict", "model", table, "--out", out)
            np.testing.assert_allclose(probabilities(out), expected, atol=1e-6)
    frame = pl.read_parquet("out.parquet")
    assert frame.columns == [*people.columns, "predicted", "p(left)", "p(right)"]
    assert frame.select(people.columns).equals(people)
    assert frame.select(people.columns).schema == people.schema
    assert frame["predicted"].to_list() == model.predict(people.drop("town")).tolist()


def test_decisions_that_respect_shares_are_those_of_python(people, model):  # noqa: F811
    features = people.drop("town")
    done("predict", "model", "people.parquet", "--out", "out.csv", "--decide", "shares")
    decided = pl.read_csv("out.csv")["predicted"]
    assert decided.to_list() == model.predict(features, decide="shares").tolist()
    assert abs((decided == "left").mean() - model.class_shares_[0]) <= 2 / len(people)
    done("predict", "model", "people.parquet", *TOWNS, "--out", "bags.csv", "--decide", "shares")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String}).sort("town")
    left = pl.read_csv("bags.csv", schema_overrides={"town": pl.String}).group_by("town").agg(
        left=(pl.col("predicted") == "left").sum()
    )  # fmt: skip
    assert left.sort("town")["left"].to_list() == counts["left"].to_list()
    refused("predict", "model", "people.parquet", "--out", "more.csv", "--decide", "most")


def test_a_good_model_is_right(good_model):
    done("predict", "model", "people.parquet", "--out", "out.csv")
    assert (pl.read_csv("out.csv")["predicted"].to_numpy() == truth()).mean() > 0.9


def test_texts_of_a_csv_stay_as_they_are_written(people, model):  # noqa: F811
    text = people.with_columns(zip=pl.lit("007"), owner=pl.col("owner").cast(pl.String).str.to_titlecase())
    text.write_csv("new.csv")
    done("predict", "model", "new.csv", "--out", "out.csv")
    out = pl.read_csv("out.csv", infer_schema=False)
    assert out.select(text.columns).equals(pl.read_csv("new.csv", infer_schema=False))
    done("predict", "model", "new.csv", "--out", "out.parquet")
    schema = pl.read_parquet_schema("out.parquet")
    assert (schema["zip"], schema["up"], schema["owner"]) == (pl.String, pl.Float64, pl.Boolean)


def test_semicolons_and_decimal_commas(people, model):  # noqa: F811
    people.write_csv("european.csv", separator=";", decimal_comma=True)
    done("predict", "model", "european.csv", "--out", "out.csv")
    np.testing.assert_allclose(probabilities("out.csv"), model.predict_proba(people.drop("town")), atol=1e-6)
    assert pl.read_csv("out.csv")["up"].dtype == pl.Float64


def test_rows_are_predicted_in_batches(people, model, monkeypatch):  # noqa: F811
    done("predict", "model", "people.parquet", "--out", "whole.parquet")
    monkeypatch.setattr(encoding, "BATCH", 77)
    done("predict", "model", "people.parquet", "--out", "parts.parquet")
    np.testing.assert_allclose(probabilities("parts.parquet"), probabilities("whole.parquet"), atol=1e-6)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("people.parquet", TOWNS),
        ("people.csv", TOWNS),
        ("both.csv", ("--bag", "town", "--shares", "left,right")),
    ],
)
def test_probabilities_given_the_proportions_of_the_bags(people, model, table, words):  # noqa: F811
    done("predict", "model", table, *words, "--out", "out.parquet")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    expected = condition_on_proportions(
        model.predict_proba(people.drop("town")),
        people["town"],
        Proportions(counts, "counts", key="town"),
        classes=model.classes_,
    )
    np.testing.assert_allclose(probabilities("out.parquet"), expected, atol=1e-6)
    assigned = pl.read_parquet("out.parquet").group_by("town").agg((pl.col("assigned") == "left").sum())
    assert assigned.sort("town")["assigned"].to_list() == counts.sort("town")["left"].to_list()
    means = pl.read_parquet("out.parquet").group_by("town").agg(pl.col("p(left)").mean()).sort("town")
    np.testing.assert_allclose(means["p(left)"], counts.sort("town")["left"] / 20, atol=1e-4)


def test_probabilities_given_several_groupings(people, model):  # noqa: F811
    ages = ("--bag", "age", "--counts", "age-counts.csv")
    people.with_columns(age=pl.col("age")).write_csv("people.csv")
    done("predict", "model", "people.csv", *TOWNS, *ages, "--out", "out.parquet")
    out = pl.read_parquet("out.parquet")
    counts = pl.read_csv("age-counts.csv").sort("age")
    sums = out.group_by("age").agg(pl.col("p(left)").sum()).cast({"age": pl.Int64}).sort("age")
    np.testing.assert_allclose(sums["p(left)"], counts["left"], atol=0.5)


def test_bags_without_proportions_keep_their_predictions(people, model):  # noqa: F811
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    counts.filter(pl.col("town") != "03").write_csv("some.csv")
    words = ("--bag", "town", "--counts", "some.csv", "--out", "out.parquet")
    refused("predict", "model", "people.csv", *words)
    done("predict", "model", "people.csv", *words, "--missing-bags", "allow")
    rows = (people["town"] == "03").to_numpy()
    expected = model.predict_proba(people.drop("town"))
    np.testing.assert_allclose(probabilities("out.parquet")[rows], expected[rows], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"up": pl.lit("high")}, ()),
        ({"up": pl.lit(float("inf"))}, ()),
        ({"up": pl.lit("nan")}, ()),
        ({"owner": pl.lit("perhaps")}, ()),
        ({"born": pl.lit("soon")}, ()),
        ({"predicted": pl.lit("left")}, ()),
        ({}, ("--shares", "left,right")),  # without --bag
        ({}, ("--bag", "tovn", "--counts", "town-counts.csv")),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_that_cannot_be_predicted_are_refused_and_leave_nothing(people, model, suffix, changes, words):  # noqa: F811
    frame = people.with_columns(**changes)
    frame.write_csv("new.csv")
    frame.write_parquet("new.parquet")
    message = refused("predict", "model", f"new.{suffix}", *words, "--out", "out.csv")
    assert all(f"{name!r}" in message or "row 1" in message for name in changes)
    assert not Path("out.csv").exists()


def test_missing_columns_are_named_with_a_guess(people, model):  # noqa: F811
    people.rename({"wage": "wages"}).write_parquet("new.parquet")
    message = refused("predict", "model", "new.parquet", "--out", "out.csv")
    assert "'wage'" in message
    assert "did you mean 'wages'" in message


def test_values_unlike_those_of_training_are_noted(people, model):  # noqa: F811
    changed = people.with_columns(
        up=pl.col("up") * 1000,
        along=pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise("along"),
        job=pl.lit("job"),
    )
    changed.write_parquet("new.parquet")
    output = done("predict", "model", "new.parquet", "--out", "out.csv")
    assert "'up' is far from training" in output
    assert "'along' is missing in 5 of 600 rows" in output
    assert "'job' has values in 600 of 600 rows" in output
    assert done("predict", "model", "people.parquet", "--out", "again.csv").splitlines() == ["again.csv"]


def test_missing_texts_are_remembered(people):  # noqa: F811
    text = people.with_columns(pl.col("wage").cast(pl.String).fill_null("NA"))
    text.write_csv("people.csv")
    done("fit", "people.csv", *TOWNS, "--missing", "NA", "--out", "model", *QUICK)
    done("predict", "model", "people.csv", "--out", "out.csv")
    assert pl.read_csv("out.csv", infer_schema=False)["wage"].to_list() == text["wage"].to_list()


def test_no_result_is_written_over_an_input_or_to_a_folder(people, model):  # noqa: F811
    Path("folder.csv").mkdir()
    Path("hard.csv").hardlink_to("people.csv")
    before = Path("people.csv").read_bytes()
    for out in ("people.csv", "hard.csv", "town-counts.csv", "folder.csv", "people.csv/x.csv", "out.json"):
        refused("predict", "model", "people.csv", *TOWNS, "--out", out)
    refused("diagnose", "model", "people.csv", *TOWNS, "--bags-out", "same.csv", "--rows-out", "same.csv")
    refused("export", "model", "--onnx", "model/model.json")
    assert Path("people.csv").read_bytes() == before


# --- diagnosis


def test_validation_bags_judge_a_model(people):  # noqa: F811
    done("fit", "people.csv", *TOWNS, *GOOD, "--validation-fraction", "0.4", "--out", "model")
    words = ("--bags-out", "bags.csv", "--rows-out", "rows.csv")
    result = run("diagnose", "model", "people.csv", *TOWNS, *words)
    assert result.exit_code in (0, 1)  # 12 bags may be too few
    assert "judged on: 12 validation bags" in result.output
    bags, rows = pl.read_csv("bags.csv"), pl.read_csv("rows.csv")
    assert (bags.height, rows.height) == (12, 240)
    assert bags["proportion_error"].mean() < 0.2
    assert (rows["class"].to_numpy() == truth()[rows["row"].to_numpy() - 1]).mean() > 0.8
    people.with_columns(town=pl.lit("t") + pl.col("town")).write_csv("other.csv")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    counts.with_columns(town=pl.lit("t") + pl.col("town")).write_csv("other-counts.csv")
    other = ("other.csv", "--bag", "town", "--counts", "other-counts.csv")
    assert "validation bags" not in run("diagnose", "model", *other, "--folds", "2").output


def test_other_networks_judge_a_model_without_validation_bags(good_model):
    result = run("diagnose", "model", "people.csv", *TOWNS, "--folds", "3", "--rows-out", "rows.csv")
    assert result.exit_code == 0, result.output
    assert "30 bags, each predicted by one of 3 copies of the model" in result.output
    assert pl.read_csv("rows.csv")["row"].to_list() == list(range(1, 601))
    again = run("diagnose", "model", "people.csv", *TOWNS, "--folds", "3", "--verbose").output.splitlines()
    lines = result.output.splitlines()
    assert lines[:3] == [f"model {i} of 3" for i in (1, 2, 3)]
    assert again[: len(lines)] == lines
    assert not any("margin" in line for line in lines)
    assert any("margin" in line for line in again[len(lines) :])


def test_too_few_bags_are_found_before_anything_is_trained(people, model, monkeypatch):  # noqa: F811
    def fit(*args, **settings):
        raise AssertionError("something is trained")

    monkeypatch.setattr(ProportionClassifier, "iter_fit", fit)
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    counts.head(5).write_csv("five.csv")
    words = ("people.csv", "--bag", "town", "--counts", "five.csv", "--missing-bags", "allow")
    result = run("diagnose", "model", *words)
    assert result.exit_code == 1
    assert "No answer: 5 bags are too few" in result.output
    assert "From the known totals alone" in result.output
    assert "significant" not in result.output


@pytest.mark.parametrize("n", [1, 2, 5])
def test_bags_without_proportions_are_named(people, model, n):  # noqa: F811
    spec = make_spec(Path("people.csv"), ProportionOptions(bag=["town"], counts=[Path("some.csv")],
                                                           missing_bags="allow"))  # fmt: skip
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    names = counts["town"].sort().to_list()
    counts.filter(~pl.col("town").is_in(names[:n])).write_csv("some.csv")
    judged_on = plan_diagnosis(model, spec).judged_on
    assert ("the bag without" if n == 1 else f"{n} bags without") in judged_on
    assert sum(name in judged_on.split("(")[1] for name in names[:3]) == min(n, 3)
    assert ("…" in judged_on) == (n > 3)


def test_proportions_that_belong_to_other_bags_have_no_answer(good_model):
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    order = np.random.default_rng(0).permutation(counts.height)
    counts.with_columns(counts["left"][order], counts["right"][order]).write_csv("shuffled.csv")
    result = run(
        "diagnose", "model", "people.csv", "--bag", "town", "--counts", "shuffled.csv", "--folds", "3"
    )
    assert result.exit_code == 1
    assert "No answer" in result.output


def test_new_bags_judge_the_model_itself_and_known_ones_are_not_new(people, good_model):  # noqa: F811
    refused("diagnose", "model", "people.csv", *TOWNS, "--new")
    refused("diagnose", "model", "people.csv", *TOWNS, "--folds", "31")
    half = people.filter(pl.int_range(pl.len()) < 300)
    half.write_csv("half.csv")
    labels = pl.DataFrame({"town": half["town"], "vote": truth()[:300]})
    counts = labels.group_by("town").agg(
        left=(pl.col("vote") == "left").sum(), right=(pl.col("vote") == "right").sum()
    )
    counts.write_csv("half-counts.csv")
    words = ("half.csv", "--bag", "town", "--counts", "half-counts.csv", "--new")
    result = run("diagnose", "model", *words)
    assert result.exit_code == 0, result.output
    assert "judged on: 30 new bags" in result.output


# --- tables by group


def test_the_command_counts_as_python_does(people, good_model):  # noqa: F811
    words = ("--by", "owner", "--by", "region", "--out", "cells.parquet", "--replicates", "2")
    frame = people.with_columns(region=pl.Series(["north", "south", None]).gather(np.arange(600) % 3))
    frame.write_csv("regions.csv")
    done("tabulate", "model", "regions.csv", *TOWNS, *words)
    cells = pl.read_parquet("cells.parquet")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    table = Proportions(counts, "counts", key="town")
    X = people.select(good_model.feature_names_in_.tolist())
    groups = {"owner": people["owner"], "region": frame["region"]}
    expected = pl.DataFrame(
        tabulate(good_model, X, groups, bags=people["town"], proportions=table, replicates=2)
    )
    assert cells["count"].sum() == pytest.approx(600)
    for name in ("rows", "count", "count_low", "count_high", "count_min", "count_max"):
        np.testing.assert_allclose(cells[name], expected[name], atol=1e-3)
    done("tabulate", "model", "regions.csv", "--by", "region", "--out", "cells.csv")
    assert pl.read_csv("cells.csv")["count_low"].null_count() == 6
    refused("tabulate", "model", "regions.csv", "--by", "regoin", "--out", "cells.csv")
    refused(
        "tabulate", "model", "regions.csv", *TOWNS, "--by", "region", "--out", "c.csv", "--replicates", "3"
    )


def test_weights_are_a_column(people):  # noqa: F811
    """Rows with weights give the tables of Python and the diagnosis of repeated rows."""
    heads = pl.Series("heads", 1 + np.arange(600) % 3)
    table = people.with_columns(heads, pl.read_parquet("truth.parquet")["vote"])
    counts = table.group_by("town").agg(
        pl.col("heads").filter(pl.col("vote") == name).sum().alias(name) for name in ("left", "right")
    )
    counts.write_csv("heads.csv")
    table = table.drop("vote").with_columns(region=pl.Series(["north", "south"]).gather(np.arange(600) % 2))
    table.write_csv("weighted.csv")
    towns = ("--bag", "town", "--counts", "heads.csv")
    weight = ("--weight", "heads")
    done("fit", "weighted.csv", *towns, *weight, "--out", "model", "--model", "linear", "--drop", "region")
    by = ("--by", "region", "--out", "cells.parquet")
    done("tabulate", "model", "weighted.csv", *towns, *weight, *by, "--replicates", "2")
    expected = tabulate(load("model"), people.drop("town"), {"region": table["region"]}, replicates=2,
                        bags=people["town"], proportions=Proportions(counts, "counts", key="town"),
                        sample_weight=heads)  # fmt: skip
    cells = pl.read_parquet("cells.parquet")
    assert cells["rows"].to_list() == expected["rows"].to_list()
    for name in ("count", "count_low", "count_high", "count_min", "count_max"):
        np.testing.assert_allclose(cells[name], expected[name], atol=1e-3)
    done("tabulate", "model", "weighted.csv", *weight, *by)
    assert pl.read_parquet("cells.parquet")["count"].sum() == pytest.approx(heads.sum())
    for words in (by, (*towns, *by)):
        assert "no column 'head'" in refused("tabulate", "model", "weighted.csv", *words, "--weight", "head")

    result = run("diagnose", "model", "weighted.csv", *towns, *weight, "--folds", "2")
    assert result.exit_code in (0, 1)
    new_towns = pl.lit("new ") + pl.col("town")
    new = table.with_columns(town=new_towns)
    new.write_csv("new.csv")
    new[np.repeat(np.arange(600), heads)].write_csv("repeated.csv")
    counts.with_columns(town=new_towns).write_csv("new-heads.csv")
    towns = ("--bag", "town", "--counts", "new-heads.csv", "--new")
    one = run("diagnose", "model", "new.csv", *towns, *weight).output.splitlines()
    other = run("diagnose", "model", "repeated.csv", *towns).output.splitlines()
    assert (one[0], one[2:-1]) == (
        other[0],
        other[2:-1],
    )  # 1: p, of features encoded by row; -1: margins of rows
    assert one[1].split("(")[0] == other[1].split("(")[0]
    counts.with_columns(pl.col("left") / (pl.col("left") + pl.col("right"))).with_columns(
        right=1 - pl.col("left")
    ).write_csv("shares.csv")
    done("fit", "weighted.csv", "--bag", "town", "--proportions", "shares.csv", *weight, "--out", "again",
         "--model", "linear", "--drop", "region")  # fmt: skip
    words = ("diagnose", "again", "weighted.csv", "--bag", "town", "--proportions", "shares.csv")
    assert "--weight" in refused(*words)
    done("report", "again", *words[2:], *weight, "--html", "page.html", "--by", "region", "--quick")
    assert Path("page.html").stat().st_size > 10_000


# --- export


def test_export_writes_the_network_as_one_file(people, model):  # noqa: F811
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    assert done("export", "model", "--onnx", "model.onnx").strip() == "model.onnx"
    session = runtime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    x = model.encoder_.transform(people)
    (found,) = session.run(None, {"features": x})
    np.testing.assert_allclose(found, model.predict_proba(people.drop("town")), atol=1e-5)


# --- images


N_BAGS, BAG, SIDE = 16, 8, 12
SLIDES = ("slides/patches.csv", "--bag", "slide", "--image", "file", "--proportions", "slides/shares.csv")
IMAGE_WORDS = ("--epochs", "1", "--device", "cpu")


@pytest.fixture
def patches(tmp_path, monkeypatch):
    """Patches of slides, some with a dark disc; returns the images and their hidden classes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("slides/png").mkdir(parents=True)
    dark = (rng.random((N_BAGS, BAG)) < rng.random((N_BAGS, 1))).flatten()
    pixels = rng.integers(120, 256, (len(dark), SIDE, SIDE, 3)).astype(np.uint8)
    pixels[dark, 3:8, 3:8] = 20
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(f"slides/png/{i:03d}.png")
    frame = pl.DataFrame(
        {
            "slide": [f"s{i // BAG}" for i in range(len(dark))],
            "file": [f"png/{i:03d}.png" for i in range(len(dark))],
        }
    )
    frame.with_columns(stain=pl.lit(1)).write_csv("slides/patches.csv")
    share = dark.reshape(N_BAGS, BAG).mean(1)
    pl.DataFrame({"slide": [f"s{i}" for i in range(N_BAGS)], "clear": 1 - share, "dark": share}).write_csv(
        "slides/shares.csv"
    )
    return pixels.transpose(0, 3, 1, 2), dark


def test_images_are_learned_as_the_estimator_learns_them(patches, monkeypatch):
    pixels, _ = patches
    assert "file (image)" in done("check", *SLIDES)
    done("fit", *SLIDES, "--out", "model", *IMAGE_WORDS)
    table = pl.read_csv("slides/shares.csv")
    ids = pl.read_csv("slides/patches.csv")["slide"]
    classifier = ProportionClassifier(epochs=1, device="cpu", random_state=0)
    classifier.fit(pixels, bags=ids, proportions=Proportions(table, key="slide"))
    assert weights("model") == weights_of(classifier)
    monkeypatch.setattr(images, "MAX_BYTES", 7 * pixels[0].size)  # a few at a time
    done("fit", *SLIDES, "--out", "again", *IMAGE_WORDS)
    assert weights("again") == weights("model")
    done("predict", "model", "slides/patches.csv", "--out", "out.parquet")
    expected = classifier.predict_proba(pixels)
    frame = pl.read_parquet("out.parquet")
    assert frame.columns == ["slide", "file", "stain", "predicted", "p(clear)", "p(dark)"]
    np.testing.assert_allclose(frame.select("p(clear)", "p(dark)").to_numpy(), expected, atol=1e-5)
    done("predict", "model", "slides/patches.csv", *SLIDES[1:3], *SLIDES[5:], "--out", "given.parquet")
    means = pl.read_parquet("given.parquet").group_by("slide").agg(pl.col("p(dark)").mean()).sort("slide")
    np.testing.assert_allclose(means["p(dark)"], table.sort("slide")["dark"], atol=1e-4)
    assert run("diagnose", "model", *SLIDES[:3], *SLIDES[5:], "--folds", "2").exit_code in (0, 1)


def test_images_are_resized_only_if_that_is_requested(patches):
    with Image.open("slides/png/003.png") as image:
        image.resize((30, 20)).save("slides/png/003.png")
    refused("fit", *SLIDES, "--out", "model", *IMAGE_WORDS)
    done("fit", *SLIDES, "--pixels", "10", "--out", "model", *IMAGE_WORDS)
    assert load("model").instance_shape_ == (3, 10, 10)
    done("predict", "model", "slides/patches.csv", "--out", "out.csv")
    with Image.open("slides/png/003.png") as image:
        image.resize((SIDE, SIDE)).save("slides/png/003.png")
    done("fit", *SLIDES, "--out", "plain", *IMAGE_WORDS)
    with Image.open("slides/png/004.png") as image:
        image.resize((30, 20)).save("slides/png/004.png")
    message = refused("predict", "plain", "slides/patches.csv", "--out", "other.csv")
    assert "row 5" in message
    assert not Path("other.csv").exists()


def test_files_that_end_too_soon_are_found_by_every_command(patches):
    done("fit", *SLIDES, "--out", "model", *IMAGE_WORDS)
    Image.fromarray(patches[0][0].transpose(1, 2, 0)).save("slides/short.bmp")
    Path("slides/short.bmp").write_bytes(Path("slides/short.bmp").read_bytes()[:200])  # its header is whole
    frame = pl.read_csv("slides/patches.csv")
    broken = pl.when(pl.int_range(pl.len()) == 100).then(pl.lit("short.bmp")).otherwise("file")
    frame.with_columns(file=broken).write_csv("slides/patches.csv")
    for words in (
        ("check", *SLIDES),
        ("fit", *SLIDES, "--out", "other", *IMAGE_WORDS),
        ("predict", "model", "slides/patches.csv", "--out", "out.csv"),
        ("diagnose", "model", *SLIDES[:3], *SLIDES[5:]),
    ):
        assert "row 101, names 'short.bmp'" in refused(*words)
    assert not Path("other").exists()


def test_a_column_of_image_files_is_pointed_out(patches):
    frame = pl.read_csv("slides/patches.csv").with_columns(shade=pl.int_range(pl.len()))
    frame.write_csv("slides/patches.csv")
    assert "--image file learns from the images" in done("check", *SLIDES[:3], *SLIDES[5:])
