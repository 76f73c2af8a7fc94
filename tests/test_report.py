"""Reports from run folders: tables, figures, the HTML page, and folders from strangers."""

import base64
import io
import json
import math
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from run_folders import SCRIPT, change_result, log_line, result_of, sample_of, write_log, write_run
from typer.testing import CliRunner

from apportion.cli.app import app
from apportion.cli.experiments import parse_settings
from apportion.errors import RunError
from apportion.experiments.recipe import change_recipe, to_json
from apportion.experiments.recipes import RECIPES
from apportion.report.figures import confusion_figure, curves_figure, labels_figure, save_figure
from apportion.report.page import draw_sprite, html_page, run_command, script_json, sparse_confusion
from apportion.report.tables import (
    accuracy_table,
    collect,
    describe_places,
    log_curves,
    markdown_table,
    mean_and_deviation,
    profile_table,
    provenance_marks,
    run_table,
    runs_page,
    same_seeds,
    time_by_part,
)

# --- cells


def test_a_cell_has_the_finished_seeds_of_a_recipe_in_order(tmp_path):
    for seed, last in ((10, 94.0), (1, 90.0), (2, 92.0)):
        write_run(tmp_path, "table1/dllp/16", seed, last)
    write_run(tmp_path, "table1/dllp/16", 3, 0.0, finished=False)
    write_run(tmp_path, "table1/dllp/16", 4, 0.0).rename(tmp_path / "table1/dllp/16/seed=4 copy")
    cell = collect(tmp_path)["table1/dllp/16"]
    assert cell.accuracies() == [90.0, 92.0, 94.0]
    assert mean_and_deviation(cell.accuracies()) == "92.00 (2.00, 3)"
    assert mean_and_deviation([92.0]) == "92.00 (–, 1)"
    assert cell.seconds() == 13.0


def test_cells_are_sorted_by_bag_size(tmp_path):
    for name in ("table1/dllp/128", "table1/dllp/16", "table1/a+b/64", "digits/dllp/7"):
        write_run(tmp_path, name)
    assert list(collect(tmp_path)) == ["digits/dllp/7", "table1/a+b/64", "table1/dllp/16", "table1/dllp/128"]


def test_runs_are_compared_on_the_seeds_that_all_of_them_have(tmp_path):
    for name, seeds in (("g/a/1", (1, 2, 3)), ("g/b/1", (2, 3)), ("g/c/1", (3, 4))):
        for seed in seeds:
            write_run(tmp_path, name, seed, 10.0 * seed)
    found = same_seeds(collect(tmp_path), ["g/a/1", "g/b/1", "g/c/1", "g/missing/1"])
    assert {name: cell.accuracies() for name, cell in found.items()} == {
        "g/a/1": [30.0], "g/b/1": [30.0], "g/c/1": [30.0],
    }  # fmt: skip


# --- Markdown


def test_tables_report_the_last_epoch_and_not_the_best(tmp_path):
    for seed, last, best in ((1, 88.0, 91.0), (2, 90.0, 94.0)):
        folder = write_run(tmp_path, "mine1/dllp/16", seed, last)
        change_result(folder, epochs=40, test_accuracy={"oracle": best})
        change_result(folder, seconds={"train": 100.0, "label": 20.0, "evaluate": 3.0})
    write_run(tmp_path, "mine1/llp_vat+plot/32", 1, 70.0)
    write_run(tmp_path, "mine2/dllp/16", 1, 70.0)
    cells = collect(tmp_path)
    assert run_table(cells, "mine1").splitlines()[2] == (
        "| `mine1/dllp/16` | 89.00 (1.41, 2) | 92.50 | 40 | 123 | 20 | 3 |"
    )
    assert accuracy_table(cells, "mine1").splitlines() == [
        "|  | bags of 16 | bags of 32 |",
        "| --- | --- | --- |",
        "| DLLP | 89.00 (1.41, 2) | – |",
        "| LLP-VAT + PLOT | – | 70.00 (–, 1) |",
    ]
    page = runs_page(tmp_path)
    for text in (run_table(cells, "mine1"), accuracy_table(cells, "mine1"), "## mine2"):
        assert text in page
    assert "Made on: cpu: x, torch 2, commit abcdef (4 runs)." in page


