"""`apportion check` and `fit`: the weights of the estimator, options, places that cannot be written."""

import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")

from apportion import ProportionClassifier, Proportions, tabulate  # noqa: E402
from apportion.cli import tables  # noqa: E402
from apportion.cli.app import app, main  # noqa: E402
from apportion.cli.options import TrainingOptions  # noqa: E402
from apportion.datasets.synthetic import moons  # noqa: E402
from apportion.errors import ApportionError, ApportionWarning, ModelError  # noqa: E402
from apportion.saving import load  # noqa: E402
from apportion.saving import model_folder as saving_folder  # noqa: E402

N, N_TOWNS = 600, 30
QUICK = {"epochs": 2, "student_epochs": 1}
QUICK_WORDS = ("--epochs", "2", "--student-epochs", "1")


def run(*words: object) -> Any:
    """Exit code and output of a command, as `main` gives them."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, ApportionError):
        return SimpleNamespace(exit_code=2, output=f"{result.output}{result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(
    ("command", "function", "own"),
    [
        (TrainingOptions, ProportionClassifier, {"random_state"}),  # a command repeats itself, seed 0
        (tables.tabulate, tabulate, {"proportions"}),
    ],
)
def test_options_have_the_defaults_of_python(command, function, own):
    ours = inspect.signature(command).parameters
    theirs = inspect.signature(function).parameters
    shared = ours.keys() & theirs.keys() - own
    assert len(shared) > 1
    assert {name: ours[name].default for name in shared} == {name: theirs[name].default for name in shared}


def done(*words: object) -> str:
    """The output of a command that must succeed."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    """The message of a command that must fail with exit code 2, before it trains."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "epoch 1 of" not in result.output
    return result.output


def weights(model: str | Path) -> list[bytes]:
    return [value.tobytes() for _, value in sorted(load_file(Path(model) / "model.safetensors").items())]


def weights_of(classifier: ProportionClassifier) -> list[bytes]:
    return [value.numpy().tobytes() for _, value in sorted(classifier.model_.state_dict().items())]


