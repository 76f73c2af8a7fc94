"""Reports: from run folders to tables and figures, and nothing else."""

import json
from pathlib import Path

import pytest
from run_folders import FILES, write_run
from typer.testing import CliRunner

from apportion import runs
from apportion.cli import app
from apportion.report.beyond import CIFAR_10, CIFAR_100, PUBLISHED, beyond_figure, beyond_table
from apportion.report.claims import claims
from apportion.report.collect import Cell, collect, same_seeds, spread
from apportion.report.curves import curves_figure
from apportion.report.figures import figure_3, figure_4, save
from apportion.report.page import results_page
from apportion.report.profile import profile_table
from apportion.report.tables import (
    ablation_table,
    accuracy_table,
    beside,
    held_out_table,
    other_table,
    own_table,
    run_table,
)


def make_run(root, name, seed, last, finished=True):
    folder = root / name / f"seed={seed}"
    folder.mkdir(parents=True)
    line = {
        "epoch": 1,
        "test_accuracy": last,
        "label_accuracy": {"predicted": 1.0, "labels": 2.0, "mean": 3.0},
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
    }
    (folder / "recipe.json").write_text("{}")
    (folder / "where.json").write_text(json.dumps({"device": "cpu: x", "torch": "2", "commit": "abcdef"}))
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    result = {
        "test_accuracy": {"last": last, "oracle": last + 1, "oracle_epoch": 1},
        "epochs": 1,
        "train": {
            "proportion_error": 5.0,
            "entropy": 0.5,
            "label_accuracy": {"argmax": 1.0, "exact": 2.0, "entropic_plan": 3.0, "relaxed": 4.0},
        },
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
    }
    if finished:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_cell_is_the_mean_and_sample_deviation_of_its_finished_seeds(tmp_path):
    for seed, last in ((1, 90.0), (2, 92.0), (10, 94.0)):
        make_run(tmp_path, "table1/dllp/16", seed, last)
    make_run(tmp_path, "table1/dllp/16", 3, 0.0, finished=False)
    make_run(tmp_path, "table1/dllp/16", "4 copy", 0.0)
    cell = collect(tmp_path)["table1/dllp/16"]
    assert cell.numbers("test_accuracy", "last") == [90.0, 92.0, 94.0]
    assert spread(cell.numbers("test_accuracy", "last")) == "92.00 (2.00, 3)"
    assert cell.seconds() == 13.0


def test_cells_are_in_the_order_of_their_bag_sizes(tmp_path):
    for name in ("table1/dllp/128", "table1/dllp/16", "table1/a+b/64", "digits/dllp/7"):
        make_run(tmp_path, name, 1, 90.0)
    assert list(collect(tmp_path)) == ["digits/dllp/7", "table1/a+b/64", "table1/dllp/16", "table1/dllp/128"]


def test_ours_stands_beside_the_papers_number_with_the_difference(tmp_path):
    make_run(tmp_path, "table1/dllp/16", 1, 88.69)
    cells = collect(tmp_path)
    assert beside(cells["table1/dllp/16"], 87.69) == "**88.69 (–, 1)** / 87.69 / +1.00"
    assert beside(None, 87.69) == "– / 87.69"
    rows = accuracy_table(cells, "table1").splitlines()
    assert rows[2].startswith("| DLLP | **88.69 (–, 1)** / 87.69 / +1.00 | – / 82.88 |")