def test_method_and_bag_size_are_those_of_the_recipe_whatever_the_folder_is_called(tmp_path):
    base = RECIPES["digits/dllp/16"]
    rot = change_recipe(base, {"first.method": "rot", "data.bag_size": "32"})
    runs = {
        "trial/dllp/16": rot,
        "trial/rot/32": change_recipe(rot, {"data.bag_size": "16"}),
        "trial/rot-sharp/32": change_recipe(rot, {"first.options.alpha": "0.9"}),
        "trial/again/32": rot,
        "trial/supervised/1": change_recipe(base, {"data.bag_size": "1"}),
        "trial/plot/16": RECIPES["digits/dllp+plot/16"],
        "trial/twice/16": change_recipe(rot, {"data.bag_size": "16"}),
        "trial/twice/32": change_recipe(rot, {"data.bag_size": "16"}),
    }
    for i, (name, recipe) in enumerate(runs.items()):
        folder = write_run(tmp_path, name, last=float(i))
        (folder / "recipe.json").write_text(to_json(recipe))
    cells = collect(tmp_path)
    assert accuracy_table(cells, "trial").splitlines() == [
        "|  | bags of 1 | bags of 16 | bags of 32 |",
        "| --- | --- | --- | --- |",
        "| ROT (again) | – | – | 3.00 (–, 1) |",
        "| ROT | – | 1.00 (–, 1) | 0.00 (–, 1) |",
        "| DLLP + PLOT | – | 5.00 (–, 1) | – |",
        "| ROT (rot-sharp) | – | – | 2.00 (–, 1) |",
        "| supervised | 4.00 (–, 1) | – | – |",
        "| ROT (twice) | – | 6.00 (–, 1) | – |",
        "| ROT (twice/32) | – | 7.00 (–, 1) | – |",
    ]
    rows = {cell["name"]: (cell["method"], cell["size"]) for cell in data_of(html_page(tmp_path))["cells"]}
    assert rows["trial/dllp/16"] == ("ROT", "32")


def test_seeds_of_different_recipes_in_one_folder_are_marked(tmp_path):
    for seed, change in ((1, {}), (2, {"first.epochs": "7"})):
        folder = write_run(tmp_path, "trial/dllp/16", seed)
        (folder / "recipe.json").write_text(to_json(change_recipe(RECIPES["digits/dllp/16"], change)))
    assert provenance_marks(collect(tmp_path), "trial") == {"trial/dllp/16": "†"}
    assert "trial/dllp/16†" in html_page(tmp_path)


def test_runs_of_other_settings_and_of_other_sources_are_marked(tmp_path):
    name = "smoke/dllp/50"
    for seed, sources in ((1, "a"), (2, "a"), (3, "b")):
        folder = write_run(tmp_path, name, seed)
        (folder / "recipe.json").write_text(to_json(replace(RECIPES[name], seed=seed)))
        (folder / "where.json").write_text(json.dumps({"sources": sources}))
    assert provenance_marks(collect(tmp_path), "smoke") == {name: "‡"}
    (folder / "where.json").write_text(json.dumps({"sources": "a"}))
    assert provenance_marks(collect(tmp_path), "smoke") == {name: ""}
    (folder / "recipe.json").write_text(to_json(replace(RECIPES[name], batch_size=7)))
    assert provenance_marks(collect(tmp_path), "smoke") == {name: "†"}
    assert f"`{name}`† |" in run_table(collect(tmp_path), "smoke")


def test_a_run_of_an_installed_package_has_no_commit(tmp_path):
    folder = write_run(tmp_path, "table1/dllp/64")
    (folder / "where.json").write_text(json.dumps({"device": "cpu: x", "torch": "2", "commit": None}))
    assert describe_places(collect(tmp_path)) == "cpu: x, torch 2 (1 runs)"
    (folder / "where.json").write_text("{}")
    assert describe_places(collect(tmp_path)) == "?, torch ?, commit ? (1 runs)"


