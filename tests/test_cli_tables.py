"""check, fit, predict and export: from two files to a third, and nothing written when something is wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pl = pytest.importorskip("polars")

from apportion.cli import app  # noqa: E402
from apportion.datasets.synthetic import moons  # noqa: E402
from apportion.errors import DataError, ModelError, SettingsError  # noqa: E402
from apportion.models import load_model  # noqa: E402
from apportion.selection.diagnosis import Diagnosis, diagnose_bags  # noqa: E402
from apportion.tables.transforms import features_of  # noqa: E402
from apportion.tabular.diagnosed import _estimate  # noqa: E402

N, TOWNS = 600, 30
DATA = moons(1, N)
X = DATA.x.double().numpy()  # a CSV keeps doubles to the bit
TRUTH = np.array(["left", "right"])[DATA.y.numpy()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two moons as people of towns, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    town = [f"{i % TOWNS:02d}" for i in range(N)]
    frame = pl.DataFrame({"town": town, "up": X[:, 0], "along": X[:, 1]})
    frame.write_parquet("people.parquet")
    frame.write_csv("people.csv")
    counted = frame.select("town", left=pl.Series(TRUTH) == "left", right=pl.Series(TRUTH) == "right")
    counts = counted.group_by("town").sum().sort("town")
    counts.write_csv("counts.csv")
    counts.with_columns(pl.col("left", "right") / (N // TOWNS)).write_parquet("shares.parquet")
    frame.join(pl.read_parquet("shares.parquet"), on="town").write_csv("both.csv")
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


QUICK = ("--first-epochs", "2", "--second-epochs", "1")
SOURCES = {
    "proportions": ("people.parquet", "--bag", "town", "--proportions", "shares.parquet"),
    "counts": ("people.csv", "--bag", "town", "--counts", "counts.csv"),
    "shares": ("both.csv", "--bag", "town", "--shares", "left,right"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_form_of_the_same_proportions_is_accepted(folder, source):
    result = run("check", *SOURCES[source])
    assert result.exit_code == 0
    assert "600 rows in 30 bags of 20 to 20 rows" in result.output
    assert "nothing is wrong: up (number), along (number) -> left, right" in result.output


def test_every_form_of_the_same_proportions_trains_the_same_network(folder):
    for source, words in SOURCES.items():
        assert run("fit", *words, "--out", source, *QUICK).exit_code == 0
    weights = {(folder / source / "model.safetensors").read_bytes() for source in SOURCES}
    assert len(weights) == 1


def test_a_model_of_the_tables_tells_the_moons_apart_and_scores_new_tables(folder):
    words = ("--first-epochs", "60", "--batch-size", "100", "--held-out", "0.1")
    result = run("fit", *SOURCES["counts"], "--out", "model", *words)
    assert result.exit_code == 0
    assert re.search(r"first stage, epoch 1 of \d+: proportion", result.output)
    assert "bag correlation, training bags: 0.9" in result.output
    assert "bag correlation, held-out bags: –" in result.output  # of three it would say nothing
    for out in ("scored.parquet", "scored.csv"):
        assert run("predict", "model", "people.parquet", "--out", out).exit_code == 0
    scored, again = pl.read_parquet("scored.parquet"), pl.read_csv("scored.csv")
    assert scored.columns == ["town", "up", "along", "predicted", "p(left)", "p(right)"]
    assert (scored["predicted"].to_numpy() == TRUTH).mean() > 0.95
    np.testing.assert_allclose(scored["p(left)"] + scored["p(right)"], 1, atol=1e-5)
    np.testing.assert_allclose(scored["p(left)"], again["p(left)"], atol=1e-6)


def test_predictions_are_those_of_the_network_on_the_transformed_rows(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    run("predict", "model", "people.parquet", "--out", "scored.parquet")
    model = load_model(Path("model"))
    assert model.columns is not None
    import torch

    x = torch.from_numpy(features_of(model.columns, pl.read_parquet("people.parquet")))
    expected = model.network(x).softmax(1).detach().numpy()
    np.testing.assert_allclose(pl.read_parquet("scored.parquet")["p(right)"], expected[:, 1], atol=1e-5)


def test_a_seed_decides_the_model_to_the_bit(folder):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run("fit", *SOURCES["proportions"], "--out", name, *QUICK, "--seed", seed)
    a, b, c = ((folder / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_what_a_model_was_told_is_in_its_files(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK, "--second-stage", "none", "--rate", "0.005")
    config = json.loads(Path("model/config.json").read_text())
    assert config["settings"]["second_stage"] is None
    assert (config["settings"]["rate"], config["settings"]["first_epochs"]) == (0.005, 2)
    assert (config["data"]["rows"], config["data"]["bags"]) == (600, 30)
    card = Path("model/README.md").read_text()
    assert "| shares from | counts.csv |" in card
    assert "learned the shares of the bags (Adam, peak rate 0.005). Settings" in card


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (("--first-stage", "magic"), "first_stage is 'magic'; there are dllp"),
        (("--labels", "firm"), "labels is 'firm'; there are hard"),
        (("--first-epochs", "0"), "first_epochs is 0; it must be at least 1"),
        (("--device", "tpu"), "device 'tpu'"),
        (("--held-out", "0.99"), "holds out 30 of 30 bags"),
        (("--held-out", "nan"), "validation_fraction is nan"),
        (("--held-out", "-0.5"), "validation_fraction is -0.5"),
        (("--batch-size", "0"), "batch_size is 0; it must be at least 1$"),
        (("--rate", "nan"), "rate is nan; it must be more than 0 and finite"),
        (("--rate", "-1"), "rate is -1.0; it must be more than 0 and finite"),
        (("--choose", "likelihood"), "select_by=.* needs validation bags"),
        (("--calibrate",), "calibrate=True needs validation bags"),
        (("--choose", "luck", "--held-out", "0.2"), "select_by is 'luck'"),
        (("--drop", "height"), "has no column 'height'"),
        (("--out", "people.csv"), "people.csv is there already"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_and_leaves_nothing(folder, words, pattern):
    before = sorted(os.listdir(folder))
    with pytest.raises(ValueError, match=pattern) as caught:
        run("fit", *SOURCES["proportions"], "--out", "model", *words)
    assert type(caught.value).__module__.startswith("apportion.")
    assert sorted(os.listdir(folder)) == before


def test_what_is_wrong_is_printed_line_by_line_with_exit_code_two(folder):
    words = ("people.csv", "--bag", "city", "--proportions", "none.csv", "--drop", "x")
    done = subprocess.run(
        [sys.executable, "-m", "apportion", "check", *words], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "apportion: 2 things are wrong; nothing was written\n  people.csv has no column"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("columns", "pattern"),
    [
        ({"up": [1.0]}, "new.csv has no column 'along', which the model takes"),
        (
            {"up": [1.0, 2.0], "along": ["1", "far"]},
            "new.csv, row 2, column 'along', has 'far': give a number",
        ),
        ({"up": ["inf"], "along": ["1"]}, "new.csv, row 1, column 'up', has 'inf'"),
        ({"up": ["1", "nan"], "along": ["1", "2"]}, "new.csv, row 2, column 'up', has 'nan': give a number"),
        ({"up": [1.0], "along": [1.0], "predicted": [1]}, "has a column 'predicted' already; rename it"),
    ],
)
def test_tables_that_cannot_be_scored_are_refused_and_leave_nothing(folder, columns, pattern):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    pl.DataFrame(columns).write_csv("new.csv")
    with pytest.raises(DataError, match=pattern):
        run("predict", "model", "new.csv", "--out", "scored.csv")
    assert not Path("scored.csv").exists()
    with pytest.raises(DataError, match="does not end in"):
        run("predict", "model", "people.csv", "--out", "scored.txt")


def test_a_csv_with_semicolons_and_decimal_commas_is_learnt_from_and_scored_alike(folder):
    for name in ("people", "counts"):
        text = Path(f"{name}.csv").read_text()
        Path(f"{name}-eu.csv").write_text(text.replace(",", ";").replace(".", ","))
    words = ("people-eu.csv", "--bag", "town", "--counts", "counts-eu.csv")
    for name, source in (("plain", SOURCES["counts"]), ("eu", words)):
        assert run("fit", *source, "--out", name, *QUICK).exit_code == 0
        assert run("predict", name, source[0], "--out", f"{name}.csv", "--missing", "NA").exit_code == 0
    assert Path("plain/model.safetensors").read_bytes() == Path("eu/model.safetensors").read_bytes()
    assert Path("plain.csv").read_bytes() == Path("eu.csv").read_bytes()
    assert run("predict", "eu", "people-eu.csv", "--out", "eu.parquet").exit_code == 0
    assert pl.read_parquet("eu.parquet").schema["up"] == pl.Float64


def test_lines_without_a_value_at_the_end_are_no_rows_to_any_command(folder):
    for name in ("people", "counts"):
        Path(f"{name}-long.csv").write_text(Path(f"{name}.csv").read_text() + "\n,,\n\n")
    words = ("people-long.csv", "--bag", "town", "--counts", "counts-long.csv")
    assert "600 rows in 30 bags" in run("check", *words).output
    run("fit", *words, "--out", "model", *QUICK)
    run("predict", "model", "people-long.csv", "--out", "long.csv")
    run("predict", "model", "people.csv", "--out", "short.csv")
    assert Path("long.csv").read_bytes() == Path("short.csv").read_bytes()


def test_values_that_are_missing_now_and_were_not_in_training_are_noted(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    pl.DataFrame({"up": [None, "1", "NA"], "along": ["1", "2", "3"]}).write_csv("new.csv")
    said = run("predict", "model", "new.csv", "--out", "scored.csv", "--missing", "NA").output
    what = "column 'up' is missing in 2 of 3 rows, training had none; they count as the median"
    assert said.splitlines() == [what, "scored.csv"]
    pl.DataFrame({"up": [1.0, float("nan")], "along": [1.0, 2.0]}).write_parquet("new.parquet")
    said = run("predict", "model", "new.parquet", "--out", "scored.csv").output
    assert said.startswith("column 'up' is missing in 1 of 2 rows, training had none")


def test_numbers_in_another_unit_than_training_had_are_noted(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    people = pl.read_csv("people.csv")
    run("predict", "model", "people.csv", "--out", "scored.csv")
    up = people["up"].to_numpy()
    far = up.mean() + 11 * up.std()
    few = pl.Series("up", [far] * 6 + up[6:].tolist())  # one row in a hundred may be so far in any column
    people.with_columns(few).write_csv("few.csv")
    assert "far" not in run("predict", "model", "few.csv", "--out", "scored.csv").output
    many = pl.Series("up", [None, *[far] * 7, *up[8:].tolist()])
    people.with_columns(many).write_csv("many.csv")
    said = run("predict", "model", "many.csv", "--out", "scored.csv").output.splitlines()
    assert said[1] == (
        f"column 'up' is far from training's in 7 of 600 rows, such as {far:.4g} "
        f"(mean {up.mean():.4g}, deviation {up.std():.4g}); is its unit the same?"
    )
    gone = pl.Series("up", [float("nan")] * 600)
    people.with_columns(gone).write_parquet("gone.parquet")
    assert "far" not in run("predict", "model", "gone.parquet", "--out", "scored.csv").output


def test_texts_that_training_had_not_are_noted_and_are_no_news(folder):
    people = pl.read_csv("people.csv", infer_schema=False)
    region = ["north" if float(up) > 0 else "south" for up in people["up"]]
    people.with_columns(pl.Series("region", region)).write_csv("regions.csv")
    run("fit", "regions.csv", *SOURCES["proportions"][1:], "--out", "model", *QUICK)
    rows = {"up": ["1"] * 4, "along": ["2"] * 4}
    pl.DataFrame(rows | {"region": ["north", "North", "east", None]}).write_csv("new.csv")
    said = run("predict", "model", "new.csv", "--out", "scored.csv").output.splitlines()
    assert said[:2] == [
        "column 'region' is missing in 1 of 4 rows, training had none; "
        "they count as the mean of its categories",
        "column 'region' has texts that training had not in 2 of 4 rows, such as 'North' (it had 'north'); "
        "they count as the mean of its categories",
    ]
    north, *unknown = pl.read_csv("scored.csv")["p(left)"]
    assert len(set(unknown)) == 1
    assert unknown[0] != north
    pl.DataFrame(rows | {"region": ["south"] * 4}).write_csv("new.csv")
    assert run("predict", "model", "new.csv", "--out", "scored.csv").output.splitlines() == ["scored.csv"]


def test_a_value_is_quoted_as_it_stands_in_the_file(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    Path("new.csv").write_text("up;along\n1,5;1\n12.534,221;2\n1.5,5;3\n")
    with pytest.raises(DataError, match="new.csv, row 2, column 'up', has '12.534,221'; "):
        run("predict", "model", "new.csv", "--out", "scored.csv")


def test_separators_of_thousands_are_not_scored_as_decimals(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    Path("new.csv").write_text("up;along\n2.340;1\n921;2\n")
    with pytest.raises(DataError, match="column 'up', has '2.340': its points look like separators"):
        run("predict", "model", "new.csv", "--out", "scored.csv")
    Path("new.csv").write_text("up;along\n2.341;1\n921;2\n")
    said = run("predict", "model", "new.csv", "--out", "scored.csv").output
    assert said.startswith("new.csv, column 'up', has '2.341': read as a decimal point")


def test_quotes_in_a_header_come_out_as_they_went_in(folder):
    frame = pl.read_csv("people.csv", infer_schema=False).rename({"up": 'b "q"'})
    frame.write_csv("quoted.csv")
    assert run("fit", "quoted.csv", *SOURCES["counts"][1:], "--out", "model", *QUICK).exit_code == 0
    run("predict", "model", "quoted.csv", "--out", "scored.csv")
    assert Path("scored.csv").read_text().startswith('town,"b ""q""",along,predicted,')