def test_the_papers_own_setting_stands_beside_its_numbers_with_what_became_of_the_labels(tmp_path):
    assert other_table(collect(tmp_path), "table1", "table1-paper") == ""
    make_run(tmp_path, "table1-paper/dllp/16", 1, 87.69)
    folder = make_run(tmp_path, "table1-paper/dllp+plot/64", 1, 69.69)
    line = runs.read_log(folder)[0]
    log = [line | {"epoch": i, "label_accuracy": {"labels": n}} for i, n in enumerate((76.5, 74.0, 72.25), 1)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    assert other_table(collect(tmp_path), "table1", "table1-paper").splitlines()[2:] == [
        "| DLLP | **87.69 (–, 1)** / 87.69 / +0.00 | – / 82.88 | – / 71.11 | – / 46.68 |",
        "| DLLP + PLOT | – / 90.01 | – / 86.87 | **69.69 (–, 1)** / 79.69 / -10.00 | – / 55.21 |",
        "| DLLP + PLOT: labels right, first → last | – | – | 76.50 → 72.25 | – |",
    ]


def test_a_table_in_another_setting_follows_the_table_on_the_page(tmp_path):
    for group in ("table2", "table2-long", "table2-muon"):
        make_run(tmp_path, f"{group}/vat/64", 1, 50.0)
    make_run(tmp_path, "table2-muon-both/vat+plot/64", 1, 60.0)
    make_run(tmp_path, "table1-paper/dllp/16", 1, 50.0)
    page = results_page(tmp_path, tmp_path / "page.md")
    parts = ("In the paper's own", "## Table 2", "With longer first", "With Muon", "Both stages by Muon")
    places = [page.index(said) for said in parts]
    assert [*places, page.index("## Runs")] == sorted([*places, page.index("## Runs")])
    longer, both = places[2], places[4]
    assert "| LLP-VAT + PLOT | – / 65.39 | – / 62.01 | **60.00 (–, 1)** / 52.75 / +7.25 |" in page[both:]
    assert "| LLP-VAT | – / 65.21 | – / 58.65 | **50.00 (–, 1)** / 45.53 / +4.47 |" in page[longer:]
    assert page.count("In the paper's own setting") == page.count("With longer first stages") == 1


def test_a_group_without_numbers_of_the_paper_has_a_table_of_its_own(tmp_path):
    assert own_table(collect(tmp_path), "mnist") == ""
    make_run(tmp_path, "mnist/dllp+plot/32", 1, 98.5)
    assert own_table(collect(tmp_path), "mnist").splitlines()[2:] == [
        "| DLLP + PLOT | – | 98.50 (–, 1) | – | – |"
    ]
    make_run(tmp_path, "beyond-mnist/two-views/128", 1, 99.5)
    make_run(tmp_path, "beyond-mnist-argmax/two-views/128", 1, 99.25)
    make_run(tmp_path, "beyond-mnist/two-views+plot/128", 1, 99.75)
    assert own_table(collect(tmp_path), "mnist").splitlines()[3:] == [
        "| two views, ResNet-9 of width 8 | – | – | – | 99.50 (–, 1) |",
        "| the same, + PLOT | – | – | – | 99.75 (–, 1) |",
        "| the same, argmax labels | – | – | – | 99.25 (–, 1) |",
    ]
    make_run(tmp_path, "beyond-mnist/two-views/1024", 1, 99.0)
    table = own_table(collect(tmp_path), "mnist").splitlines()
    assert table[0] == "|  | bags of 16 | bags of 32 | bags of 64 | bags of 128 | bags of 1024 |"
    assert table[3] == "| two views, ResNet-9 of width 8 | – | – | – | 99.50 (–, 1) | 99.00 (–, 1) |"


def test_a_figure_without_its_runs_is_not_drawn(tmp_path):
    assert figure_3(collect(tmp_path)) is None
    assert figure_4(collect(tmp_path)) is None


def test_a_method_has_one_color_at_every_bag_size(tmp_path):
    for name in ("table1/dllp/16", "beyond-conv13/two-views/16"):
        make_run(tmp_path, name, 1, 90.0)
    for size in (16, 32):
        make_run(tmp_path, f"beyond-resnet9/two-views/{size}", 1, 95.0)
    drawn = [
        {line.get_label(): line.get_color() for line in panel.lines}
        for panel in beyond_figure(collect(tmp_path), CIFAR_10, {}).axes
    ]
    assert [len(lines) for lines in drawn] == [3, 1]
    assert drawn[0]["two views, ResNet-9"] == drawn[1]["two views, ResNet-9"]


def test_no_two_methods_share_a_color(tmp_path):
    second = {f"{group}/{method}/16" for group, method, _ in CIFAR_10.values()}
    for name in second | {name.replace("+plot", "") for name in second}:
        make_run(tmp_path, name, 1, 90.0)
    (panel,) = beyond_figure(collect(tmp_path), CIFAR_10, {}).axes
    assert len({line.get_color() for line in panel.lines}) == len(panel.lines) == len(CIFAR_10)


def test_the_figure_has_a_panel_a_size_four_across_down_to_the_lowest_end(tmp_path):
    for size, accuracy in ((16, 95.0), (32, 94.0), (64, 93.0), (128, 92.0), (256, 50.0)):
        make_run(tmp_path, f"beyond-resnet9/two-views/{size}", 1, accuracy)
    panels = beyond_figure(collect(tmp_path), CIFAR_10, {}).axes
    assert [panel.get_title() for panel in panels] == [f"bags of {n}" for n in (16, 32, 64, 128, 256)]
    assert {panel.get_ylim() for panel in panels} == {(35.0, 97.5)}
    places = [panel.get_subplotspec().get_geometry() for panel in panels]
    assert places == [(2, 4, i, i) for i in range(5)]


def test_the_figure_has_the_best_published_where_there_is_one_and_halving_an_error_is_one_step(tmp_path):
    for size in (16, 512):
        make_run(tmp_path, f"beyond-resnet9/two-views/{size}", 1, 90.0)
    figure = beyond_figure(collect(tmp_path), CIFAR_10, PUBLISHED)
    curve, best = figure.axes[0].lines
    assert list(best.get_ydata()) == [PUBLISHED[16]] * 2
    assert len(figure.axes[1].lines) == 1
    assert [text.get_text() for text in figure.legends[0].texts] == [curve.get_label(), "published best"]
    for panel in figure.axes:
        low, middle, high = panel.transData.transform([(0, 80), (0, 90), (0, 95)])[:, 1]
        assert middle - low == pytest.approx(high - middle)


def test_beyond_the_paper_a_second_stage_counts_the_seconds_of_its_first_and_needs_it(tmp_path):
    assert beyond_table(collect(tmp_path), CIFAR_10, PUBLISHED) == ""
    assert beyond_figure(collect(tmp_path), CIFAR_10, PUBLISHED) is None
    make_run(tmp_path, "beyond-conv13/two-views+plot/64", 1, 93.0)
    assert beyond_table(collect(tmp_path), CIFAR_10, PUBLISHED) == ""
    make_run(tmp_path, "beyond-conv13/two-views/64", 1, 91.0)
    cells = collect(tmp_path)
    one = cells["beyond-conv13/two-views/64"].seconds()
    rows = beyond_table(cells, CIFAR_10, PUBLISHED).splitlines()
    assert rows[0] == "|  | bags of 64 |"
    assert rows[2:] == [
        f"| two views | **91.00 (–, 1)**, {one:.0f} s |",
        f"| two views + PLOT | **93.00 (–, 1)**, {2 * one:.0f} s |",
        "| published best | 94.58 |",
    ]
    (panel,) = beyond_figure(cells, CIFAR_10, {}).axes
    first, second = (line.get_xdata() for line in panel.lines)
    assert first[-1] == pytest.approx(one)
    assert second[-1] == pytest.approx(2 * one)


def test_beyond_the_paper_cifar_100_has_its_own_table_without_a_published_best(tmp_path):
    make_run(tmp_path, "table2/dllp/64", 1, 42.0)
    assert beyond_table(collect(tmp_path), CIFAR_100, {}) == ""
    make_run(tmp_path, "beyond-resnet9-cifar100/two-views/64", 1, 74.0)
    rows = beyond_table(collect(tmp_path), CIFAR_100, {}).splitlines()
    assert [row.split("**")[0] for row in rows[2:]] == ["| DLLP | ", "| two views, ResNet-9 | "]


def test_the_same_figure_is_the_same_bytes(tmp_path):
    make_run(tmp_path, "table1/dllp+plot/64", 1, 80.0)
    make_run(tmp_path, "figure4/soft-10/64", 1, 79.0)
    cells = collect(tmp_path)
    for figure in (figure_3, figure_4):
        once = [path.read_bytes() for path in save(figure(cells), tmp_path / "a")]
        again = [path.read_bytes() for path in save(figure(cells), tmp_path / "a")]
        assert once == again


def test_the_epoch_that_held_out_bags_choose_stands_between_the_last_and_the_oracle(tmp_path):
    make_run(tmp_path, "table1/dllp/16", 1, 88.0)
    assert held_out_table(collect(tmp_path)) == ""
    folder = make_run(tmp_path, "table1-held-out/dllp/16", 1, 87.0)
    result = json.loads((folder / "result.json").read_text())
    result["test_accuracy"] |= {"held_out": 87.5, "held_out_epoch": 1}
    (folder / "result.json").write_text(json.dumps(result))
    row = held_out_table(collect(tmp_path)).splitlines()[2:]
    assert row == ["| `table1-held-out/dllp/16` | 87.00 (–, 1) | 87.50 (–, 1) | 88.00 (–, 1) |"]


def test_the_table_of_runs_has_a_column_for_each_number_of_a_result(tmp_path):
    for seed, last, best in ((1, 88.0, 91.0), (2, 90.0, 94.0)):
        folder = make_run(tmp_path, "table1/dllp/16", seed, last)
        result = json.loads((folder / "result.json").read_text()) | {"epochs": 40}
        result["test_accuracy"]["oracle"] = best
        result["seconds"] = {"train": 100.0, "label": 20.0, "evaluate": 3.0}
        (folder / "result.json").write_text(json.dumps(result))
    make_run(tmp_path, "table2/dllp/16", 1, 70.0)
    assert run_table(collect(tmp_path), "table1").splitlines()[2:] == [
        "| `table1/dllp/16` | 89.00 (1.41, 2) | 92.50 | 40 | 123 | 20 | 3 |",
    ]


def test_the_band_of_a_curve_is_from_the_least_to_the_most_of_its_seeds_at_each_epoch(tmp_path):
    seeds = {1: (10.0, 50.0, 90.0), 2: (30.0, 20.0, 80.0), 3: (20.0, 80.0, 85.0)}
    for seed, values in seeds.items():
        folder = make_run(tmp_path, "table1/dllp/16", seed, values[-1])
        log = [{"epoch": epoch, "test_accuracy": value} for epoch, value in enumerate(values, 1)]
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (panel,) = curves_figure(collect(tmp_path)).axes
    (band,), (line,) = panel.collections, panel.lines
    edge = band.get_paths()[0].vertices.tolist()
    ends = {epoch: {y for x, y in edge if x == epoch} for epoch in (1, 2, 3)}
    assert ends == {1: {10.0, 30.0}, 2: {20.0, 80.0}, 3: {80.0, 90.0}}
    assert line.get_ydata().tolist() == [20.0, 50.0, 85.0]


def test_the_command_writes_a_page_from_folders_alone(tmp_path):
    make_run(tmp_path / "results", "table1/dllp/64", 1, 78.5)
    page = tmp_path / "docs" / "results.md"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--md", str(page)])
    assert done.exit_code == 0
    assert "| baseline: DLLP | **78.50 (–, 1)** / 71.11 / +7.39 |" in page.read_text()
    assert "cpu: x, torch 2, commit abcdef (1 runs)" in page.read_text()


def test_a_run_of_an_installed_package_has_no_commit_to_name(tmp_path):
    folder = make_run(tmp_path, "table1/dllp/64", 1, 78.5)
    (folder / "where.json").write_text(json.dumps({"device": "cpu: x", "torch": "2", "commit": None}))
    assert "Made on: cpu: x, torch 2 (1 runs)." in results_page(tmp_path, tmp_path / "page.md")


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    folder = make_run(tmp_path / "results", "table1/dllp/64", 1, 78.5)
    (folder / "result.json").unlink()
    for option in ("--md", "--html"):
        words = ["report", str(tmp_path / "results"), option, str(tmp_path / "page")]
        with pytest.raises(RuntimeError, match=r"no run below .*results is finished \(1 are not\): pass"):
            CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "page").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="is not a folder; pass the folder that holds the runs"):
        CliRunner().invoke(
            app, ["report", str(tmp_path / "no"), "--md", str(tmp_path / "x.md")], catch_exceptions=False
        )