def test_names_of_folders_are_neither_html_nor_markdown_nor_terminal_escapes(tmp_path):
    nasty = "<img src=x onerror=alert(1)>|`[x](y)\x1b[2J"
    folder = write_run(tmp_path / "runs", f"{nasty}/{nasty}/{nasty}")
    (folder / "where.json").write_text(json.dumps({"device": nasty, "torch": nasty, "commit": nasty}))
    page = runs_page(tmp_path / "runs")
    assert not set(page) & set("<>\x1b[]")
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table if "img" in line}) <= 2  # a column more for run tables
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--md", str(tmp_path / "\x1b[2J.md")])
    assert "\x1b" not in result.output


def test_a_markdown_table_has_a_head_and_a_rule():
    assert markdown_table(["", "a"], [["b", "1"]]).splitlines() == ["|  | a |", "| --- | --- |", "| b | 1 |"]


# --- where the time goes


def test_time_by_part_sums_to_the_time_of_the_run():
    seconds = {"train": 10.0, "label": 2.0, "evaluate": 1.0}
    log = [{"label_accuracy": {}}] * 4 + [{}]
    sample = sample_of(1)
    sample.info["timed"] = {"share": 0.5, "predict": 0.1, "augment": 0.2}
    assert time_by_part(seconds, log, sample) == {
        "network": 8.0, "augmentation": 2.0, "prediction": 0.8, "transport": 1.2, "evaluation": 1.0,
    }  # fmt: skip
    sample.info["timed"] = {"share": 0.5, "predict": 9.0, "augment": 9.0}  # on a machine that was busy
    assert time_by_part(seconds, log, sample) == {"augmentation": 10.0, "prediction": 2.0, "evaluation": 1.0}
    assert sum(time_by_part(seconds, log, None).values()) == 13.0


def test_the_profile_is_of_the_median_epoch_so_that_compiling_does_not_count(tmp_path):
    log = [log_line(epoch, 50.0, plot=False) for epoch in range(1, 101)]
    for line in log:
        line["seconds"] = {"train": 2.0, "label": 0.0, "evaluate": 1.0}
    log[0]["seconds"]["train"] = 1000.0
    write_run(tmp_path, "table1/dllp/16", epochs=100, log=log)
    row = profile_table(collect(tmp_path), "table1").splitlines()[2]
    assert row.startswith("| `table1/dllp/16` | 3.000 |")
    assert row.endswith("| 1.000 (33 %) |")
    assert profile_table(collect(tmp_path), "table2") == ""


def test_the_profile_counts_relabeling_in_the_epochs_that_did_it(tmp_path):
    log = []
    for epoch, label in enumerate((0.0, 0.0, 2.0, 1.9, 50.0), 1):
        line = log_line(epoch, 50.0)
        line["seconds"] = {"train": 4.0, "label": label, "evaluate": 1.0}
        if not label:
            del line["label_accuracy"]
        log.append(line)
    folder = write_run(tmp_path, "table1/dllp+plot/16", epochs=5, log=log)
    sample = sample_of(5, plot=True)
    sample.info["timed"] = {"share": 0.5, "predict": 0.25, "augment": 0.5}
    (folder / "sample.npz").write_bytes(sample.to_bytes())
    row = profile_table(collect(tmp_path), "table1").splitlines()[2]
    shares = "3.000 (48 %) | 1.000 (16 %) | 0.300 (5 %) | 0.900 (15 %) | 1.000 (16 %)"
    assert row == f"| `table1/dllp+plot/16` | 6.200 | {shares} |"


# --- figures


def test_the_band_of_a_curve_is_from_the_lowest_to_the_highest_seed(tmp_path):
    for seed, values in {1: (10.0, 50.0, 90.0), 2: (30.0, 20.0, 80.0), 3: (20.0, 80.0, 85.0)}.items():
        log = [{"epoch": epoch, "test_accuracy": value} for epoch, value in enumerate(values, 1)]
        write_run(tmp_path, "table1/dllp/16", seed, epochs=3, log=log)
    (panel,) = curves_figure(collect(tmp_path)).axes
    (band,), (line,) = panel.collections, panel.lines
    edge = band.get_paths()[0].vertices.tolist()
    assert {epoch: {y for x, y in edge if x == epoch} for epoch in (1, 2, 3)} == {
        1: {10.0, 30.0}, 2: {20.0, 80.0}, 3: {80.0, 90.0},
    }  # fmt: skip
    assert line.get_ydata().tolist() == [20.0, 50.0, 85.0]
    with pytest.raises(RunError, match="test_accuracy"):
        curves_figure(collect(tmp_path), "nonsense")


def second_stage_log(*curves: str, epochs: int = 7) -> list[dict]:
    """A log whose first curve is 10, 11, …, the second 20, 21, …, after one epoch without labels."""
    log = [log_line(epoch, 50.0) for epoch in range(1, epochs + 2)]
    del log[0]["label_accuracy"]
    for i, line in enumerate(log[1:]):
        line["label_accuracy"] = {name: 10.0 * number + i for number, name in enumerate(curves, 1)}
    return log


def drawn(figure) -> dict[str, list[float]]:
    """The values of each line by its legend."""
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.get_legend().texts] == [
        line.get_label() for line in panel.lines
    ]
    for line in panel.lines:
        assert len(line.get_xdata()) == 0 or list(line.get_xdata()) == [2, 3, 4, 5, 6, 7, 8]
    return {line.get_label(): list(line.get_ydata()) for line in panel.lines}


