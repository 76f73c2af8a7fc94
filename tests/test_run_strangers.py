"""Run folders from strangers: `report`, `watch` and `figure` refuse them in a line, or show what is there."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import CELL, FILES, LINE, RESULT, WHERE, sample_of, write_run
from typer.testing import CliRunner

from apportion import runs
from apportion.cli import app
from apportion.errors import RunError
from apportion.experiment import sample
from apportion.report.collect import collect


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "runs")


def told(*words: str) -> str:
    """What a command refuses with, empty where it does not; nothing else may come of it."""
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, RunError), repr(result.exception)
    return "" if result.exception is None else str(result.exception)


def without(values: dict[str, Any], *path: str) -> dict[str, Any]:
    out = json.loads(json.dumps(values))
    place = out
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return out


SAMPLES = [
    ({"shown": [10**10]}, "'shown' is not what a run writes there"),
    ({"shown": [-1]}, "'shown'"),
    ({"shown": [4, 4]}, "'shown'"),
    ({"shown": [10**400]}, "which is not what a run writes there"),
    ({"instances": 0}, "'instances'"),
    ({"instances": float("nan")}, "which is not what a run writes there"),
    ({"source": "AAAA"}, "'source'"),
    ({"source": "no base64!"}, "'source'"),
    ({"bags": []}, "'bags'"),
    ({"bags": [{"name": "a", "size": 9, "classes": [10**9], "known": [1.0]}]}, "'classes'"),
    ({"grid": {"low": [0, 0], "high": [1, 1], "across": 10**9, "up": 2}}, "'grid'"),
    ({"grid": {"low": [0, 0], "high": [1, float("inf")], "across": 2, "up": 2}}, "grid: high[1] is damaged"),
    ({"epochs": [{"epoch": "1", "shares": "", "predicted": ""}]}, "epochs[0]: epoch is damaged"),
    ({"timed": {"share": 1.0, "predict": None, "augment": 1.0}}, "timed: predict is damaged"),
    (
        {"evaluation": {"truth": "", "confusion": {"full": [["x"]]}, "calibration": []}},
        "full[0][0] is damaged",
    ),
]


@pytest.mark.parametrize(("changes", "pattern"), SAMPLES)
def test_a_sample_that_no_run_writes_is_refused(folder, changes, pattern):
    (folder / "sample.json").write_text(json.dumps(sample_of() | changes))
    with pytest.raises(RunError) as refused:
        sample.read(folder, whole=True)
    assert "sample.json" in str(refused.value)
    assert pattern in str(refused.value)


def test_samples_are_no_larger_than_a_page_can_hold(folder):
    (folder / "sample.json").write_text(json.dumps(sample_of() | {"more": "x" * 2_000_000}))
    with pytest.raises(RunError, match="more than 1000000 bytes, which no such file needs"):
        sample.read(folder)


HOSTILE = {
    "sample.json": [json.dumps(sample_of() | changes) for changes, _ in SAMPLES[:4]],
    "result.json": [
        json.dumps(RESULT | changes)
        for changes in (
            {"test_accuracy": {"last": float("nan"), "oracle": 1.0}},
            {"test_accuracy": {"last": 1e308, "oracle": 1.0}},
            {"epochs": 10**400},
            {"seconds": {"train": float("inf")}},
            {"seconds": {}},
            {"confusion": [[1, 2], [3]]},
            {"confusion": []},
            {"confusion": {"full": 1}},
            {"train": without(RESULT, "train", "label_accuracy", "relaxed")["train"]},
        )
    ],
    "where.json": [json.dumps(without(WHERE, "device")), "{}", "[]", '{"device": 1e999, "commit": NaN}'],
    "recipe.json": [
        "{}", "[]", '{"first": []}', '{"first": {"epochs": "x"}, "seed": -1, "data": {"name": []}}',
        '{"first": {"epochs": 1e999}}', '{"first": {"epochs": 2, "x": "\\ud800"}, "seed": 3}',
        FILES["recipe.json"].replace('"seed": 3', '"seed": NaN'), "[" * 100_000,
    ],
    "log.jsonl": [
        json.dumps(LINE | changes) + "\n"
        for changes in (
            {"terms": []}, {"terms": {"a": "b"}}, {"seconds": {"train": None}}, {"epoch": None},
            {"test_accuracy": float("nan")}, {"label_accuracy": {}}, {"proportion_error": "x"},
            {"other": 10**400}, {"terms": {"\x1b[2J": 1.0}},
        )
    ] + ["", "\n", "{" * 100_000 + "\n", json.dumps(without(LINE, "seconds")) + "\n"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "i"), [(name, i) for name, texts in HOSTILE.items() for i in range(len(texts))]
)
def test_nothing_but_a_line_of_ours_comes_of_a_strangers_folder(folder, name, i):
    (folder / name).write_text(HOSTILE[name][i])
    assert told("watch", "runs", "--once") == ""  # which calls such a run damaged, and shows the others
    told("report", "runs", "--md", "results.md")
    for kind in {"result.json": ("confusion",), "log.jsonl": ("curves", "labels")}.get(name, ()):
        told("figure", kind, "runs", "--out", f"{kind}.svg")
    told("report", "runs", "--html", "page.html", "--no-thumbnails")
    assert not list(Path().glob(".*"))


def test_a_run_that_does_not_say_where_it_was_made_is_reported_all_the_same(folder):
    (folder / "where.json").write_text("{}")
    assert told("report", "runs", "--md", "results.md") == ""
    assert "Made on: ?, torch ?, commit ?" in Path("results.md").read_text()


def test_a_number_that_a_table_needs_is_asked_for_with_its_file(folder):
    (folder / "result.json").write_text(json.dumps(without(RESULT, "train", "label_accuracy", "exact")))
    (cell,) = collect(folder.parents[3]).values()
    with pytest.raises(
        RunError, match=r"result.json: train label_accuracy exact is damaged: it is 'missing'"
    ):
        cell.mean("train", "label_accuracy", "exact")


def test_folders_of_any_depth_are_reported(folder):
    folder.parents[1].rename(Path("runs/mine"))
    write_run(Path("runs/a/b/c"))
    assert told("report", "runs", "--md", "results.md") == ""
    assert "`mine/16`" in Path("results.md").read_text()
    assert f"`a/b/c/{CELL}`" in Path("results.md").read_text()


def test_a_name_does_not_steer_the_terminal(folder):
    (folder / "log.jsonl").write_text(json.dumps(LINE | {"terms": {"\x1b[2Jgone": 1.0}}) + "\n")
    result = CliRunner().invoke(app, ["watch", "runs", "--once"])
    assert "\x1b[2J" not in result.output


def test_numbers_are_finite_and_none_is_huge(folder):
    for value in ("NaN", "-Infinity", "1e101", "1e999", "9" * 400):
        (folder / "result.json").write_text(FILES["result.json"].replace("91.0", value, 1))
        with pytest.raises(RunError, match="test_accuracy: oracle is damaged"):
            runs.read_result(folder)
