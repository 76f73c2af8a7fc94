"""The page: self-contained, small, escaped, honest about what a run has not kept."""

import json
import re
import shlex
from dataclasses import replace

import pytest
import vl_convert
from pages import NASTY, write_run
from typer.testing import CliRunner

from apportion.cli import app
from apportion.cli.naming import settings
from apportion.errors import RunError
from apportion.grid import RECIPES
from apportion.recipes import changed, to_json
from apportion.report.collect import collect
from apportion.report.html import charts, embedded, html_page
from apportion.report.html.commands import command_of
from apportion.report.html.pictures import sprite_of
from apportion.report.numbers import curves
from apportion.report.paper import paper_number
from apportion.report.profile import profile_table, time_by_part


@pytest.fixture(scope="module")
def thirty(tmp_path_factory):
    """Thirty runs of a hundred epochs, and their page."""
    root = tmp_path_factory.mktemp("thirty")
    for i in range(10):
        for seed in (1, 2, 3):
            write_run(root, f"table1/{'dllp+plot' if i % 2 else 'dllp'}/{2**i}", seed, plot=bool(i % 2))
    return root, html_page(root)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_thirty_runs_of_a_hundred_epochs_take_less_than_three_megabytes(thirty):
    _, page = thirty
    data = data_of(page)
    assert len(data["runs"]) == 30
    assert len(page.encode()) - sum(len(sprite["url"]) for sprite in data["sprites"].values()) < 3_000_000


def test_the_page_asks_for_nothing_from_outside(thirty):
    _, page = thirty
    head = page.split("<script")[0]
    assert "default-src 'none'" in head
    assert not re.search(
        r"<(link|img|iframe|script)[^>]+(src|href)=", page.split('<script type="application/json"')[0]
    )


def test_text_of_users_is_escaped_wherever_it_stands(thirty, tmp_path):
    _, page = thirty
    assert NASTY not in page
    assert data_of(page)["runs"][0]["sample"]["classes"][0] == NASTY
    write_run(tmp_path, "<b>bold<b>/dllp/16", 1, epochs=2)
    page = html_page(tmp_path)
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold&lt;b&gt;" in page


def test_what_is_embedded_cannot_end_its_script():
    nasty = {"a": "</script><!--&\u2028"}
    assert not set(embedded(nasty)) & set("<>&\u2028")
    assert json.loads(embedded(nasty)) == nasty


def test_a_row_of_the_table_has_ours_the_papers_and_the_difference(thirty):
    root, page = thirty
    row = re.search(r'<tr data-cell="table1/dllp/16">(.*?)</tr>', page, re.S)[1]
    numbers = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    lasts = [
        json.loads((root / f"table1/dllp/16/seed={s}/result.json").read_text())["test_accuracy"]["last"]
        for s in (1, 2, 3)
    ]
    mean = sum(lasts) / 3
    assert numbers[2] == f"{mean:.2f}"
    assert numbers[4:7] == ["1, 2, 3", "87.69", f"{'▲' if mean > 87.69 else '▼'} {mean - 87.69:+.2f}"]


def test_runs_without_a_sample_are_shown_without_bags(tmp_path):
    folder = write_run(tmp_path, "g/dllp/16", 1, epochs=3)
    (folder / "sample.json").unlink()
    run = data_of(html_page(tmp_path))["runs"][0]
    assert "sample" not in run
    assert run["confusion"]["full"]


def test_a_damaged_sample_is_refused_by_name(tmp_path):
    folder = write_run(tmp_path, "g/dllp/16", 1, epochs=3)
    (folder / "sample.json").write_text('{"classes": 1}')
    with pytest.raises(RunError, match=r"sample.json.* is damaged"):
        html_page(tmp_path)


def test_samples_that_fit_together_with_a_page_are_kept_and_the_others_left_out(tmp_path, monkeypatch):
    for seed in (1, 2, 3):
        write_run(tmp_path, "g/dllp/16", seed, epochs=3)
    size = (tmp_path / "g/dllp/16/seed=1/sample.json").stat().st_size
    monkeypatch.setattr("apportion.report.html.contents.SAMPLES", 2.5 * size)
    assert ["sample" in run for run in data_of(html_page(tmp_path))["runs"]] == [True, True, False]


def test_no_run_is_an_error_that_says_what_to_pass(tmp_path):
    with pytest.raises(RunError, match="no finished run below .*; pass the folder that holds the runs"):
        html_page(tmp_path)


@pytest.mark.parametrize("name", charts.all_charts())
def test_a_chart_is_vega_lite(name):
    chart = charts.all_charts()[name] | {"width": 300, "datasets": {"rows": []}}
    chart["$schema"] = "https://vega.github.io/schema/vega-lite/v6.json"
    assert vl_convert.vegalite_to_vega(chart)["marks"]