def rising(first: float) -> list[float]:
    return [first + i for i in range(7)]


def test_figure_3_draws_each_quantity_under_its_own_name(tmp_path):
    log = second_stage_log("predicted", "labels", "mean", "fresh_labels", "fresh_mean")
    write_run(tmp_path, "table1/dllp+plot/64", epochs=8, log=log)
    assert drawn(labels_figure(collect(tmp_path)["table1/dllp+plot/64"])) == {
        "TD: the student's predictions": rising(10.0),
        "TD_OT: the same with transport": rising(40.0),
        "TD_OT_5: mean of the last five TD_OT": rising(50.0),
        "labels that the student learns": rising(30.0),
    }
    write_run(tmp_path, "table1/dllp/64", log=[{"epoch": 1, "test_accuracy": 1.0}])
    with pytest.raises(RunError):
        labels_figure(collect(tmp_path)["table1/dllp/64"])


def test_figure_3_of_an_old_run_takes_labels_of_a_moving_average_for_nothing_else(tmp_path):
    log = second_stage_log("predicted", "labels", "mean")
    name = "table1/dllp+plot/64"
    folder = write_run(tmp_path, name, epochs=8, log=log)
    recipe = json.loads((folder / "recipe.json").read_text())
    for change in ({"ema": 0.9}, {"labels": "soft"}, {"labels": "predicted"}, {"ema": None}):
        (folder / "recipe.json").write_text(json.dumps(recipe | {"second": recipe["second"] | change}))
        assert drawn(labels_figure(collect(tmp_path)[name])) == {
            "TD: the student's predictions": rising(10.0),
            "labels that the student learns": rising(30.0),
            "TD_OT and TD_OT_5: not in the log of this run": [],
        }


def test_figure_3_of_an_old_run_whose_student_learned_td_ot_5_has_all_curves(tmp_path):
    """Its mean has labels of the teacher in it before the fifth round."""
    log = second_stage_log("predicted", "labels", "mean")
    name = "table1/dllp+plot/64"
    folder = write_run(tmp_path, name, epochs=8, log=log)
    found = drawn(labels_figure(collect(tmp_path)[name]))
    assert found["TD_OT: the same with transport"] == rising(20.0)
    mean = found["TD_OT_5: mean of the last five TD_OT"]
    assert all(map(math.isnan, mean[:4]))
    assert mean[4:] == [34.0, 35.0, 36.0]
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["second"]["memory"] = 3
    (folder / "recipe.json").write_text(json.dumps(recipe))
    found = drawn(labels_figure(collect(tmp_path)[name]))
    assert "TD_OT: the same with transport" in found
    assert "TD_OT_5: mean of the last five TD_OT" not in found


def test_a_confusion_figure_has_rows_in_percent(tmp_path):
    folder = write_run(tmp_path, "g/dllp/16", k=2)
    change_result(folder, confusion=[[8, 2], [1, 9]])
    (panel,) = confusion_figure(collect(tmp_path)["g/dllp/16"]).axes
    assert panel.images[0].get_array().tolist() == [[80.0, 20.0], [10.0, 90.0]]
    change_result(folder, confusion=[])
    with pytest.raises(RunError):
        confusion_figure(collect(tmp_path)["g/dllp/16"])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_is_the_same_bytes(tmp_path, suffix):
    write_run(tmp_path, "g/dllp+plot/16", epochs=3)
    contents = []
    for _ in range(2):
        save_figure(labels_figure(collect(tmp_path)["g/dllp+plot/16"]), tmp_path / f"figure{suffix}")
        contents.append((tmp_path / f"figure{suffix}").read_bytes())
    assert contents[0] == contents[1]
    with pytest.raises(RunError):
        save_figure(labels_figure(collect(tmp_path)["g/dllp+plot/16"]), tmp_path / "figure.doc")


