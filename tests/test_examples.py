"""The stories run at small size, from their files, and leave a picture."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
STORIES = {
    "digits": "on test images",
    "slides": "on patches of new slides",
    "election": "vote by age: mean error",
    "exit_poll": "precincts and exit poll: mean error",
    "ads": "no problems",
    "two_moons": "labels 0.0000",
    "limits": "bag loss 0.693366, cross-entropy with the true labels 0.693366",
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_runs_and_leaves_its_picture(name, tmp_path, capsys):
    if name == "ads":
        pytest.importorskip("polars")
    runpy.run_path(str(EXAMPLES / f"plot_{name}.py"))["main"](tmp_path, small=True)
    assert STORIES[name] in capsys.readouterr().out
    assert (tmp_path / f"{name.replace('_', '-')}.png").stat().st_size > 5000


def test_the_census_is_skipped_with_a_plain_message_where_it_is_not_at_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path / "nothing"))
    runpy.run_path(str(EXAMPLES / "plot_adult.py"))["main"](tmp_path, small=True)
    assert "`apportion data fetch adult` downloads them" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_every_story_is_run_here_and_has_a_place_in_the_gallery():
    gallery = (EXAMPLES.parent / "docs" / "gallery.md").read_text()
    stories = sorted(path.name for path in EXAMPLES.glob("plot_*.py"))
    assert [name for name in stories if name not in gallery] == []
    assert stories == sorted(f"plot_{name}.py" for name in (*STORIES, "adult"))
