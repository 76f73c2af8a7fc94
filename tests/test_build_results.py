"""The page of results: the paper's numbers, its sentences beside ours, and the committed page itself."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from run_folders import change_result, log_line, write_log, write_run

from apportion.experiments.recipes import RECIPES
from apportion.report.tables import Cell, collect

ROOT = Path(__file__).parents[1]
SIZES = (16, 32, 64, 128)


@pytest.fixture(scope="module")
def page():
    """docs/build_results.py as a module."""
    spec = importlib.util.spec_from_file_location("build_results", ROOT / "docs/build_results.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_results"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_results"]


# --- the numbers of others


def test_the_papers_numbers_are_unchanged():
    """Typed from the tables of the paper; the checksum covers the rest."""
    text = (ROOT / "docs/paper_numbers.json").read_bytes()
    numbers = json.loads(text)
    tables = numbers["tables"]
    assert tables["sizes"] == [16, 32, 64, 128]
    assert tables["table1"]["rows"]["dllp"] == [[87.69, 0.54], [82.88, 0.47], [71.11, 0.56], [46.68, 0.75]]
    assert tables["table1"]["rows"]["llp_gan+plot"][3] == [79.09, 0.44]
    assert tables["table1"]["rows"]["llp_vat"][2] == [70.53, 0.98]
    assert tables["table2"]["rows"]["llp_gan+plot"] == [
        [65.41, 0.35],
        [61.68, 0.48],
        [55.66, 0.41],
        [43.44, 0.71],
    ]
    assert tables["table2"]["rows"]["dllp"][3] == [15.17, 1.07]
    ablation = {row["title"]: (row["mean"], row["deviation"]) for row in numbers["table3"]["rows"]}
    assert ablation["baseline: DLLP"] == (71.11, 0.36)
    assert ablation["CE + OT + mixup"] == (84.39, 0.22)
    runs = {row["title"]: row["run"] for row in numbers["table3"]["rows"]}
    assert runs["CE + OT"] == "table1/dllp+plot/64"
    assert runs["CE + OT + mixup"] == "table1-mixup/dllp+plot/64"
    assert all(run in RECIPES for run in runs.values())
    published = {size: row["accuracy"] for size, row in numbers["published"]["rows"].items()}
    assert published == {"16": 95.24, "32": 95.25, "64": 94.58, "128": 94.53, "256": 93.95}
    assert hashlib.sha256(text).hexdigest() == CHECKSUM


CHECKSUM = "7f8012c7cc4c1ae9f1fd963eb8e36e5b756a59e3fcc02e436969c8408410802c"


def test_the_committed_page_is_what_the_committed_results_give(page, tmp_path):
    text = page.results_page(collect(ROOT / "results"), tmp_path)
    assert text == (ROOT / "docs/results.md").read_text("utf-8")
    for path in tmp_path.iterdir():
        assert (ROOT / "docs/images" / path.name).exists()


# --- the summary


def test_the_summary_compares_what_was_run_and_says_nothing_of_what_was_not(page, tmp_path):
    assert page.summary_sections(collect(tmp_path), tmp_path) == []
    write_run(tmp_path / "runs", "table1/dllp+plot/16", 1, 92.01)
    write_run(tmp_path / "runs", "table1-mixup/dllp+plot/16", 1, 93.5)
    write_run(tmp_path / "runs", "table1-earlier/dllp+plot/32", 1, 91.5)
    write_run(tmp_path / "runs", "table1-paper/dllp+plot/64", 1, 69.69)
    cells = collect(tmp_path / "runs")
    (text,) = page.summary_sections(cells, tmp_path)
    assert text.startswith("![")
    assert "2 of the 72 cells" in text
    assert (
        "our setting without mixup: DLLP + PLOT differs from the paper by +2.00 points at bags of 16." in text
    )
    assert "own setting: DLLP + PLOT differs from the paper by -10.00 points at bags of 64." in text
    assert "our setting: DLLP + PLOT with mixup reaches 93.50 % at bags of 16." in text
    assert "our earlier setting: DLLP + PLOT with mixup reaches 91.50 % at bags of 32." in text
    assert "two views with" not in text
    assert (tmp_path / "results.png").exists()
    (panel,) = page.summary_figure(cells).axes
    assert [list(line.get_ydata()) for line in panel.lines][1:] == [[92.01], [93.5], [91.5]] + (
        [list(page.PUBLISHED.values())]
    )


def test_the_72_cells_are_recipes(page):
    names = page.cells_of_tables()
    assert len(set(names)) == 72
    assert all(name in RECIPES for name in names)


def test_the_committed_page_begins_with_a_picture_and_a_summary():
    text = (ROOT / "docs/results.md").read_text("utf-8")
    assert text.index("![") < text.index("sentences that runs of") < text.index("| --- |")


# --- tables


def test_our_number_is_next_to_the_papers_with_the_difference(page, tmp_path):
    write_run(tmp_path, "table1/dllp/16", 1, 88.69)
    cells = collect(tmp_path)
    assert page.beside(cells["table1/dllp/16"], 87.69) == "**88.69 (–, 1)** / 87.69 / +1.00"
    assert page.beside(None, 87.69) == "– / 87.69"
    row = page.comparison_table(cells, "table1").splitlines()[2]
    assert row.startswith("| DLLP | **88.69 (–, 1)** / 87.69 / +1.00 | – / 82.88 |")
    change_result(tmp_path / "table1/dllp/16/seed=1", test_accuracy={"oracle": 99.0})
    assert page.comparison_table(collect(tmp_path), "table1").splitlines()[2] == row


def test_every_number_is_beside_the_papers_under_the_same_rule(page, tmp_path):
    for group, last in (("table1", 80.69), ("table1-mixup", 85.39)):
        write_run(tmp_path, f"{group}/dllp+plot/64", 11, last)
        write_run(tmp_path, f"{group}/dllp+plot/128", 11, last)
    write_run(tmp_path, "table2-mixup/llp_gan+plot/64", 11, 60.0)
    cells = collect(tmp_path)
    rows = page.comparison_table(cells, "table1").splitlines()
    assert rows[3:5] == [
        "| DLLP + PLOT | – / 90.01 | – / 86.87 | **80.69 (–, 1)** / 79.69 / +1.00 | "
        "**80.69 (–, 1)** / 55.21 / +25.48 |",
        "| DLLP + PLOT, with mixup | – / – | – / – | **85.39 (–, 1)** / 84.39 / +1.00 | "
        "**85.39 (–, 1)** / – |",
    ]
    assert page.comparison_table(cells, "table2", with_empty=False).splitlines()[2:] == [
        "| LLP-GAN + PLOT, with mixup | – / – | – / – | **60.00 (–, 1)** / – | – / – |"
    ]
    ablation = page.ablation_table(cells)
    assert "| CE + OT | **80.69 (–, 1)** / 78.57 / +2.12 |" in ablation
    assert "| CE + OT + mixup | **85.39 (–, 1)** / 84.39 / +1.00 |" in ablation


def test_runs_of_the_earlier_setting_are_in_no_table_of_the_final_one(page, tmp_path):
    runs = tmp_path / "runs"
    accuracies = {
        "table1-earlier/dllp/64": 78.0, "table1-earlier/dllp+plot/64": 86.0, "table3-earlier/ce+ot/64": 79.0,
        "table3-earlier/ce/64": 71.0, "figure4-earlier/soft-10/64": 86.5,
    }  # fmt: skip
    for name, last in accuracies.items():
        write_run(runs, name, 1, last)
    cells = collect(runs)
    earlier = page.earlier_runs(cells)
    assert {name: cell.accuracies()[0] for name, cell in earlier.items()} == {
        "table1/dllp/64": 78.0, "table1-mixup/dllp+plot/64": 86.0, "table1/dllp+plot/64": 79.0,
        "table3/ce/64": 71.0, "figure4/soft-10/64": 86.5,
    }  # fmt: skip
    assert page.with_mixup(earlier)["table1/dllp+plot/64"].accuracies() == [86.0]
    text = page.results_page(cells, tmp_path)
    final, rest = text.split("## Earlier setting\n")
    tables = final[final.index("## Table 1") : final.index("## Figure 3")]
    assert "**78.00" not in tables
    assert "**Holds**" not in tables
    assert "*Hard and soft labels are comparable (λ = 10, within a point).* **Not judged yet**" in tables
    assert "**78.00 (–, 1)** / 71.11" in rest
    assert "hard 86.00, soft 86.50" in rest
    assert (tmp_path / "figure3-earlier.png").exists()
    assert (tmp_path / "figure4-earlier.png").exists()
    write_run(runs, "table1/dllp+plot/64", 11, 82.0)
    write_run(runs, "figure4/soft-10/64", 11, 81.5)
    text = page.results_page(collect(runs), tmp_path)
    final, rest = text.split("## Earlier setting\n")
    assert "hard 82.00, soft 81.50 (seed=11)" in final
    assert "hard 86.00, soft 86.50 (seed=1)" in rest
    assert "images/figure3.png" in final
    assert "figure3-earlier" not in text


def test_the_papers_setting_has_both_readings_and_what_became_of_their_labels(page, tmp_path):
    assert page.paper_setting_table(collect(tmp_path)) == ""
    write_run(tmp_path, "table1-paper/dllp/16", 1, 87.69)
    log = []
    for epoch, labels in enumerate((76.5, 74.0, 72.25), 1):
        log.append(log_line(epoch, 69.69) | {"label_accuracy": {"labels": labels}})
    write_run(tmp_path, "table1-paper/dllp+plot-new-eq9/64", 1, epochs=3, log=log)
    assert page.paper_setting_table(collect(tmp_path)).splitlines()[2:] == [
        "| DLLP | **87.69 (–, 1)** / 87.69 / +0.00 | – / 82.88 | – / 71.11 | – / 46.68 |",
        "| DLLP + PLOT, a new student, eq. (9) | – / 90.01 | – / 86.87 | **69.69 (–, 1)** / 79.69 / -10.00 "
        "| – / 55.21 |",
        "| DLLP + PLOT, a new student, eq. (9): labels right, first → last | – | – | 76.50 → 72.25 | – |",
    ]
    named = {name.split("/")[1] for name in RECIPES if name.startswith("table1-paper/")}
    assert named == set(page.PAPER_SETTING_ROWS)


def test_studies_stand_beside_the_cells_that_they_vary(page, tmp_path):
    write_run(tmp_path, "table1/dllp/64", 11, 85.0, epochs=2)
    assert page.studies_section(collect(tmp_path)) == []
    write_run(tmp_path, "studies/rot/64", 11, 84.0, epochs=2)
    (text,) = page.studies_section(collect(tmp_path))
    assert "| DLLP | 85.00 (–, 1) | 2 |\n| ROT | 84.00 (–, 1) | 2 |" in text
    assert all(name in RECIPES for name in page.STUDIES_ROWS.values())


def test_columns_of_larger_bags_are_there_if_there_is_a_run(page, tmp_path):
    assert page.mnist_table(collect(tmp_path)) == ""
    write_run(tmp_path, "mnist/dllp+plot/32", 1, 98.5)
    assert page.mnist_table(collect(tmp_path)).splitlines()[2:] == [
        "| DLLP + PLOT | – | 98.50 (–, 1) | – | – |"
    ]
    write_run(tmp_path, "beyond-mnist/two_views/1024", 1, 99.0)
    assert "bags of 1024" in page.mnist_table(collect(tmp_path)).splitlines()[0]


# --- the paper's sentences

ACCURACIES = {
    "table1/dllp": (88.0, 80.0, 70.0, 50.0), "table1/dllp+plot": (90.0, 83.0, 78.0, 60.0),
    "table1/llp_vat": (88.5, 81.0, 70.5, 51.0), "table1/llp_vat+plot": (89.0, 82.0, 80.0, 63.0),
    "table1/llp_gan": (89.0, 81.5, 77.0, 68.0), "table1/llp_gan+plot": (91.0, 84.0, 84.0, 79.0),
    "table2/dllp": (60.0, 50.0, 40.0, 20.0),
}  # fmt: skip
OTHERS = {
    "table1/supervised+plot/1": 91.0, "table1/supervised/1": 90.5,
    "table3/ce/64": 72.0, "table3/sce/64": 74.0,
    "table3/sce+ot/64": 79.0, "table1-mixup/dllp+plot/64": 84.0,
    "figure4/soft-1/64": 77.5, "figure4/soft-10/64": 78.9,
}  # fmt: skip


def results_for_every_claim() -> dict[str, dict[str, float]]:
    """Results for which every sentence holds, none by much."""
    last = dict(OTHERS)
    for stem, row in ACCURACIES.items():
        last |= {f"{stem}/{size}": value for size, value in zip(SIZES, row, strict=True)}
    return {
        name: {
            "last": value,
            "exact": 90.0,
            "relaxed": 89.0,
            "argmax": 86.0 if name.startswith("table2") else 87.0,
            "proportion_error": 5.0 + name.endswith("128"),
            "entropy": 0.2 + name.endswith("128"),
        }
        for name, value in last.items()
    }


def judge(page, results: dict[str, dict[str, float]], table: str, words: str) -> bool:
    """Whether the sentence with these words holds."""
    cells = {}
    for name, each in results.items():
        train = {key: each[key] for key in ("proportion_error", "entropy")}
        train["label_accuracy"] = {key: each[key] for key in ("exact", "relaxed", "argmax")}
        result = {"test_accuracy": {"last": each["last"]}, "train": train}
        cells[name] = Cell(name, (Path(name) / "seed=1",), (result,))
    (claim,) = (
        claim for claim in page.sentences_of(cells, table) if words in f"{claim.sentence} {claim.numbers}"
    )
    return claim.holds


@pytest.mark.parametrize(
    ("words", "cell", "quantity", "value"),
    [
        ("Accuracy falls with the bag size (DLLP).", "table1/dllp/32", "last", 88.5),
        ("Accuracy falls with the bag size (DLLP + PLOT).", "table1/dllp+plot/32", "last", 90.5),
        ("Accuracy falls with the bag size (LLP-VAT).", "table1/llp_vat/32", "last", 99.0),
        ("PLOT gains at every bag size (after DLLP).", "table1/dllp+plot/16", "last", 87.9),
        ("PLOT gains at every bag size (after LLP-VAT).", "table1/llp_vat+plot/64", "last", 20.0),
        ("It gains most at 64 and 128 (after DLLP).", "table1/dllp+plot/16", "last", 96.5),
        ("supervised in the student's setting", "table1/supervised+plot/1", "last", 91.1),
        ("supervised in the first stage's setting", "table1/supervised/1", "last", 91.1),
        ("DLLP misses the proportions", "table1/dllp/128", "proportion_error", 4.9),
        ("predictions have a high entropy", "table1/dllp/128", "entropy", 0.1),
        ("Relaxed labels (ROT)", "table1/dllp/32", "relaxed", 90.5),
        ("The order of the ablation's rows.", "table3/ce/64", "last", 74.5),
        ("comparable (λ = 1, ", "figure4/soft-1/64", "last", 79.1),
        ("comparable (λ = 10, ", "figure4/soft-10/64", "last", 76.9),
        ("LLP-GAN + PLOT at 128 beats", "table1/llp_gan+plot/128", "last", 76.9),
        ("PLOT gains in every cell.", "table1/llp_vat+plot/128", "last", 50.9),
        ("LLP-VAT gains least at small bags", "table1/llp_vat+plot/32", "last", 83.6),
        ("The best first stage stays the best", "table1/dllp+plot/16", "last", 91.1),
        ("The margin of transport", "table2/dllp/64", "argmax", 87.5),
    ],
)
def test_every_sentence_holds_with_its_own_numbers_and_falls_with_them(page, words, cell, quantity, value):
    results = results_for_every_claim()
    table = "table2" if "margin" in words else "table1"
    assert judge(page, results, table, words)
    results[cell][quantity] = value
    assert not judge(page, results, table, words)


def test_a_sentence_without_its_runs_is_left_out(page, tmp_path):
    assert page.sentences_of(collect(tmp_path), "table1") == []
    for size in SIZES:
        write_run(tmp_path, f"table1/dllp/{size}", 1, 90.0 - size / 10, with_sample=False)
    sentences = [claim.sentence for claim in page.claims(collect(tmp_path), "table1")]
    assert "Accuracy falls with the bag size (DLLP)." in sentences
    assert not any("PLOT" in sentence or "LLP-GAN" in sentence for sentence in sentences)


def test_methods_are_compared_on_the_seeds_that_all_of_them_have(page, tmp_path):
    for first in ("dllp", "llp_vat", "llp_gan"):
        for i, size in enumerate(SIZES):
            write_run(tmp_path, f"table1/{first}/{size}", 1, 60.0 - i, with_sample=False)
            write_run(tmp_path, f"table1/{first}+plot/{size}", 1, 61.0 - i, with_sample=False)
            write_run(tmp_path, f"table1/{first}/{size}", 2, 90.0, with_sample=False)
    found = {claim.sentence: claim for claim in page.claims(collect(tmp_path), "table1")}
    gains = found["PLOT gains at every bag size (after DLLP)."]
    assert gains.holds
    assert gains.numbers == "+1.00 / +1.00 / +1.00 / +1.00"
    assert found["PLOT gains in every cell."].holds


# --- the paper's sentences about figure 3

CURVES = {  # of seven epochs; TD_OT is below TD in the last
    "predicted": [50.0, 60.0, 60.0, 60.0, 60.0, 60.0, 70.0],
    "fresh_labels": [52.0, 62.0, 62.0, 62.0, 62.0, 62.0, 69.0],
    "fresh_mean": [52.0, 62.0, 62.0, 62.0, 63.0, 63.0, 68.5],
}
BETTER, FURTHER, LARGER = "significantly better", "improves them further", "is larger on CIFAR-100"


def write_curves(root: Path, name: str, seed: int = 1, **changes: list[float]) -> Path:
    """A second stage with these curves; None leaves one out."""
    log = []
    for i in range(7):
        curves = {name: values[i] for name, values in (CURVES | changes).items() if values is not None}
        log.append(log_line(i + 1, 50.0) | {"label_accuracy": curves})
    folder = write_run(root, name, seed, epochs=7, log=log, with_sample=False)
    last = {"argmax": log[-1]["label_accuracy"]["predicted"], "exact": 69.0}
    change_result(folder, train={"label_accuracy": last})
    return folder


def judge_figure_3(page, root: Path, table: str) -> dict[str, tuple[bool, str]]:
    found = {}
    for claim in page.curve_claims(collect(root), table, page.SETTINGS):
        (words,) = (words for words in (BETTER, FURTHER, LARGER) if words in claim.sentence)
        setting = "paper" if "the paper's own" in claim.sentence else "ours"
        found[f"{words}, {setting}"] = claim.holds, claim.numbers
    return found


def test_transport_and_the_mean_of_five_are_judged_over_the_epochs(page, tmp_path):
    assert judge_figure_3(page, tmp_path, "table1") == {}
    write_curves(tmp_path, "table1/dllp+plot/64")
    assert judge_figure_3(page, tmp_path, "table1") == {
        f"{BETTER}, ours": (True, "TD_OT - TD is +1.57 over the epochs, -1.00 after the last (seed=1)"),
        f"{FURTHER}, ours": (True, "TD_OT_5 - TD_OT is +0.21 over the epochs, -0.50 after the last (seed=1)"),
    }
    worse = [value - 0.6 for value in CURVES["fresh_labels"][:-1]] + [69.0]  # 1.06 points above TD, and 0.97
    write_curves(tmp_path, "table1/dllp+plot/64", 2, fresh_labels=worse)
    assert judge_figure_3(page, tmp_path, "table1")[f"{BETTER}, ours"][0]
    write_curves(tmp_path, "table1/dllp+plot/64", 3, fresh_labels=[value - 9 for value in worse])
    assert not judge_figure_3(page, tmp_path, "table1")[f"{BETTER}, ours"][0]
    assert judge_figure_3(page, tmp_path, "table1")[f"{FURTHER}, ours"][0]
    write_curves(tmp_path, "table1/dllp+plot/64", 4, fresh_mean=[value - 30 for value in worse])
    assert not judge_figure_3(page, tmp_path, "table1")[f"{FURTHER}, ours"][0]


def test_without_the_curves_only_the_last_epoch_is_judged(page, tmp_path):
    """The labels that a student learns from a moving average are not in place of the curves."""
    old = {"fresh_labels": None, "fresh_mean": None, "labels": [99.0] * 7, "mean": [99.0] * 7}
    folder = write_curves(tmp_path, "table1/dllp+plot/64", **old)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["second"]["ema"] = 0.9
    (folder / "recipe.json").write_text(json.dumps(recipe))
    numbers = "TD_OT - TD is -1.00 after the last epoch (seed=1)"
    assert judge_figure_3(page, tmp_path, "table1") == {f"{BETTER}, ours": (False, numbers)}
    (text, picture, judged) = page.figure_3_sections(collect(tmp_path), tmp_path)
    assert "can significantly improve" in text
    assert "figure3.png" in picture
    assert judged.count("**Not judged**") == 1
    recipe["second"]["ema"] = 0.0  # the student learned TD_OT_5, apart from the first four rounds
    (folder / "recipe.json").write_text(json.dumps(recipe))
    found = judge_figure_3(page, tmp_path, "table1")
    assert found[f"{FURTHER}, ours"] == (
        False,
        "TD_OT_5 - TD_OT is +0.00 over the epochs, +0.00 after the last (seed=1)",
    )
    assert found[f"{BETTER}, ours"][0]


def test_the_margin_of_two_data_sets_is_compared_in_the_same_setting_and_epochs(page, tmp_path):
    write_curves(tmp_path, "table2/dllp+plot/64")
    write_curves(tmp_path, "table1-paper/dllp+plot/64")
    assert f"{LARGER}, ours" not in judge_figure_3(page, tmp_path, "table2")
    folder = write_curves(tmp_path, "table1/dllp+plot/64", fresh_labels=[69.0] * 7)
    assert judge_figure_3(page, tmp_path, "table2")[f"{LARGER}, ours"] == (
        False,
        "TD_OT - TD is +1.57 over the epochs, -1.00 after the last (seed=1) against +9.00 over the epochs, "
        "-1.00 after the last (seed=1)",
    )
    change_result(folder, train={"label_accuracy": {"argmax": 70.5, "exact": 69.0}})
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["second"]["labels"] = "soft"
    (folder / "recipe.json").write_text(json.dumps(recipe))
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in log:
        del line["label_accuracy"]["fresh_labels"]
    write_log(folder, log)
    assert judge_figure_3(page, tmp_path, "table2")[f"{LARGER}, ours"] == (
        True,
        "TD_OT - TD is -1.00 after the last epoch (seed=1) against -1.50 after the last epoch (seed=1)",
    )


def test_the_summary_counts_the_sentences_about_figure_3(page, tmp_path):
    write_curves(tmp_path / "runs", "table1/dllp+plot/64")
    write_curves(tmp_path / "runs", "table1-paper/dllp+plot/64", fresh_labels=[0.0] * 7)
    cells = collect(tmp_path / "runs")
    assert page.claims(cells, "table1") == []
    (text,) = page.summary_sections(cells, tmp_path)
    assert "can check, 3 of 4 hold." in text
    assert len(page.figure_3_sections(cells, tmp_path)) == 4  # the prose, two pictures, the sentences
    assert (tmp_path / "figure3-paper.png").exists()


# --- beyond the paper


def test_a_second_stage_counts_the_seconds_of_its_first_and_needs_it(page, tmp_path):
    rows, published = page.CIFAR_10_ROWS, page.PUBLISHED
    assert page.beyond_table(collect(tmp_path), rows, published) == ""
    assert page.beyond_figure(collect(tmp_path), rows, published) is None
    write_run(tmp_path, "beyond-conv13/two_views+plot/64", 1, 93.0)
    assert page.beyond_table(collect(tmp_path), rows, published) == ""
    write_run(tmp_path, "beyond-conv13/two_views/64", 1, 91.0)
    cells = collect(tmp_path)
    assert page.beyond_table(cells, rows, published).splitlines()[2:] == [
        "| two views | **91.00 (–, 1)**, 13 s |",
        "| two views + PLOT | **93.00 (–, 1)**, 26 s |",
        "| published best | 94.58 |",
    ]
    (panel,) = page.beyond_figure(cells, rows, {}).axes
    first, second = (line.get_xdata() for line in panel.lines)
    assert second[-1] == pytest.approx(2 * first[-1])


def test_the_figure_has_one_color_per_method_and_the_published_best(page, tmp_path):
    rows = page.CIFAR_10_ROWS
    for row in rows.values():
        for method in {row.method, row.method.removesuffix("+plot")}:
            for size in (16, 512):
                if not (tmp_path / f"{row.group}/{method}/{size}").exists():
                    write_run(tmp_path, f"{row.group}/{method}/{size}", 1, 90.0, with_sample=False)
    one, other = page.beyond_figure(collect(tmp_path), rows, page.PUBLISHED).axes
    colors = [
        {line.get_label(): line.get_color() for line in panel.lines[: len(rows)]} for panel in (one, other)
    ]
    assert colors[0] == colors[1]
    assert len(set(colors[0].values())) == len(rows)
    best = one.lines[len(rows)]
    assert list(best.get_ydata()) == [page.PUBLISHED[16]] * 2
    assert len(other.lines) == len(rows)
    low, middle, high = one.transData.transform([(0, 80), (0, 90), (0, 95)])[:, 1]
    assert middle - low == pytest.approx(high - middle)  # halving the error


def test_figure_4_draws_hard_and_soft_labels_of_the_same_seed(page, tmp_path):
    assert page.soft_labels_figure(collect(tmp_path), "table1") is None
    write_run(tmp_path, "table1/dllp+plot/64", 1, 80.0)
    write_run(tmp_path, "figure4/soft-10/64", 1, 79.0)
    panel = page.soft_labels_figure(collect(tmp_path), "table1").axes[2]
    assert {line.get_label(): list(line.get_ydata()) for line in panel.lines} == {
        "hard": [80.0], "soft, λ = 10": [79.0],
    }  # fmt: skip