# --- the page


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def thirty(tmp_path_factory):
    """Thirty runs of a hundred epochs, and their page."""
    root = tmp_path_factory.mktemp("thirty")
    for i in range(10):
        for seed in (1, 2, 3):
            write_run(root, f"table1/{'dllp+plot' if i % 2 else 'dllp'}/{2**i}", seed, epochs=100)
    return root, html_page(root)


def test_a_page_of_thirty_runs_is_small_and_loads_nothing(thirty):
    _, page = thirty
    data = data_of(page)
    assert len(data["runs"]) == 30
    assert len(page.encode()) - sum(len(sprite["url"]) for sprite in data["sprites"].values()) < 4_000_000
    assert "default-src 'none'" in page.split("<script")[0]
    own = page.split('<script type="application/json"')[0]
    assert not re.search(r"<(link|img|iframe|script)[^>]+(src|href)=", own)


def test_text_from_folders_is_escaped(thirty, tmp_path):
    _, page = thirty
    assert SCRIPT not in page
    assert data_of(page)["runs"][0]["sample"]["classes"][0] == SCRIPT
    write_run(tmp_path, "<b>bold<b>/dllp/16")
    page = html_page(tmp_path)
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold&lt;b&gt;" in page
    nasty = {"a": "</script><!--&\u2028"}
    assert not set(script_json(nasty)) & set("<>&\u2028")
    assert json.loads(script_json(nasty)) == nasty


def test_a_row_has_the_mean_of_the_last_epochs(thirty):
    root, page = thirty
    row = re.search(r'<tr data-cell="table1/dllp/16">(.*?)</tr>', page, re.S)[1]
    numbers = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    cell = collect(root)["table1/dllp/16"]
    assert numbers[:2] == ["DLLP", "16"]
    assert numbers[2] == f"{cell.mean('test_accuracy', 'last'):.2f}"
    assert numbers[4:6] == ["1, 2, 3", f"{cell.mean('test_accuracy', 'oracle'):.2f}"]


def unpack(text: str) -> list[int]:
    return np.frombuffer(base64.b64decode(text), "<u2").tolist()


def test_a_sample_reaches_the_page_unchanged(thirty):
    root, page = thirty
    run = next(run for run in data_of(page)["runs"] if run["name"] == "table1/dllp+plot/2/seed=1")
    sample = sample_of(100, plot=True, seed=1)
    assert unpack(run["sample"]["truth"]) == sample.truth.tolist()
    assert [line["epoch"] for line in run["sample"]["epochs"]] == sample.epoch.tolist()
    line = run["sample"]["epochs"][3]
    assert unpack(line["predicted"]) == sample.predicted[3].tolist()
    assert unpack(line["labels"]) == sample.labels[3].tolist()
    assert unpack(line["shares"]) == sample.predicted_share[3].ravel().tolist()
    assert run["sample"]["calibration"] == sample.calibration.tolist()


def test_runs_without_a_sample_are_shown_without_bags(tmp_path):
    write_run(tmp_path, "g/dllp/16", with_sample=False)
    run = data_of(html_page(tmp_path))["runs"][0]
    assert "sample" not in run
    assert run["confusion"]["full"]


def test_the_page_begins_with_the_best_of_each_group_and_the_largest_group(tmp_path):
    for name, last in (("a/dllp/16", 90.0), ("b/dllp/16", 80.0), ("b/llp_vat/16", 85.0)):
        write_run(tmp_path, name, 1, last)
    page = html_page(tmp_path)
    groups = [(each["name"], each["recipes"], each["best"], each["mean"]) for each in data_of(page)["groups"]]
    assert groups == [("b", 2, "b/llp_vat/16", 85.0), ("a", 1, "a/dllp/16", 90.0)]
    assert data_of(page)["summary"] == "3 runs of 3 recipes in 2 groups."
    assert page.index("3 runs of 3 recipes") < page.index("data-cell=")