def test_a_class_with_a_comma_stands_in_quotes(folder):
    pl.read_csv("counts.csv", infer_schema=False).rename({"left": "left, new"}).write_csv("counts.csv")
    said = run("check", *SOURCES["counts"], "--classes", 'right, "left, new"')
    assert said.output.endswith("-> right, left, new\n")


def test_more_folds_than_bags_are_refused_in_a_line(folder):
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    with pytest.raises(SettingsError, match="--folds is 31, but there are 30 bags; pass no more than that"):
        run("diagnose", "model", *SOURCES["proportions"], "--folds", "31")


def test_an_accuracy_that_may_be_anything_is_no_number():
    asked = SimpleNamespace(accuracy=1.0, accuracy_low=0.05, accuracy_high=0.96, noisy=False)
    assert _estimate(asked) == "cannot be told from these bags"
    asked.accuracy_low = 0.5
    assert _estimate(asked) == "100.0 % (50.0 to 96.0 %)"


def test_no_result_is_written_over_what_is_read(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    files = ("people.csv", "counts.csv", "model/model.safetensors")
    before = [Path(name).read_bytes() for name in files]
    Path("soft.csv").symlink_to("people.csv")
    os.link("people.csv", "hard.csv")
    for out in ("people.csv", "./model/../people.csv", str(folder / "people.csv"), "soft.csv", "hard.csv"):
        with pytest.raises(DataError, match="people.csv.*which this command reads.*; name another file"):
            run("predict", "model", "people.csv", "--out", out)
    for option, out in (("--rows-out", "people.csv"), ("--bags-out", "counts.csv")):
        with pytest.raises(DataError, match=f"{out} would be overwritten"):
            run("diagnose", "model", *SOURCES["counts"], option, out)
    with pytest.raises(DataError, match="new.csv would be overwritten"):
        run("diagnose", "model", *SOURCES["counts"], "--rows-out", "new.csv", "--bags-out", "new.csv")
    with pytest.raises(DataError, match="model.safetensors would be overwritten"):
        run("export", "model", "--onnx", "model/model.safetensors")
    assert [Path(name).read_bytes() for name in files] == before
    assert not Path("new.csv").exists()


def test_rows_are_counted_over_all_batches(folder, monkeypatch):
    monkeypatch.setattr("apportion.tabular.score.BATCH", 2)
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    pl.DataFrame({"up": ["1"] * 4 + ["?"], "along": ["1"] * 5}).write_csv("new.csv")
    with pytest.raises(DataError, match="new.csv, row 5, column 'up', has '\\?'"):
        run("predict", "model", "new.csv", "--out", "scored.csv")


def test_mixed_columns_survive_the_way_through_csv(folder):
    frame = pl.read_parquet("people.parquet").with_columns(
        zip=pl.Series([f"0{i % 3}" for i in range(N)]),
        owner=pl.Series([None if i % 7 == 0 else i % 2 == 0 for i in range(N)]),
        born=pl.Series(range(N)).cast(pl.Date),
    )
    frame.write_csv("mixed.csv")
    frame.write_parquet("mixed.parquet")
    words = ("--bag", "town", "--counts", "counts.csv", "--categorical", "zip", *QUICK)
    for ending in ("csv", "parquet"):
        assert run("fit", f"mixed.{ending}", *words, "--out", ending).exit_code == 0
        run("predict", ending, "mixed.csv", "--out", f"{ending}.parquet")
    columns = [
        json.loads(Path(ending, "config.json").read_text())["columns"] for ending in ("csv", "parquet")
    ]
    assert [c["name"] for c in columns[0]] == ["up", "along", "zip", "owner", "born"]
    assert columns[0][2]["categories"] == ["00", "01", "02"] == columns[1][2]["categories"]
    one, other = (pl.read_parquet(f"{ending}.parquet")["p(left)"] for ending in ("csv", "parquet"))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_export_writes_one_file(folder):
    pytest.importorskip("onnxscript")
    run("fit", *SOURCES["proportions"], "--out", "model", *QUICK)
    assert run("export", "model", "--onnx", "m.onnx").output == "m.onnx\n"
    assert Path("m.onnx").stat().st_size > 1000


# --- diagnose


LONGER = ("--first-epochs", "150", "--second-stage", "none", "--batch-size", "100")


def test_a_column_gives_labels_of_a_few_rows_and_is_no_feature(folder):
    frame = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    some = [name if i % 10 == 0 else None for i, name in enumerate(TRUTH.tolist())]
    frame.with_columns(known=pl.Series(some, dtype=pl.String)).write_csv("some.csv")
    words = ("some.csv", "--bag", "town", "--counts", "counts.csv")
    result = run("check", *words, "--given", "known")
    assert "nothing is wrong: up (number), along (number) -> left, right" in result.output
    for name, option in (("with", ("--given", "known")), ("without", ("--drop", "known"))):
        assert run("fit", *words, *option, "--out", name, *QUICK).exit_code == 0
    data = {name: json.loads(Path(name, "config.json").read_text())["data"] for name in ("with", "without")}
    assert (data["with"]["rows"], data["without"]["bags"]) == (600, 30)
    assert data["with"]["bags"] > 30  # labels are bags of one class
    with pytest.raises(DataError, match="some.csv has no column 'sure' .--given."):
        run("check", *words, "--given", "sure", "--drop", "known")
    wrong = [*some[:-1], "middle"]
    frame.with_columns(known=pl.Series(wrong, dtype=pl.String)).write_csv("some.csv")
    with pytest.raises(DataError, match="some.csv, row 600, is given as 'middle': give one of left, right"):
        run("fit", *words, "--given", "known", "--out", "none", *QUICK)
    assert not Path("none").exists()


def test_classes_without_a_number_are_refused_with_the_option_and_filled_with_it(folder):
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    gaps = counts.with_columns(right=pl.when(pl.col("town") < "10").then(None).otherwise(pl.col("right")))
    gaps.write_csv("gaps.csv")
    words = ("people.csv", "--bag", "town", "--counts", "gaps.csv")
    with pytest.raises(DataError, match="row 1, bag '00', has nan for class 'right'.*pass --fill"):
        run("check", *words, "--unlabeled")
    assert run("fit", *words, "--fill", "--out", "filled", *QUICK).exit_code == 0
    assert run("fit", *SOURCES["counts"], "--out", "whole", *QUICK).exit_code == 0
    assert len({(folder / name / "model.safetensors").read_bytes() for name in ("filled", "whole")}) == 1
    gaps.with_columns(left=pl.col("left") + 21).write_csv("gaps.csv")
    with pytest.raises(DataError, match="bag '00'.*some classes alone are more than the bag"):
        run("check", *words, "--fill")


def test_intervals_are_refused_with_what_to_pass(folder):
    shares = pl.read_parquet("shares.parquet").with_columns(left=pl.lit("0.4-0.6"), right=pl.lit("0.4–0.6"))
    shares.write_csv("wide.csv")
    with pytest.raises(DataError, match="has '0.4-0.6' for class 'left'.*middle of an interval.*--noise"):
        run("check", "people.parquet", "--bag", "town", "--proportions", "wide.csv")


def test_held_out_bags_choose_the_epoch_and_the_temperature(folder):
    words = ("--first-epochs", "12", "--second-epochs", "4", "--held-out", "0.3", "--choose", "likelihood")
    result = run("fit", *SOURCES["counts"], "--out", "model", *words, "--calibrate")
    assert result.exit_code == 0
    assert re.search(r"first stage, epoch 1 of \d+: proportion", result.output)
    assert "validation_likelihood -" in result.output
    quality = json.loads(Path("model/config.json").read_text())["quality"]
    assert quality["chosen epoch"].endswith(" stage, by likelihood")
    assert quality["temperature"] != 1
    assert run("predict", "model", "people.parquet", "--out", "scored.parquet").exit_code == 0


def test_held_out_bags_diagnose_a_good_model(folder):
    assert run("fit", *SOURCES["counts"], "--out", "model", "--held-out", "0.4", *LONGER).exit_code == 0
    words = ("--bags-out", "bags.csv", "--rows-out", "rows.csv")
    result = run("diagnose", "model", *SOURCES["counts"], *words)
    assert result.exit_code == 0
    assert result.output.startswith("Held-out bag proportions are predicted better than chance")
    assert "judged on: 12 bags that were held out when the model was trained" in result.output
    assert "accuracy, estimated: " in result.output
    bags, rows = pl.read_csv("bags.csv", schema_overrides={"bag": pl.String}), pl.read_csv("rows.csv")
    assert bags.columns == ["bag", "rows", "misplaced"]
    assert bags.height == 12
    assert rows.height == 240
    assert (TRUTH[rows["row"].to_numpy() - 1] == rows["class"].to_numpy()).mean() > 0.9
    assert rows["margin"].min() >= 0


def test_bags_that_are_not_those_held_out_are_not_called_so(folder):
    """A bag of another name changes the order, and with it which bags a permutation by place would pick."""
    assert run("fit", *SOURCES["counts"], "--out", "model", "--held-out", "0.4", *LONGER).exit_code == 0
    config = json.loads(Path("model/config.json").read_text())
    config["facts"]["held_out_names"] = "of others"
    Path("model/config.json").write_text(json.dumps(config))
    result = run("diagnose", "model", *SOURCES["counts"], "--folds", "2")
    assert "each by one of 2 networks trained alike on other bags" in result.output


def test_a_folder_beside_the_model_is_left_alone(folder):
    Path("model.new").mkdir()
    Path("model.new/mine.txt").write_text("mine")
    assert run("fit", *SOURCES["counts"], "--out", "model", "--first-epochs", "1").exit_code == 0
    assert Path("model.new/mine.txt").read_text() == "mine"
    assert not [path for path in Path().iterdir() if path.name.startswith(".model")]


def test_without_held_out_bags_networks_trained_alike_judge_each_other(folder, monkeypatch):
    seen = []

    def watched(*words: Any, **given: Any) -> Diagnosis:
        seen.append(given.get("cross_validated", False))
        return diagnose_bags(*words, **given)

    monkeypatch.setattr("apportion.tabular.diagnose.diagnose_bags", watched)
    assert run("fit", *SOURCES["counts"], "--out", "model", *LONGER).exit_code == 0
    run("diagnose", "model", *SOURCES["counts"], "--folds", "2")
    run("fit", *SOURCES["counts"], "--out", "held", "--held-out", "0.4", *LONGER)
    run("diagnose", "held", *SOURCES["counts"])
    assert seen == [True, False]  # who judges each other's bags is believed less
    result = run("diagnose", "model", *SOURCES["counts"], "--folds", "2")
    assert result.exit_code == 0
    assert "judged on: 30 bags, each by one of 2 networks trained alike on other bags" in result.output


def test_shuffled_shares_have_no_answer_though_the_model_met_them(folder):
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    order = np.random.default_rng(1).permutation(TOWNS)
    pl.DataFrame([counts["town"], counts["left"][order], counts["right"][order]]).write_csv("counts.csv")
    assert run("fit", *SOURCES["counts"], "--out", "model", *LONGER).exit_code == 0
    result = run("diagnose", "model", *SOURCES["counts"], "--folds", "2")
    assert result.exit_code == 1
    assert result.output.startswith("No answer: held-out bag proportions are predicted no better")


def test_diagnose_names_what_does_not_fit_the_model(folder):
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK).exit_code == 0
    with pytest.raises(DataError, match="no column 'along', which the model takes; it has 'town', 'up'"):
        run("diagnose", "model", *SOURCES["counts"], "--drop", "along")
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    counts.rename({"left": "west"}).write_csv("counts.csv")
    with pytest.raises(DataError, match="shares of west, right, the model knows left, right"):
        run("diagnose", "model", *SOURCES["counts"])


