import gzip
import hashlib
from pathlib import Path

import pytest
import torch

import apportion.data.adult as census
from apportion.data import shelf
from apportion.data.adult import adult, encoded, rows
from apportion.errors import DataError

HEADER = b"age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
HEADER += b"capital-gain,capital-loss,hours-per-week,native-country,income\r\n"
TRAIN = [
    "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical,Not-in-family,White,Male,2174,0,40,Cuba,<=50K",
    "50,?,83311,Bachelors,13,Divorced,?,Husband,White,Male,0,0,13,Cuba,<=50K",
    "38,Private,215646,HS-grad,9,Divorced,Sales,Wife,Black,Female,0,0,40,Cuba,>50K",
]
TEST = ["25,Private,226802,11th,7,Divorced,Sales,Wife,Black,Male,0,0,40,Peru,>50K"]


def packed(lines: list[str]) -> bytes:
    return gzip.compress(HEADER + "".join(f"{line}\r\n" for line in lines).encode())


def of_uci(lines: list[str], test: bool) -> bytes:
    body = "".join(line.replace(",", ", ") + ("." if test else "") + "\n" for line in lines)
    return (("|1x3 Cross validator\n" if test else "") + body + "\n").encode()


@pytest.fixture
def known(monkeypatch) -> None:
    """The checksums of these few rows are taken for those of Adult."""
    texts = ("".join(f"{line}\n" for line in part) for part in (TRAIN, TEST))
    sums = tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)
    for module in (census, shelf):
        monkeypatch.setattr(module, "ADULT_SUMS", sums)


def write(folder: Path, source: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if source == "pack":
        (folder / "adult_train.csv.gz").write_bytes(packed(TRAIN))
        (folder / "adult_test.csv.gz").write_bytes(packed(TEST))
    else:
        (folder / "adult.data").write_bytes(of_uci(TRAIN, test=False))
        (folder / "adult.test").write_bytes(of_uci(TEST, test=True))
    return folder


@pytest.mark.usefixtures("known")
def test_adult_is_the_same_from_a_pack_and_from_uci(tmp_path):
    write(tmp_path / "a" / "adult", "pack")
    write(tmp_path / "b" / "adult", "uci")
    first, second = adult(tmp_path / "a"), adult(tmp_path / "b")
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.test_x, second.test_x)
    assert first.y.tolist() == [0, 0, 1]
    assert first.test_y.tolist() == [1]
    assert first.classes == ("<=50K", ">50K")
    assert first.x.dtype == torch.float32


def test_features_are_fitted_on_the_training_part_alone():
    train, test = (rows(packed_lines(part), "it") for part in (TRAIN, TEST))
    got, other = encoded(train, test), encoded(train, test * 5)
    assert torch.equal(got.x, other.x)
    numbers = got.x[:, :6]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    assert numbers[:, 0].std(correction=0).item() == pytest.approx(1)
    # workclass 3, education 2, marital-status 2, occupation 3, relationship 3, race 2, sex 2, country 1
    assert got.x.shape == (3, 6 + 18)
    assert got.x[:, 6:].sum(1).tolist() == [8, 8, 8]
    assert got.test_x[:, 6:].sum().item() == 6  # neither 11th nor Peru was seen: all zeros


def packed_lines(lines: list[str]) -> bytes:
    return gzip.decompress(packed(lines))


def test_a_missing_value_is_a_category_of_its_own():
    train = rows(packed_lines(TRAIN), "it")
    assert encoded(train, train).x[:, 6].tolist() == [0, 1, 0]  # "?" sorts before all names of workclass


@pytest.mark.usefixtures("known")
def test_a_changed_row_is_an_error_that_names_checksum_and_remedy(tmp_path):
    write(tmp_path / "adult", "uci")
    (tmp_path / "adult" / "adult.data").write_bytes(of_uci(TRAIN[:2], test=False))
    with pytest.raises(DataError, match=f"adult.data is damaged.*expected {census.ADULT_SUMS[0]}") as error:
        adult(tmp_path)
    assert "apportion data fetch adult" in str(error.value)


def test_a_missing_table_is_an_error_that_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match="no copy of adult") as error:
        adult(tmp_path)
    assert all(item.urls[0] in str(error.value) for item in census.ADULT_DOWNLOADS)


@pytest.mark.parametrize(
    "line",
    [
        "39,State-gov",
        TRAIN[0].replace("39", "old"),
        TRAIN[0].replace("39", "nan"),
        TRAIN[0] + "?",
        "x" * 70 + TRAIN[0],
    ],
)
def test_a_line_that_is_no_person_is_an_error(line):
    with pytest.raises(DataError):
        encoded(rows(line.encode(), "it"), rows(packed_lines(TEST), "it"))


@pytest.mark.usefixtures("known")
def test_adult_is_imported_only_with_its_checksum(tmp_path):
    packs = write(tmp_path / "packs", "pack")
    assert shelf.import_named("adult", packs, tmp_path / "data") == tmp_path / "data" / "adult"
    assert adult(tmp_path / "data").y.tolist() == [0, 0, 1]
    (packs / "adult_train.csv.gz").write_bytes(packed(TRAIN[:2]))
    with pytest.raises(DataError, match="is damaged"):
        shelf.import_named("adult", packs, tmp_path / "other")
    assert not (tmp_path / "other").exists()