def test_a_claim_is_judged_by_the_runs_and_left_out_without_them(tmp_path):
    for size, first, second in ((16, 90, 91), (32, 80, 82), (64, 70, 74), (128, 60, 66)):
        make_run(tmp_path, f"table1/dllp/{size}", 1, first)
        make_run(tmp_path, f"table1/dllp+plot/{size}", 1, second)
    make_run(tmp_path, "table1/supervised+plot/1", 1, 92.5)
    make_run(tmp_path, "figure4/soft-10/64", 1, 73.5)
    said = claims(collect(tmp_path)).splitlines()
    assert "- *It gains most at 64 and 128 (after DLLP).* **Holds**: +1.00 / +2.00 / +4.00 / +6.00." in said
    assert any(
        "similar to supervised" in line and "Does not hold" in line and "92.50" in line for line in said
    )
    assert any("λ = 10" in line and "Holds" in line for line in said)
    assert any("Relaxed labels" in line and "Does not hold" in line for line in said)
    assert not any("ablation" in line or "λ = 1," in line for line in said)
    assert claims({}) == ""


def test_what_starts_from_one_teacher_is_compared_by_the_seeds_that_all_have(tmp_path):
    for seed, hard in ((1, 80.0), (2, 90.0)):
        make_run(tmp_path, "table1/dllp+plot/64", seed, hard)
    make_run(tmp_path, "figure4/soft-10/64", 2, 89.5)
    make_run(tmp_path, "table3/ce/64", 1, 70.0)
    cells = collect(tmp_path)
    assert "bags of 64: hard 90.00, soft 89.50 (seed=2)" in claims(cells)
    assert "| CE + OT + mixup | **80.00 (–, 1)** / 84.39 / -4.39 |" in ablation_table(cells)
    assert [panel.get_title() for panel in figure_4(cells).axes][2] == "bags of 64, seed=2"
    assert list(same_seeds(cells, ["table3/ce/64", "figure4/soft-10/64"])) == ["table3/ce/64"]
    names = ["figure4/soft-10/64", "table1/dllp+plot/64", "table3/ce/64"]
    assert {name: len(cell.folders) for name, cell in same_seeds(cells, names).items()} == dict.fromkeys(
        names[:2], 1
    )
    assert same_seeds(cells, ["table3/sce/64"]) == {}


