from pathlib import Path

import pytest
from data_files import tiny, write_pack
from test_data_fetch import item, serving
from typer.testing import CliRunner

from apportion.cli.data import app
from apportion.data import fetch
from apportion.data.sets import IMAGE_SETS, MNIST
from apportion.errors import DataError


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_import_takes_all_packs_of_a_folder_and_list_says_where_they_are(tmp_path, monkeypatch):
    spec, arrays = tiny(MNIST)
    monkeypatch.setitem(IMAGE_SETS, "mnist", spec)
    write_pack(tmp_path / "packs", "mnist", arrays)
    assert "mnist is in" in run("import", tmp_path / "packs", "--data", tmp_path / "data")
    lines = run("list", "--data", tmp_path / "data").splitlines()
    assert [line.split()[0] for line in lines] == [*IMAGE_SETS, "adult"]
    assert str(tmp_path / "data" / "mnist" / "train_images.npy") in "".join(lines)
    assert "apportion data fetch kmnist" in "".join(lines)


def test_import_of_an_unknown_name_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no data set 'x'"):
        run("import", tmp_path, "x")


def test_import_from_a_folder_without_packs_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no packs in"):
        run("import", tmp_path)


def test_fetch_puts_the_files_into_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        monkeypatch.setitem(fetch.DOWNLOADS, "mnist", (item(server, "/good"),))
        assert "mnist is in" in run("fetch", "mnist", "--data", tmp_path)
    assert (tmp_path / "mnist" / "it.bin").is_file()