def test_the_command_repeats_the_recipe():
    recipe = replace(
        changed(RECIPES["digits/vat+plot/16"], {"second.mixup": "0.4", "first.schedule": "flat"}), seed=7
    )
    words = shlex.split(command_of("digits/vat+plot/16", json.loads(to_json(recipe))))
    assert words[:5] == ["apportion", "run", "digits/vat+plot/16", "--seeds", "7"]
    told = settings([word for word in words[5:] if word != "--set"])
    assert replace(changed(RECIPES["digits/vat+plot/16"], told), seed=7) == recipe


@pytest.mark.parametrize("name", ["digits/gan/16", "table1/dllp+plot/128", "figure4/soft-1/16"])
def test_the_command_of_a_recipe_of_another_name_repeats_it_too(name):
    words = shlex.split(command_of("my own/name", json.loads(to_json(RECIPES[name]))))
    told = settings([word for word in words[5:] if word != "--set"])
    assert changed(RECIPES[words[2]], told) == RECIPES[name]


def test_the_command_leaves_a_second_stage_out_where_the_run_had_none():
    recipe = replace(RECIPES["digits/dllp+plot/16"], second=None)
    words = shlex.split(command_of("digits/dllp+plot/16", json.loads(to_json(recipe))))
    assert words[5:] == ["--set", "second=null"]
    assert changed(RECIPES["digits/dllp+plot/16"], settings(words[6:])) == recipe


def test_the_papers_numbers_are_found_by_name():
    assert paper_number("table2/gan+plot/128") == 43.44
    assert paper_number("table3/ce/64") == 72.27
    assert paper_number("table1/dllp+plot/64") == 79.69
    assert paper_number("digits/dllp/16") is None
    assert paper_number("table1/dllp/x") is None


def test_time_by_part_sums_to_the_time_of_the_run():
    log = [{"label_accuracy": {}}] * 4 + [{}]
    kept = {"timed": {"share": 0.5, "predict": 0.1, "augment": 0.2}}
    parts = time_by_part({"train": 10.0, "label": 2.0, "evaluate": 1.0}, log, kept)
    assert parts == {
        "network": 8.0, "augmentation": 2.0, "prediction": 0.8, "transport": 1.2, "evaluation": 1.0,
    }  # fmt: skip
    slow = {"timed": {"share": 0.5, "predict": 9.0, "augment": 9.0}}
    assert time_by_part({"train": 10.0, "label": 2.0, "evaluate": 1.0}, log, slow) == {
        "augmentation": 10.0, "prediction": 2.0, "evaluation": 1.0,
    }  # fmt: skip


def test_the_profile_is_of_the_median_epoch_so_that_compiling_is_left_out(tmp_path):
    folder = write_run(tmp_path, "table1/dllp/16", 1)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line["seconds"] = {"train": 2.0, "label": 0.0, "evaluate": 1.0}
    lines[0]["seconds"]["train"] = 1000.0
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    head, _, row = profile_table(collect(tmp_path), "table1").splitlines()
    assert head.startswith("| run | an epoch | network | augmentation")
    assert row.startswith("| `table1/dllp/16` | 3.000 |")
    assert row.endswith("| 1.000 (33 %) |")
    assert profile_table(collect(tmp_path), "table2") == ""


def test_a_quantity_that_is_not_finite_is_a_gap():
    log = [{"epoch": 1, "a": {"b": float("nan")}}, {"epoch": 2, "a": {"b": 2.0}}]
    assert curves(log) == {"a.b": [None, 2.0]}


def test_thumbnails_are_drawn_from_the_data_set_and_not_asked_for_in_vain(thirty, tmp_path):
    assert data_of(thirty[1])["sprites"]
    write_run(tmp_path, "g/dllp/16", 1, epochs=2)
    assert data_of(html_page(tmp_path, thumbnails=False))["sprites"] == {}
    recipe = json.loads((tmp_path / "g/dllp/16/seed=1/recipe.json").read_text())
    recipe["data"]["name"] = "cifar10"
    (tmp_path / "g/dllp/16/seed=1/recipe.json").write_text(json.dumps(recipe))
    data = data_of(html_page(tmp_path, data=tmp_path))
    assert data["sprites"] == {}
    assert data["runs"][0]["picture"] is None


def test_a_sprite_has_its_images_in_order():
    import base64
    import io

    import numpy as np
    from PIL import Image

    images = np.arange(30, dtype=np.uint8).reshape(30, 1, 1, 1).repeat(8, 1).repeat(8, 2)
    sprite = sprite_of(images)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sprite["url"].split(",")[1]))))
    for i in range(30):
        top, left = i // sprite["columns"] * 8, i % sprite["columns"] * 8
        assert (picture[top : top + 8, left : left + 8] == i).all()


def test_the_command_writes_the_page_and_says_how_large_it_is(tmp_path):
    write_run(tmp_path / "runs", "g/dllp/16", 1, epochs=2)
    page = tmp_path / "out" / "report.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--html", str(page)])
    assert done.exit_code == 0
    assert done.output == f"{page}, {page.stat().st_size / 1e6:.2f} MB\n"


def test_a_report_of_nothing_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "say what to write: --html report.html" in done.output