def test_a_gain_is_over_the_students_own_teacher(tmp_path):
    for size in (16, 32, 64, 128):
        make_run(tmp_path, f"table1/dllp/{size}", 1, 60.0)
        make_run(tmp_path, f"table1/dllp/{size}", 2, 70.0)
        make_run(tmp_path, f"table1/dllp+plot/{size}", 1, 61.0)
    assert "*PLOT gains at every bag size (after DLLP).* **Holds**: +1.00 / +1.00" in claims(
        collect(tmp_path)
    )


def test_a_claim_that_our_numbers_contradict_does_not_hold(tmp_path):
    for size, first in ((16, 60), (32, 70), (64, 80), (128, 90)):
        make_run(tmp_path, f"table1/dllp/{size}", 1, first)
        make_run(tmp_path, f"table1/dllp+plot/{size}", 1, first - 1)
    said = claims(collect(tmp_path))
    assert "*Accuracy falls with the bag size (DLLP).* **Does not hold**" in said
    assert "*PLOT gains at every bag size (after DLLP).* **Does not hold**: -1.00" in said


GOOD = {
    "table1/dllp": (88.0, 80.0, 70.0, 50.0), "table1/dllp+plot": (90.0, 83.0, 78.0, 60.0),
    "table1/vat": (88.5, 81.0, 70.5, 51.0), "table1/vat+plot": (89.0, 82.0, 80.0, 63.0),
    "table1/gan": (89.0, 81.5, 77.0, 68.0), "table1/gan+plot": (91.0, 84.0, 84.0, 79.0),
    "table2/dllp": (60.0, 50.0, 40.0, 20.0),
}  # fmt: skip
ALONE = {
    "table1/supervised+plot/1": 91.0, "table1/supervised/1": 90.5,
    "table3/ce/64": 72.0, "table3/sce/64": 74.0,
    "table3/ce+ot/64": 75.0, "table3/sce+ot/64": 76.0, "figure4/soft-1/64": 77.5, "figure4/soft-10/64": 78.9,
}  # fmt: skip