def test_samples_beyond_the_limit_of_a_page_are_left_out(tmp_path, monkeypatch):
    for seed in (1, 2, 3):
        write_run(tmp_path, "g/dllp/16", seed, epochs=3)
    size = len(json.dumps(data_of(html_page(tmp_path))["runs"][0]["sample"]))
    monkeypatch.setattr("apportion.report.page.SAMPLE_BYTES", 2.5 * size)
    assert ["sample" in run for run in data_of(html_page(tmp_path))["runs"]] == [True, True, False]


@pytest.mark.parametrize("page", ["page", "model"])
def test_charts_are_vega_lite(page):
    import vl_convert

    from apportion.report.page import TEMPLATE

    for chart in json.loads((TEMPLATE / f"{page}.json").read_text("utf-8")).values():
        chart |= {"data": {"name": "rows"}, "width": 300, "datasets": {"rows": [], "diagonal": []}}
        chart["$schema"] = "https://vega.github.io/schema/vega-lite/v6.json"
        assert vl_convert.vegalite_to_vega(chart)["marks"]


def test_the_command_starts_from_the_recipe_with_the_fewest_differences():
    recipe = change_recipe(RECIPES["digits/llp_vat+plot/16"], {"data.name": "blobs", "second.mixup": "0.4"})
    command = run_command("mine/llp_vat+plot/16", json.loads(to_json(recipe)), {"imports": {"sharp": "ab"}})
    assert command == (
        "apportion run digits/llp_vat+plot/16 --seeds 1 --name mine/llp_vat+plot/16 --import sharp "
        "--set data.name=blobs --set second.mixup=0.4"
    )
    larger = change_recipe(RECIPES["digits/dllp/16"], {"data.bag_size": "32"})
    command = run_command("mine/dllp/32", json.loads(to_json(larger)))
    assert command.startswith("apportion run digits/dllp/16 --seeds 1")  # and not digits/supervised/1


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        (
            "digits/llp_vat+plot/16",
            change_recipe(
                RECIPES["digits/llp_vat+plot/16"],
                {"second.mixup": "0.4", "first.schedule": "flat_then_linear", "seed": "7"},
            ),
        ),
        ("digits/dllp+plot/16", replace(RECIPES["digits/dllp+plot/16"], second=None)),
        ("my own/name", RECIPES["digits/llp_gan/16"]),
        ("my own/name", RECIPES["figure4/soft-1/16"]),
    ],
)
def test_the_command_repeats_the_run(name, recipe):
    words = shlex.split(run_command(name, json.loads(to_json(recipe))))
    assert words[:2] == ["apportion", "run"]
    assert words[3:5] == ["--seeds", str(recipe.seed)]
    settings = parse_settings([after for word, after in pairwise(words) if word == "--set"])
    assert replace(change_recipe(RECIPES[words[2]], settings), seed=recipe.seed) == recipe


def test_thumbnails_are_drawn_if_the_data_set_is_found(thirty, tmp_path):
    assert data_of(thirty[1])["sprites"]
    write_run(tmp_path, "g/dllp/16")
    assert data_of(html_page(tmp_path, thumbnails=False))["sprites"] == {}
    write_run(tmp_path / "other", "g/dllp/16", data="cifar10")
    data = data_of(html_page(tmp_path / "other", data=tmp_path))
    assert data["sprites"] == {}
    assert data["runs"][0]["picture"] is None


def test_a_sprite_has_its_images_in_order():
    from PIL import Image

    images = np.arange(30, dtype=np.uint8).reshape(30, 1, 1, 1).repeat(8, 1).repeat(8, 2)
    sprite = draw_sprite(images)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sprite["url"].split(",")[1]))))
    for i in range(30):
        top, left = i // sprite["columns"] * 8, i % sprite["columns"] * 8
        assert (picture[top : top + 8, left : left + 8] == i).all()


def test_a_large_confusion_matrix_keeps_its_diagonal_and_its_largest_entries():
    matrix = np.diag(np.arange(20))
    matrix[3, 7], matrix[5, 2] = 4, 9
    found = sparse_confusion(matrix.tolist())
    assert found["pairs"] == [(5, 2, 9), (3, 7, 4)]
    assert found["right"] == list(range(20))
    assert found["of"] == matrix.sum(1).tolist()


def test_a_quantity_that_a_line_lacks_is_a_gap():
    log = [{"epoch": 1, "a": {"b": float("nan")}}, {"epoch": 2, "a": {"b": 2.0}}]
    assert log_curves(log) == {"a.b": [None, 2.0]}