def awkward() -> Any:
    """A table that is read rightly only with --missing and --categorical: gaps, a code that is no number."""
    frame = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    rows = range(N)
    return frame.with_columns(
        pl.Series("up", [("NA" if i % 7 == 0 else str(v)) for i, v in zip(rows, frame["up"], strict=True)]),
        pl.Series("code", [f"{i % 4:03d}" for i in rows]),
        pl.Series("age", [str(20 + i % 50) for i in rows]),
        pl.Series("mark", ["NA" if i % 5 else "x" for i in rows]),
        pl.Series("born", [f"19{50 + i % 40}-01-02" for i in rows]),
        pl.Series("own", ["true" if i % 3 else "false" for i in rows]),
    )


def test_a_model_reads_tables_as_its_own_was_read(folder):
    awkward().write_csv("people.csv")
    told = ("--missing", "NA", "--categorical", "code", "--held-out", "0.3")
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK, *told).exit_code == 0
    model = load_model(Path("model"))
    assert {c.name: c.kind for c in model.columns or ()}["code"] == "category"
    assert "| missing | 'NA' |" in Path("model/README.md").read_text()
    result = run("diagnose", "model", *SOURCES["counts"])
    assert "judged on: 9 bags that were held out when the model was trained" in result.output
    assert run("predict", "model", "people.csv", "--out", "scored.csv").exit_code == 0
    for option in ((), ("--missing", "?")):
        again = run("predict", "model", "people.csv", "--out", "again.csv", *option)
        assert again.exit_code == 0
        assert Path("again.csv").read_bytes() == Path("scored.csv").read_bytes()