def numbers_for_every_claim() -> dict[str, dict]:
    """Results of which every claim holds, none by much."""
    last = {f"{m}/{s}": v for m, row in GOOD.items() for s, v in zip((16, 32, 64, 128), row, strict=True)}
    found: dict[str, dict] = {name: {"last": value} for name, value in (last | ALONE).items()}
    for name, each in found.items():
        each |= {"exact": 90.0, "relaxed": 89.0, "argmax": 86.0 if name.startswith("table2") else 87.0}
        each |= {"proportion_error": 5.0 + name.endswith("128"), "entropy": 0.2 + name.endswith("128")}
    return found


def judged(found: dict[str, dict], table: str) -> list[str]:
    cells = {}
    for name, each in found.items():
        train = {key: each[key] for key in ("proportion_error", "entropy")}
        train["label_accuracy"] = {key: each[key] for key in ("exact", "relaxed", "argmax")}
        result = {"test_accuracy": {"last": each["last"]}, "train": train}
        cells[name] = Cell(name, (Path(name) / "seed=1",), (result,))
    return claims(cells, table).splitlines()


@pytest.mark.parametrize(
    ("words", "cell", "quantity", "value"),
    [
        ("Accuracy falls with the bag size (DLLP).", "table1/dllp/32", "last", 88.5),
        ("Accuracy falls with the bag size (DLLP + PLOT).", "table1/dllp+plot/32", "last", 90.5),
        ("PLOT gains at every bag size (after DLLP).", "table1/dllp+plot/16", "last", 87.9),
        ("It gains most at 64 and 128 (after DLLP).", "table1/dllp+plot/16", "last", 96.5),
        ("PLOT gains at every bag size (after LLP-VAT).", "table1/vat+plot/64", "last", 20.0),
        ("Accuracy falls with the bag size (LLP-VAT).", "table1/vat/32", "last", 99.0),
        ("supervised in the student's setting", "table1/supervised+plot/1", "last", 91.1),
        ("supervised in the first stage's setting", "table1/supervised/1", "last", 91.1),
        ("DLLP misses the proportions", "table1/dllp/128", "proportion_error", 4.9),
        ("predictions have a high entropy", "table1/dllp/128", "entropy", 0.1),
        ("Relaxed labels (ROT)", "table1/dllp/32", "relaxed", 90.5),
        ("The order of the ablation's rows.", "table3/ce/64", "last", 74.5),
        ("comparable (λ = 1, ", "figure4/soft-1/64", "last", 79.1),
        ("comparable (λ = 10, ", "figure4/soft-10/64", "last", 76.9),
        ("LLP-GAN + PLOT at 128 beats", "table1/gan+plot/128", "last", 76.9),
        ("PLOT gains in every cell.", "table1/vat+plot/128", "last", 50.9),
        ("LLP-VAT gains least at small bags", "table1/vat+plot/32", "last", 83.6),
        ("The best first stage stays the best", "table1/dllp+plot/16", "last", 91.1),
        ("The margin of transport", "table2/dllp/64", "argmax", 87.5),
    ],
)
def test_every_claim_holds_by_its_own_numbers_and_falls_with_them(words, cell, quantity, value):
    found, table = numbers_for_every_claim(), "table2" if "margin" in words else "table1"
    (line,) = (line for line in judged(found, table) if words in line)
    assert "**Holds**" in line
    found[cell][quantity] = value
    (line,) = (line for line in judged(found, table) if words in line)
    assert "**Does not hold**" in line