# --- folders from strangers


def hostile_files() -> dict[str, list[str]]:
    result = result_of(90.0)
    line = log_line(1, 90.0)
    results = [
        {"test_accuracy": {"last": float("nan"), "oracle": 1.0}},
        {"test_accuracy": {"last": 1e308, "oracle": 1.0}},
        {"test_accuracy": {"oracle": 1.0}},
        {"epochs": 10**400},
        {"seconds": {"train": float("inf")}},
        {"seconds": {}},
        {"confusion": [[1, 2], [3]]},
        {"confusion": []},
        {"train": {"proportion_error": 1.0, "entropy": 1.0, "label_accuracy": {}}},
    ]
    lines = [
        {"terms": []},
        {"terms": {"a": "b"}},
        {"seconds": {"train": None}},
        {"epoch": None},
        {"test_accuracy": float("nan")},
        {"label_accuracy": {}},
        {"proportion_error": "x"},
        {"other": 10**400},
        {"terms": {"\x1b[2J": 1.0}},
    ]
    recipe = to_json(RECIPES["figure2/dllp/50"])
    return {
        "result.json": [json.dumps(result | change) for change in results],
        "where.json": ["{}", "[]", '{"device": 1e999, "commit": NaN}', '{"device": ["x"], "torch": {}}'],
        "recipe.json": [
            "{}", "[]", '{"first": []}', '{"seed": -1, "data": {"name": []}}', '{"first": {"epochs": 1e999}}',
            '{"first": {"x": "\\ud800"}}', recipe.replace('"seed": 1', '"seed": NaN'), "[" * 100_000,
            recipe.replace('"moons"', '"no such set"'),
        ],
        "log.jsonl": [json.dumps(line | change) + "\n" for change in lines]
        + ["", "\n", "{" * 100_000 + "\n", '{"epoch": 1, "test_accuracy": 1.0}\n'],
        "sample.npz": ["", "PK\x03\x04", "x" * 10_000],
    }  # fmt: skip


def outcome(*words: str) -> BaseException | None:
    """What a command fails with; it may print no terminal escape."""
    result = CliRunner().invoke(app, list(words))
    assert "\x1b" not in result.output
    return result.exception


@pytest.mark.parametrize("name", hostile_files())
def test_nothing_but_a_short_error_comes_of_a_hostile_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for i, text in enumerate(hostile_files()[name]):
        root = Path(f"runs-{i}")
        folder = write_run(root, "figure2/dllp+plot/50", k=2, data="moons")
        (folder / name).write_text(text)
        commands = [
            ("report", str(root), "--md", "runs.md"),
            ("report", str(root), "--html", "page.html", "--no-thumbnails"),
        ]
        if name in ("recipe.json", "result.json", "log.jsonl"):
            commands += [("figure", kind, str(root), "--out", f"{kind}.svg") for kind in ("curves", "labels")]
            commands.append(("figure", "confusion", str(root), "--out", "confusion.svg"))
        for words in commands:
            problem = outcome(*words)
            assert problem is None or isinstance(problem, RunError), (text[:80], words, repr(problem))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") or "partial" in path.name]


def test_a_missing_number_is_an_error_that_names_its_file(tmp_path):
    folder = write_run(tmp_path, "g/dllp/16")
    change_result(folder, train={"label_accuracy": {"argmax": 1.0}})
    (cell,) = collect(tmp_path).values()
    with pytest.raises(RunError, match=r"result\.json"):
        cell.mean("train", "label_accuracy", "exact")


def test_folders_of_any_depth_are_reported(tmp_path):
    write_run(tmp_path, "mine/16")
    write_run(tmp_path, "a/b/c/table1/dllp/16")
    page = runs_page(tmp_path)
    assert "`mine/16`" in page
    assert "`a/b/c/table1/dllp/16`" in page


def test_logs_may_differ_in_length(tmp_path):
    for seed, epochs in ((1, 3), (2, 2)):
        folder = write_run(tmp_path, "g/dllp/16", seed, epochs=3)
        write_log(folder, [log_line(epoch, 50.0, plot=False) for epoch in range(1, epochs + 1)])
    (panel,) = curves_figure(collect(tmp_path)).axes
    assert len(panel.lines[0].get_ydata()) == 2