def test_a_scored_csv_keeps_its_texts_and_parquet_has_the_types_that_the_model_takes(folder):
    awkward().write_csv("people.csv")
    told = ("--missing", "NA", "--categorical", "code", "--drop", "mark")
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK, *told).exit_code == 0
    for out in ("scored.csv", "scored.parquet"):
        assert run("predict", "model", "people.csv", "--out", out).exit_code == 0
    texts = pl.read_csv("people.csv", infer_schema=False)
    assert pl.read_csv("scored.csv", infer_schema=False).select(texts.columns).equals(texts)
    typed = pl.read_parquet("scored.parquet")
    assert dict(typed.select(texts.columns).schema) == {
        "town": pl.String, "up": pl.Float64, "along": pl.Float64, "code": pl.String, "age": pl.Int64,
        "mark": pl.String, "born": pl.Datetime("us"), "own": pl.Boolean,
    }  # fmt: skip
    assert typed["up"].null_count() == len(range(0, N, 7))
    assert typed["code"][:2].to_list() == ["000", "001"]
    assert typed["mark"][:2].to_list() == ["x", "NA"]  # a text of a column that the model does not take
    assert typed["age"].to_list() == [20 + i % 50 for i in range(N)]


def test_diagnose_names_the_row_whose_value_the_model_cannot_take(folder):
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK).exit_code == 0
    frame = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    frame.with_columns(pl.Series("up", [f"x{i}" for i in range(N)])).write_csv("people.csv")
    with pytest.raises(DataError, match="row 1, column 'up', has 'x0'; .*and 597 more: give a number"):
        run("diagnose", "model", *SOURCES["counts"])


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"first_epochs": "many"}, "first_epochs is 'many'; it must be a whole number"),
        ({"first_epochs": 10**9}, "more than 100000 are not trained again"),
        ({"first_stage": ["dllp"]}, "which is no word"),
        ({"reg": None}, "reg is None; it must be a number"),
        ({"seed": "1"}, "seed and held_out are '1' and 0.0; these are numbers"),
        ({"missing": 3}, "texts for missing values are 3; these are a list of texts"),
        ({"labels": "firm"}, "labels is 'firm'; there are hard"),
    ],
)
def test_settings_of_a_strangers_model_are_refused_before_anything_is_trained(folder, settings, pattern):
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK).exit_code == 0
    config = json.loads(Path("model/config.json").read_text())
    config["settings"] |= settings
    Path("model/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=pattern):
        run("diagnose", "model", *SOURCES["counts"])


def forget_names(model: str) -> None:
    """As if the model had learned from other bags."""
    config = json.loads(Path(model, "config.json").read_text())
    Path(model, "config.json").write_text(json.dumps(config | {"facts": config["facts"] | {"learned": ""}}))


@pytest.mark.parametrize("option", [(), ("--held-out", "0.4")])
def test_bags_that_the_model_learnt_from_are_not_called_new(folder, option):
    assert run("fit", *SOURCES["counts"], "--out", "model", *QUICK, *option).exit_code == 0
    with pytest.raises(SettingsError, match="these are the bags that the model learned from"):
        run("diagnose", "model", *SOURCES["counts"], "--new")
    people = pl.read_csv("people.csv", schema_overrides={"town": pl.String})  # the same towns a year later
    people.with_columns(pl.col("up") + 0.01).write_csv("people.csv")
    assert "30 bags that are new to the model" in run("diagnose", "model", *SOURCES["counts"], "--new").output


def test_the_order_of_the_classes_is_the_models(folder):
    assert run("fit", *SOURCES["counts"], "--out", "model", *LONGER).exit_code == 0
    forget_names("model")
    one = run("diagnose", "model", *SOURCES["counts"], "--new")
    other = run("diagnose", "model", *SOURCES["counts"], "--new", "--classes", "right,left")
    assert "30 bags that are new to the model" in one.output
    assert one.output == other.output


# --- proportions as they really are


def noisy_counts(scale: float = 1.0) -> None:
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    noise = np.random.default_rng(0).laplace(0, scale, (TOWNS, 2))
    noise[3] += [-20, 20]
    left, right = counts["left"] + noise[:, 0], counts["right"] + noise[:, 1]
    pl.DataFrame([counts["town"], left.alias("left"), right.alias("right")]).write_csv("counts.csv")


def test_noisy_counts_are_refused_with_the_option_and_taken_with_it(folder):
    noisy_counts()
    with pytest.raises(DataError, match=r"(?s)not negative, unless --noise.*unless --noise is given"):
        run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    for level in ("1.4", "estimate"):
        assert run("fit", *SOURCES["counts"], "--out", level, "--noise", level, *QUICK).exit_code == 0
    assert run("fit", *SOURCES["counts"], "--out", "no", "--noise", "much", *QUICK).exit_code == 2
    assert not (folder / "no").exists()
    forget_names("1.4")
    result = run("diagnose", "1.4", *SOURCES["counts"], "--noise", "1.4", "--new")
    assert "30 bags that are new to the model" in result.output


def test_bags_without_numbers_are_refused_with_the_option_and_taken_with_it(folder):
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    gone = pl.when(pl.col("town") == "03").then(None)
    kept = [gone.otherwise(pl.col(name)).alias(name) for name in ("left", "right")]
    counts.with_columns(kept).write_csv("counts.csv")
    with pytest.raises(DataError, match="or pass --unlabeled"):
        run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    assert run("fit", *SOURCES["counts"], "--out", "model", "--unlabeled", *QUICK).exit_code == 0
    forget_names("model")
    result = run("diagnose", "model", *SOURCES["counts"], "--unlabeled", "--new")
    assert "29 bags that are new to the model" in result.output
    counts.filter(pl.col("town") != "03").write_csv("counts.csv")  # no row at all is the same
    with pytest.raises(DataError, match="bag '03'.*no row in counts.csv; add it.*or pass --unlabeled"):
        run("fit", *SOURCES["counts"], "--out", "again", *QUICK)
    assert run("fit", *SOURCES["counts"], "--out", "again", "--unlabeled", *QUICK).exit_code == 0
    assert Path("again/model.safetensors").read_bytes() == Path("model/model.safetensors").read_bytes()
    pl.DataFrame({"town": counts["town"], "left": [None] * 30, "right": [None] * 30}).write_csv("counts.csv")
    with pytest.raises(DataError, match="no bag has proportions"):
        run("check", *SOURCES["counts"], "--unlabeled")


def test_a_check_waits_for_no_torch(folder):
    words = ["check", *SOURCES["proportions"]]
    program = f"""
import sys
from apportion.cli import app
app({words!r}, standalone_mode=False)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


# --- predictions given the shares of bags


@pytest.mark.parametrize("source", SOURCES)
def test_predictions_meet_the_shares_of_their_bags_and_rows_keep_their_places(folder, source):
    table, *words = SOURCES[source]
    run("fit", table, *words, "--out", "model", *QUICK)
    assert run("predict", "model", table, "--out", "plain.parquet").exit_code == 0
    assert run("predict", "model", table, *words, "--out", "met.parquet").exit_code == 0
    plain, met = pl.read_parquet("plain.parquet"), pl.read_parquet("met.parquet")
    assert met.select("up", "along").equals(plain.select("up", "along"))
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    sums = met.with_columns(pl.col("town").cast(pl.String).str.zfill(2))
    sums = sums.group_by("town").agg(pl.col("p(left)").sum()).sort("town")
    assert sums["p(left)"].to_list() == pytest.approx(counts["left"].to_list(), abs=1e-3)
    most = np.where(met["p(left)"].to_numpy() > 0.5, "left", "right")
    assert (met["predicted"].to_numpy() == most).all()


def test_bags_without_shares_keep_their_predictions(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    counts.head(20).write_csv("few.csv")
    run("predict", "model", "people.csv", "--out", "plain.csv")
    words = ("--bag", "town", "--counts", "few.csv", "--out", "met.csv")
    with pytest.raises(DataError, match="--unlabeled"):
        run("predict", "model", "people.csv", *words)
    assert run("predict", "model", "people.csv", *words, "--unlabeled").exit_code == 0
    plain, met = (
        pl.read_csv(name, schema_overrides={"town": pl.String}) for name in ("plain.csv", "met.csv")
    )
    known = plain["town"].is_in(counts["town"].head(20).implode())
    same = (plain["p(left)"] - met["p(left)"]).abs() < 1e-6
    assert same.filter(~known).all()
    assert not same.filter(known).any()


def test_shares_without_the_column_of_the_bags_are_refused(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    result = run("predict", "model", "people.csv", "--counts", "counts.csv", "--out", "met.csv")
    assert result.exit_code == 2
    assert "name the column of each row's bag with --bag" in " ".join(result.output.split())
    assert not Path("met.csv").exists()


def test_one_bag_and_bags_alike_have_shares_to_meet(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    one = pl.read_csv("people.csv", schema_overrides={"town": pl.String}).filter(pl.col("town") == "03")
    one.write_csv("one.csv")
    Path("share.csv").write_text("town,left,right\n03,0.25,0.75\n")
    words = ("--bag", "town", "--proportions", "share.csv", "--out", "met.csv")
    assert run("predict", "model", "one.csv", *words).exit_code == 0
    assert pl.read_csv("met.csv")["p(left)"].mean() == pytest.approx(0.25, abs=1e-4)


def test_what_is_noted_without_bags_is_noted_with_them(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    people = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    people.with_columns(up=pl.lit(None, pl.Float64)).write_csv("new.csv")
    pl.read_csv("counts.csv", schema_overrides={"town": pl.String}).head(25).write_csv("few.csv")
    words = ("--bag", "town", "--counts", "few.csv", "--unlabeled", "--out", "met.csv")
    said = run("predict", "model", "new.csv", *words).output
    assert "5 bags have no row in few.csv; they are without proportions" in said
    assert "column 'up' is missing in 600 of 600 rows, training had none" in said


def test_a_number_that_is_too_large_is_named_by_its_row(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    lines = Path("people.csv").read_text().splitlines()
    lines[4] = f"{lines[4].split(',')[0]},1e39,1.0"
    Path("new.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="new.csv, row 4, has no probabilities: a number in it"):
        run("predict", "model", "new.csv", "--bag", "town", "--counts", "counts.csv", "--out", "met.csv")


def test_texts_with_other_endings_are_read_as_csv_and_packed_ones_are_named(folder):
    words = ("--bag", "town", "--counts", "counts.csv")
    frame = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    for name, separator in (("people.tsv", "\t"), ("people.txt", ";")):
        frame.write_csv(name, separator=separator)
        assert "nothing is wrong" in run("check", name, *words).output
    with pytest.raises(DataError, match=r"people.csv.gz does not end in .csv, .*; unpack it first"):
        run("check", "people.csv.gz", *words)


def test_times_of_day_are_told_of_since_their_hours_are_no_features(folder):
    people = pl.read_csv("people.csv", schema_overrides={"town": pl.String})
    days = pl.datetime_range(pl.datetime(2020, 1, 1), pl.datetime(2021, 8, 22), "1d", eager=True)[:600]
    for hours, told in ((0, False), (7, True)):
        people.with_columns(ts=days.dt.offset_by(f"{hours}h")).write_parquet("timed.parquet")
        result = run("check", "timed.parquet", "--bag", "town", "--counts", "counts.csv")
        assert ("column 'ts' has times of day, of which the day and the season" in result.output) is told


def test_numbers_that_begin_with_a_zero_or_may_be_days_are_noted(folder):
    people = pl.read_csv("people.csv", infer_schema=False)
    codes = pl.Series("occ", [f"{i % 40:04d}" for i in range(600)])
    days = pl.Series("born", [f"19{60 + i % 30}0{1 + i % 9}15" for i in range(600)])
    people.with_columns(codes, days).write_csv("codes.csv")
    said = run("check", "codes.csv", *SOURCES["counts"][1:]).output
    what = "texts such as '0000' in column 'occ' begin with a zero, which numbers lose: --categorical occ if"
    assert what in said
    assert "texts such as '19600115' in column 'born' are taken as numbers: write 20201225 as" in said
    said = run("check", "codes.csv", *SOURCES["counts"][1:], "--categorical", "occ,born").output
    assert "texts such as" not in said
    assert "texts such as" not in run("check", *SOURCES["counts"]).output


def test_notes_on_many_columns_are_folded_and_so_are_their_kinds(folder):
    people = pl.read_csv("people.csv", infer_schema=False)
    gaps = [pl.Series(f"g{i}", [None, *range(599)]) for i in range(50)]
    people.with_columns(gaps).write_csv("wide.csv")
    lines = run("check", "wide.csv", *SOURCES["counts"][1:]).output.splitlines()
    assert sum("is missing in 1 of 600 rows" in line for line in lines) == 3
    assert "and 47 more columns with gaps" in lines
    assert lines[-1].startswith("nothing is wrong: 52 columns (number) -> ")
    whole = [column.fill_null(0) for column in gaps]
    people.with_columns(whole).write_csv("whole.csv")
    run("fit", "whole.csv", *SOURCES["counts"][1:], "--out", "model", *QUICK)
    lines = run("predict", "model", "wide.csv", "--out", "scored.csv").output.splitlines()
    assert len(lines) == 5
    assert lines[3] == "and 47 more columns with gaps that training had not"


def test_a_training_of_many_short_epochs_prints_few_lines(folder):
    words = ("--first-epochs", "400", "--second-epochs", "2", "--batch-size", "600")
    lines = run("fit", *SOURCES["counts"], "--out", "model", *words).output.splitlines()
    told = [line for line in lines if "stage, epoch" in line]
    assert told[0].startswith("first stage, epoch 1 of 400")
    assert any(line.startswith("first stage, epoch 400 of 400") for line in told)
    assert told[-1].startswith("second stage, epoch 2 of 2")
    assert len(told) < 100


def test_a_file_of_more_bags_than_the_table_serves_a_part_of_it(folder):
    run("fit", *SOURCES["counts"], "--out", "model", *QUICK)
    people = pl.read_csv("people.csv", infer_schema=False)
    some = people.filter(pl.col("town").is_in(people["town"].unique().sort()[:5].implode()))
    some.write_csv("some.csv")
    words = ("some.csv", *SOURCES["counts"][1:])
    run("predict", "model", *words, "--out", "scored.csv")
    assert pl.read_csv("scored.csv").height == some.height
    assert "counts.csv has 25 rows of bags that some.csv has not, such as" in run("check", *words).output
    text = Path("counts.csv").read_text()
    Path("counts.csv").write_text(f"{text}Total,n/a,n/a\nTotal,600,n/a\n")
    assert "has 27 rows of bags that some.csv has not" in run("check", *words).output


def test_the_card_says_how_shares_were_taken(folder):
    counts = pl.read_csv("counts.csv", schema_overrides={"town": pl.String})
    counts.filter(pl.col("town") != "07").with_columns(pl.col("left") + 0.25).write_csv("noisy.csv")
    words = ("people.csv", "--bag", "town", "--counts", "noisy.csv", "--noise", "0.5", "--unlabeled")
    assert run("fit", *words, "--out", "model", *QUICK).exit_code == 0
    card = Path("model/README.md").read_text()
    assert "| bags without shares | 1 |" in card
    assert "| noise of town | 0.5 |" in card
    assert "normalize" not in card
    run("fit", *SOURCES["counts"], "--normalize", "--out", "rescaled", *QUICK)
    assert "| normalize | yes |" in Path("rescaled/README.md").read_text()