def test_the_bound_of_supervised_learning_is_one_sided_and_on_the_same_seeds(tmp_path):
    for seed, ours in ((1, 93.0), (2, 80.0)):
        make_run(tmp_path, "table1/dllp+plot/16", seed, ours)
    make_run(tmp_path, "table1/supervised/1", 1, 91.5)
    words = (
        "- *PLOT at bags of 16 is similar to supervised learning (no more than a point below).* **Holds**: "
    )
    assert claims(collect(tmp_path)).splitlines() == [
        words + "93.00 against 91.50 supervised in the first stage's setting (seed=1)."
    ]


def test_the_profile_counts_relabeling_in_the_epochs_that_did_it(tmp_path):
    """Three of five epochs relabeled, two seconds each: the others' zeros are no part of their median."""
    folder = write_run(tmp_path)
    line, log = json.loads(FILES["log.jsonl"].splitlines()[0]), []
    for epoch, label in enumerate((0.0, 0.0, 2.0, 1.9, 50.0), 1):
        log.append(line | {"epoch": epoch, "seconds": {"train": 4.0, "label": label, "evaluate": 1.0}})
        if not label:
            del log[-1]["label_accuracy"]
    (folder / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log))
    kept = json.loads(FILES["sample.json"]) | {"timed": {"share": 0.5, "predict": 0.25, "augment": 0.5}}
    (folder / "sample.json").write_text(json.dumps(kept))
    row = profile_table(collect(tmp_path), "table1").splitlines()[2]
    shares = "3.000 (48 %) | 1.000 (16 %) | 0.300 (5 %) | 0.900 (15 %) | 1.000 (16 %)"
    assert row == f"| `table1/dllp+plot/16` | 6.200 | {shares} |"