@pytest.fixture
def people(tmp_path, monkeypatch):
    """Two moons as people of towns, with further columns of every kind, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    data = moons(1, N)
    rng = np.random.default_rng(0)
    truth = pl.Series("vote", np.array(["left", "right"])[data.y.numpy()])
    frame = pl.DataFrame(
        {
            "town": [f"{i % N_TOWNS:02d}" for i in range(N)],
            "up": data.x[:, 0].double().numpy(),
            "along": data.x[:, 1].double().numpy(),
            "wage": [None if i % 9 == 0 else float(v) for i, v in enumerate(rng.lognormal(3, 1, N).round(2))],
            "job": [None if i % 13 == 0 else f"job {k}" for i, k in enumerate(rng.integers(0, 40, N))],
            "owner": (rng.random(N) < 0.3).tolist(),
            "born": pl.date_range(pl.date(1950, 1, 1), pl.date(1951, 8, 23), eager=True),
            "age": rng.integers(1, 4, N),
        }
    )
    frame.write_parquet("people.parquet")
    frame.write_csv("people.csv")
    frame.with_columns(truth).write_parquet("truth.parquet")
    for name in ("town", "age"):
        labels = pl.DataFrame(
            [frame[name], (truth == "left").alias("left"), (truth == "right").alias("right")]
        )
        counts = labels.group_by(name).sum().sort(name)
        counts.write_csv(f"{name}-counts.csv")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    shares = counts.with_columns(pl.col("left", "right") / (N // N_TOWNS))
    shares.write_parquet("shares.parquet")
    shares.with_columns(pl.col("left", "right") * 100).write_csv("percent.csv")
    frame.join(shares, on="town").write_csv("both.csv")
    return frame


TOWNS = ("--bag", "town", "--counts", "town-counts.csv")
SOURCES = {
    "shares": ("people.parquet", "--bag", "town", "--proportions", "shares.parquet"),
    "counts": ("people.csv", *TOWNS),
    "percent": ("people.csv", "--bag", "town", "--proportions", "percent.csv", "--percent"),
    "columns": ("both.csv", "--bag", "town", "--shares", "left,right"),
}


def town_counts() -> Any:
    table = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    return Proportions(table, "counts", key="town")


# --- the same as the estimator


def test_every_form_of_the_same_proportions_trains_the_same_network(people):
    for source, words in SOURCES.items():
        assert "no problems" in done("check", *words)
        done("fit", *words, "--out", source, *QUICK_WORDS)
    assert all(weights(source) == weights("shares") for source in SOURCES)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), {}),
        (("--seed", "3", "--pseudo-labels", "hard"), {"random_state": 3, "pseudo_labels": "hard"}),
        (
            ("--pseudo-labels", "none", "--method", "count_likelihood", "--batch-size", "64"),
            {"pseudo_labels": None, "method": "count_likelihood", "batch_size": 64},
        ),
        (
            ("--validation-fraction", "0.3", "--select-by", "likelihood", "--calibrate"),
            {"validation_fraction": 0.3, "select_by": "likelihood", "calibrate": True},
        ),
    ],
)
def test_the_weights_are_those_of_the_estimator_for_every_kind_of_frame(people, words, settings):
    for table in ("people.csv", "people.parquet"):
        done("fit", table, *TOWNS, "--out", f"model-{table}", *QUICK_WORDS, *words)
    pandas = pd.DataFrame({name: people[name].to_list() for name in people.columns})
    for frame in (people, people.lazy(), pandas):
        classifier = ProportionClassifier(**({"random_state": 0} | QUICK | settings))
        classifier.fit(frame, bags="town", proportions=town_counts())
        assert weights("model-people.csv") == weights_of(classifier)
        assert weights("model-people.parquet") == weights_of(classifier)
    saved = load("model-people.csv")
    assert saved.temperature_ == classifier.temperature_
    features = pandas.drop(columns="town")
    np.testing.assert_array_equal(saved.predict_proba(features), classifier.predict_proba(features))


def test_dropped_columns_and_categories(people):
    words = ("--drop", "job,born,age", "--categorical", "wage")
    done("fit", "people.csv", *TOWNS, "--out", "model", *QUICK_WORDS, *words)
    frame = people.drop("job", "born", "age")
    texts = pl.read_csv("people.csv", schema_overrides={"wage": pl.String})["wage"]
    classifier = ProportionClassifier(random_state=0, **QUICK)
    classifier.fit(frame.with_columns(texts), bags="town", proportions=town_counts())
    assert weights("model") == weights_of(classifier)
    kinds = {column.name: column.kind for column in load("model").encoder_.columns_}
    assert kinds == {"up": "number", "along": "number", "wage": "category", "owner": "boolean"}


@pytest.mark.parametrize("keep", [False, True])
def test_several_groupings(people, keep):
    words = (*TOWNS, "--bag", "age", "--counts", "age-counts.csv", *QUICK_WORDS)
    done("fit", "people.csv", *words, "--out", "model", *(("--keep", "age") if keep else ()))
    ages = Proportions(pl.read_csv("age-counts.csv"), "counts", key="age")
    frame = people
    bags: Any = {"town": "town", "age": "age"}
    if keep:
        frame = people.with_columns(pl.col("age").cast(pl.String), number=pl.col("age"))
        bags["age"] = "number"
    classifier = ProportionClassifier(random_state=0, **QUICK)
    classifier.fit(frame, bags=bags, proportions={"town": town_counts(), "age": ages})
    assert weights("model") == weights_of(classifier)
    assert ("age" in load("model").encoder_.feature_names_in_) == keep


def test_weights_are_a_column_and_counts_sum_to_them(people):
    truth = pl.read_parquet("truth.parquet")["vote"]
    heads = pl.Series("heads", 1 + np.arange(N) % 3)
    table = people.with_columns(heads)
    table.write_csv("weighted.csv")
    counts = (
        table.with_columns(truth)
        .group_by("town")
        .agg(pl.col("heads").filter(pl.col("vote") == name).sum().alias(name) for name in ("left", "right"))
    )
    counts.write_csv("heads.csv")
    words = ("weighted.csv", "--bag", "town", "--counts", "heads.csv")
    assert refused("fit", *words, "--out", "model")  # rows do not sum to the counts
    done("fit", *words, "--weight", "heads", "--out", "model", *QUICK_WORDS)
    table = Proportions(counts, "counts", key="town")
    classifier = ProportionClassifier(random_state=0, **QUICK)
    classifier.fit(people.with_columns(heads), bags="town", proportions=table, sample_weight="heads")
    assert weights("model") == weights_of(classifier)
    people.with_columns(pl.when(heads > 2).then(-1).otherwise(heads).alias("heads")).write_csv("weighted.csv")
    assert "row 3" in refused("check", *words, "--weight", "heads")


def test_known_labels_noise_and_gaps(people):
    truth = pl.read_parquet("truth.parquet")["vote"]
    known = {i: truth[i] for i in range(0, N, 50)}
    labels = pl.Series("vote", [known.get(i) for i in range(N)])
    people.with_columns(labels).write_csv("labeled.csv")
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    rng = np.random.default_rng(0)
    noise = [pl.col(name) + pl.Series(rng.normal(0, 0.7, N_TOWNS)) for name in ("left", "right")]
    noisy = counts.with_columns(noise).head(N_TOWNS - 2)
    noisy.write_csv("noisy.csv")
    words = ("--bag", "town", "--counts", "noisy.csv", "--std", "0.7", "--missing-bags", "allow")
    done("fit", "labeled.csv", *words, "--known-labels", "vote", "--out", "model", *QUICK_WORDS)
    table = Proportions(noisy, "counts", key="town", std=0.7, missing_bags="allow")
    classifier = ProportionClassifier(random_state=0, **QUICK)
    classifier.fit(people, bags="town", proportions=table, known_labels=known)
    assert weights("model") == weights_of(classifier)
    card = Path("model/README.md").read_text()
    assert "noisy.csv" in card
    assert "0.7" in card


def test_the_rest_is_a_class(people):
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    counts.select("town", "left").write_csv("left.csv")
    words = ("--bag", "town", "--counts", "left.csv", "--rest", "right")
    done("fit", "people.csv", *words, "--out", "rest", *QUICK_WORDS)
    done("fit", "people.csv", *TOWNS, "--out", "both", *QUICK_WORDS)
    assert weights("rest") == weights("both")


# --- what is printed


def test_fit_prints_progress_and_a_short_summary(people):
    words = ("--epochs", "40", "--validation-fraction", "0.3")
    output = done("fit", "people.csv", *TOWNS, "--drop", "wage,job,born,age,owner", "--out", "model", *words)
    lines = output.splitlines()
    assert "600 rows in 30 bags" in lines[0]
    assert any(line.startswith("first stage: epoch 40 of 40") for line in lines)
    summary = dict(
        line.split(": ") for line in lines if line.startswith(("proportion error", "bag correlation"))
    )
    assert float(summary["proportion error (train)"]) < 0.2
    assert float(summary["bag correlation (validation)"]) > 0.5
    assert lines[-1] == "model"
    assert "proportion error (train)" in Path("model/README.md").read_text()


def test_all_problems_are_printed_and_nothing_is_written(people):
    words = ("--bag", "town", "--counts", "bad.csv", "--out", "model")
    bad = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    bad.with_columns(pl.col("left") + 7).head(20).write_csv("bad.csv")
    message = refused("fit", "people.csv", *words)
    assert "30 problems" in message
    assert "bag '00'" in message
    assert "and 17 more" in message
    assert not Path("model").exists()


def test_terminal_escapes_in_names_are_not_printed(people, capsys, monkeypatch):
    evil = "\x1b[2J\x9b31m"
    people.rename({"job": f"job{evil}"}).write_parquet("people.parquet")
    for out in ("model", f"{evil}/model"):
        output = done("fit", "people.parquet", *TOWNS, "--out", out, *QUICK_WORDS)
        assert not set("\x1b\x9b") & set(output)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(
        sys, "argv", ["apportion", "check", "people.parquet", "--bag", f"town{evil}", *TOWNS[2:]]
    )
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert not set("\x1b\x9b") & set(printed.out + printed.err)


# --- places that cannot be written


@pytest.mark.parametrize(
    "place", ["link", "dangling", ".", "file", "file/model", "full", "x" * 300, "a/../link"]
)
def test_a_place_that_cannot_be_written_is_found_before_training(people, place):
    Path("target").mkdir()
    Path("link").symlink_to("target")
    Path("dangling").symlink_to("nowhere")
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    before = sorted(Path().rglob("*"))
    refused("fit", "people.csv", *TOWNS, "--out", place)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("place", ["new", "a/b/new", "empty", "y" * 255, "ö" * 127])
def test_a_place_that_can_be_written_is(people, place):
    Path("empty").mkdir()
    done("fit", "people.csv", *TOWNS, "--out", place, *QUICK_WORDS)
    assert load(place).classes_.tolist() == ["left", "right"]


def test_a_model_that_cannot_be_saved_there_is_saved_next_to_it(people, monkeypatch):
    save = saving_folder.save

    def fails_there(classifier: Any, folder: Any, **options: Any) -> None:
        if Path(folder).name == "model":
            raise ModelError("the disk is gone")
        save(classifier, folder, **options)

    monkeypatch.setattr(saving_folder, "save", fails_there)
    with pytest.warns(ApportionWarning, match="model-2"):
        output = done("fit", "people.csv", *TOWNS, "--out", "model", *QUICK_WORDS)
    place = Path(output.splitlines()[-1])
    assert place.parent.resolve() == Path().resolve()
    assert load(place).classes_.tolist() == ["left", "right"]


# --- options


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--bag", "town"),
        (*TOWNS, "--proportions", "shares.parquet"),
        (*TOWNS, "--shares", "left,right"),
        (*TOWNS, "--percent"),
        (*TOWNS, "--bag", "age"),
        (*TOWNS, "--key", "town", "--key", "age"),
        (*TOWNS, "--std", "much"),
        (*TOWNS, "--std", "1", "--std", "2"),
        (*TOWNS, "--missing-bags", "yes"),
        (*TOWNS, "--pixels", "32"),
        (*TOWNS, "--no-horizontal-flip"),
        (*TOWNS, "--method", "dllq"),
        (*TOWNS, "--model", "mlq"),
        (*TOWNS, "--select-by", "likelihood"),
        (*TOWNS, "--device", "tpu"),
        (*TOWNS, "--epochs", "0"),
        (*TOWNS, "--image", "job", "--pixels", "4"),
    ],
)
def test_options_that_are_not_possible(people, words):
    refused("fit", "people.csv", *words, "--out", "model")
    assert not Path("model").exists()


def test_names_with_commas_are_quoted(people):
    counts = pl.read_csv("town-counts.csv", schema_overrides={"town": pl.String})
    counts.rename({"left": "left, old"}).with_columns(mayor=pl.lit("x")).write_csv("commas.csv")
    words = ("--bag", "town", "--counts", "commas.csv", "--classes", '"left, old",right')
    assert "-> left, old, right" in done("check", "people.csv", *words)


# --- the process


def test_help_and_version_import_nothing_heavy():
    for words in (["--help"], ["fit", "--help"], ["--version"]):
        program = (
            "import sys\nfrom apportion.cli.app import app\n"
            f"try:\n    app({words})\nexcept SystemExit:\n    pass\n"
            "print({'torch', 'sklearn', 'polars', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules))"
        )
        output = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        assert output.splitlines()[-1] == "set()"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_fit_and_nothing_is_left(people, number, code):
    words = ["fit", "people.csv", *TOWNS, "--out", "model", "--epochs", "100000", "--device", "cpu"]
    command = [sys.executable, "-m", "apportion", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next((line for line in process.stdout or () if line.startswith("first stage: epoch")), "")
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert "of 100000" in line
    assert process.returncode == code
    assert errors.splitlines()[-1] == "apportion: stopped; nothing was written"
    assert not Path("model").exists()


def test_errors_are_short_and_have_exit_code_2(people):
    command = [sys.executable, "-m", "apportion", "check", "gone.csv", *TOWNS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "apportion: there is no file gone.csv\n"
    assert result.stdout == ""


def test_the_model_folder_remembers_how_its_table_was_read(people):
    done("fit", "people.csv", *TOWNS, "--missing", "NA", "--out", "model", *QUICK_WORDS)
    about = json.loads(Path("model/model.json").read_text())["about"]
    assert about["missing"] == ["NA"]
    assert about["bags"] == N_TOWNS