def made_table(root, table, rows):
    for method, values in rows.items():
        for size, value in zip((16, 32, 64, 128), values, strict=True):
            make_run(root, f"{table}/{method}/{size}", 1, value)


def test_sentences_about_several_methods_wait_for_all_of_them_and_are_judged_by_the_runs(tmp_path):
    rows = {
        "dllp": (88.0, 83.0, 71.0, 47.0), "dllp+plot": (90.0, 87.0, 80.0, 55.0),
        "vat": (88.5, 83.5, 70.0, 51.0), "vat+plot": (89.0, 84.0, 79.0, 63.0),
        "gan": (87.0, 83.1, 77.0, 68.0), "gan+plot": (89.5, 88.0, 84.0, 79.0),
    }  # fmt: skip
    made_table(tmp_path / "some", "table1", {name: rows[name] for name in ("dllp", "dllp+plot")})
    assert "LLP-GAN" not in claims(collect(tmp_path / "some"))
    made_table(tmp_path / "all", "table1", rows)
    said = claims(collect(tmp_path / "all"))
    assert "beats every first stage at 64.* **Holds**: 79.00 against DLLP 71.00, LLP-VAT 70.00" in said
    assert "PLOT gains in every cell.* **Holds**: DLLP +2.00 / +4.00 / +9.00 / +8.00; LLP-VAT +0.50" in said
    assert "LLP-VAT gains least at small bags (16 and 32).* **Holds**" in said
    assert "stays the best after PLOT.* **Does not hold**: LLP-VAT, then DLLP / LLP-VAT, then LLP-GAN" in said


def test_methods_are_compared_by_the_seeds_that_all_of_them_have(tmp_path):
    for first in ("dllp", "vat", "gan"):
        made_table(tmp_path, "table1", {first: (60.0, 59.0, 58.0, 57.0)})
        made_table(tmp_path, "table1", {f"{first}+plot": (61.0, 60.0, 59.0, 58.0)})
        for size in (16, 32, 64, 128):
            make_run(tmp_path, f"table1/{first}/{size}", 2, 90.0)
    said = claims(collect(tmp_path))
    assert "PLOT gains at every bag size (after DLLP).* **Holds**: +1.00 / +1.00 / +1.00 / +1.00" in said
    assert "PLOT gains in every cell.* **Holds**: DLLP +1.00 / +1.00 / +1.00 / +1.00; LLP-VAT" in said


def test_the_margin_of_transport_is_compared_where_both_tables_have_the_run(tmp_path):
    made_table(tmp_path, "table2", {"dllp": (60.0, 50.0, 40.0, 20.0)})
    assert "margin" not in claims(collect(tmp_path), "table2")
    make_run(tmp_path, "table1/dllp/64", 1, 78.0)
    said = claims(collect(tmp_path), "table2")
    assert "larger on CIFAR-100 than on CIFAR-10.* **Does not hold**: +1.00 against +1.00 points" in said


def test_figures_of_both_tables_are_drawn_from_their_own_runs(tmp_path):
    for name in ("table2/dllp+plot/64", "figure4-cifar100/soft-10/64"):
        make_run(tmp_path / "results", name, 1, 50.0)
    page = tmp_path / "docs" / "results.md"
    CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--md", str(page)])
    drawn = {path.name for path in (page.parent / "images").glob("*.png")}
    assert drawn == {"figure3-cifar100.png", "figure4-cifar100.png"}


def test_a_page_of_other_runs_says_nothing_of_the_papers_tables_or_of_how_ours_were_tuned(tmp_path):
    make_run(tmp_path, "digits/dllp/16", 1, 96.0)
    text = results_page(tmp_path, tmp_path / "page.md")
    assert "`digits/dllp/16`" in text
    for ours in ("Seed 0", "log.md", "Table 1", "Table 3", "CIFAR"):
        assert ours not in text
    make_run(tmp_path, "table1/dllp/16", 1, 87.0)
    text = results_page(tmp_path, tmp_path / "page.md")
    assert all(ours in text for ours in ("Seed 0", "Table 1", "Table 3"))
