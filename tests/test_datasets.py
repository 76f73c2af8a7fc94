"""Data sets: the same from every copy, refused when damaged, and downloaded only with the right checksum."""

import gzip
import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import cifar_files, idx_files, npy_bytes, tiny, write_folder, write_tar

from apportion.datasets import (
    DATASETS,
    IMAGE_SETS,
    SYNTHETIC,
    catalog,
    default_folder,
    fetch_dataset,
    find_dataset,
    load_dataset,
)
from apportion.datasets import adult as census
from apportion.datasets.adult import encode_rows, parse_rows
from apportion.datasets.download import Download, fetch_file
from apportion.datasets.images import Arrays, ImageSet, load_images, sort_rows
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.errors import DataError

# --- synthetic


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_data_depends_on_the_seed_and_its_parts_do_not_overlap(name):
    data, again, other = (load_dataset(name, seed=seed) for seed in (1, 1, 2))
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert torch.equal(data.x, again.x)
    assert torch.equal(data.test_y, again.test_y)
    assert not torch.equal(data.x, other.x)
    for labels in (data.y, data.test_y):
        assert sorted(labels.unique().tolist()) == list(range(data.n_classes))
    training = {tuple(row) for row in data.x.tolist()}
    assert not any(tuple(row) in training for row in data.test_x.tolist())


def test_synthetic_data_has_the_documented_sizes():
    assert len(moons(1).x) == len(moons(1).test_x) == 2000
    assert (len(digits(1).x), len(digits(1).test_x)) == (1347, 450)
    assert (digits(1).x.min(), digits(1).x.max()) == (0.0, 1.0)
    seven = blobs(0, 500, classes=7)
    assert seven.n_classes == 7
    torch.testing.assert_close(seven.x.mean(0), torch.zeros(2), rtol=0, atol=1e-4)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(DataError) as error:
        load_dataset("cifar11")
    assert all(name in str(error.value) for name in DATASETS)


# --- image sets


def put(folder: Path, kind: str, images: ImageSet, arrays: Arrays) -> Path:
    """Write a copy of a set in one of the forms that users have."""
    if kind == "npy":
        write_folder(folder / images.name, {f"{key}.npy": npy_bytes(value) for key, value in arrays.items()})
    elif kind == "cifar folder":
        write_folder(folder, cifar_files(arrays, images.name))
    elif kind == "cifar archive":
        folder.mkdir(parents=True, exist_ok=True)
        write_tar(folder / images.downloads[0].file, cifar_files(arrays, images.name))
    else:
        write_folder(folder / images.name, idx_files(arrays, packed=kind == "idx.gz"))
    return folder


def tiny_set(name: str) -> tuple[ImageSet, Arrays]:
    images, arrays = tiny(IMAGE_SETS[name])
    return replace(images, downloads=IMAGE_SETS[name].downloads), arrays


CIFAR_KINDS = ("npy", "cifar folder", "cifar archive")
IDX_KINDS = ("npy", "idx", "idx.gz")
COPIES = [(name, kind) for name in ("cifar10", "cifar100") for kind in CIFAR_KINDS]
COPIES += [(name, kind) for name in ("mnist", "fashion_mnist", "kmnist") for kind in IDX_KINDS]


@pytest.mark.parametrize(("name", "kind"), COPIES)
def test_an_image_set_is_the_same_from_every_copy(tmp_path, name, kind):
    images, arrays = tiny_set(name)
    data = load_images(images, put(tmp_path, kind, images, arrays))
    expected = sort_rows(images, arrays)
    for part, x, y in (("train", data.x, data.y), ("test", data.test_x, data.test_y)):
        assert torch.equal(x, torch.from_numpy(expected[f"{part}_images"]).permute(0, 3, 1, 2))
        assert y.tolist() == expected[f"{part}_labels"].tolist()
    assert data.x.dtype == torch.uint8
    assert data.y.dtype == torch.int64
    assert data.x.is_contiguous(memory_format=torch.channels_last)
    assert find_dataset(name, tmp_path) is not None


@pytest.mark.parametrize(
    ("name", "kind"), [("cifar10", kind) for kind in CIFAR_KINDS] + [("mnist", "idx.gz")]
)
def test_a_changed_pixel_is_an_error_that_says_how_to_get_a_good_copy(tmp_path, name, kind):
    images, arrays = tiny_set(name)
    arrays["train_images"][0, 0, 0, 0] ^= 1
    with pytest.raises(DataError) as error:
        load_images(images, put(tmp_path, kind, images, arrays))
    for fact in (images.sums["train_images"], images.downloads[0].sha256, images.downloads[0].urls[0]):
        assert fact in str(error.value)
    assert f"apportion data fetch {name} --data {tmp_path}" in str(error.value)


def test_rows_of_cifar100_are_sorted_whatever_the_order_of_the_copy(tmp_path):
    images, arrays = tiny_set("cifar100")
    arrays["train_images"][7] = arrays["train_images"][3]  # equal images are sorted by label
    images = replace(images, sums={})
    order = np.random.default_rng(1).permutation(20)
    shuffled = arrays | {key: arrays[key][order] for key in ("train_images", "train_labels")}
    one = load_images(images, put(tmp_path / "a", "npy", images, arrays))
    other = load_images(images, put(tmp_path / "b", "cifar archive", images, shuffled))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_without_checksums_of_the_content_the_published_files_must_have_theirs(tmp_path):
    images, arrays = tiny_set("fashion_mnist")
    images = replace(images, sums={})
    with pytest.raises(DataError, match=images.downloads[0].sha256):
        load_images(images, put(tmp_path, "idx.gz", images, arrays))
    assert len(load_images(images, put(tmp_path / "plain", "idx", images, arrays)).x) == 20
    arrays["train_labels"][:] = 0  # published sets have classes of equal size
    with pytest.raises(DataError):
        load_images(images, put(tmp_path / "unequal", "idx", images, arrays))


def test_a_copy_that_lacks_a_file_or_has_an_unknown_label_is_refused(tmp_path):
    images, arrays = tiny_set("mnist")
    put(tmp_path, "idx", images, arrays)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        load_images(images, tmp_path)
    images, arrays = tiny_set("cifar10")
    files = cifar_files(arrays, "cifar10")
    del files["cifar-10-batches-bin/data_batch_3.bin"]
    write_tar(tmp_path / images.downloads[0].file, files)
    with pytest.raises(DataError, match=r"data_batch_3\.bin"):
        load_images(images, tmp_path)
    arrays["test_labels"][0] = 5
    with pytest.raises(DataError):
        load_images(images, put(tmp_path / "label", "npy", images, arrays))


def test_writing_to_the_images_leaves_the_file_as_it_was(tmp_path):
    images, arrays = tiny_set("cifar10")
    put(tmp_path, "npy", images, arrays)
    load_images(images, tmp_path).x.zero_()
    assert load_images(images, tmp_path).x.any()


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_a_missing_set_is_an_error_with_files_checksums_and_addresses(tmp_path, name):
    with pytest.raises(DataError) as error:
        load_dataset(name, tmp_path)
    images = IMAGE_SETS[name]
    assert len(set(images.classes)) == (100 if name == "cifar100" else 10)
    for item in images.downloads:
        assert item.sha256 in str(error.value)
        assert item.urls[0] in str(error.value)
    assert find_dataset(name, tmp_path) is None


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path))
    assert default_folder() == tmp_path
    images, arrays = tiny_set("cifar10")
    put(tmp_path, "npy", images, arrays)
    assert load_images(images).name == "cifar10"
    monkeypatch.delenv("APPORTION_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "apportion"


# --- Adult

HEADER = b"age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
HEADER += b"capital-gain,capital-loss,hours-per-week,native-country,income\r\n"
TRAIN = [
    "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical,Not-in-family,White,Male,2174,0,40,Cuba,<=50K",
    "50,?,83311,Bachelors,13,Divorced,?,Husband,White,Male,0,0,13,Cuba,<=50K",
    "38,Private,215646,HS-grad,9,Divorced,Sales,Wife,Black,Female,0,0,40,Cuba,>50K",
]
TEST = ["25,Private,226802,11th,7,Divorced,Sales,Wife,Black,Male,0,0,40,Peru,>50K"]


def as_csv(lines: list[str]) -> bytes:
    return HEADER + "".join(f"{line}\r\n" for line in lines).encode()


def as_uci(lines: list[str], test: bool) -> bytes:
    body = "".join(line.replace(",", ", ") + ("." if test else "") + "\n" for line in lines)
    return (("|1x3 Cross validator\n" if test else "") + body + "\n").encode()


@pytest.fixture
def adult_folder(tmp_path, monkeypatch) -> Path:
    """UCI's two files, cut to a few rows whose checksums count as those of Adult."""
    texts = ("".join(f"{line}\n" for line in part) for part in (TRAIN, TEST))
    sums = tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)
    monkeypatch.setattr(census, "ADULT_SUMS", sums)
    uci = {"adult.data": as_uci(TRAIN, test=False), "adult.test": as_uci(TEST, test=True)}
    write_folder(tmp_path / "uci" / "adult", uci)
    return tmp_path


def test_adult_is_the_same_from_uci_and_from_csv(adult_folder):
    packed = {
        "adult_train.csv.gz": gzip.compress(as_csv(TRAIN)),
        "adult_test.csv.gz": gzip.compress(as_csv(TEST)),
    }
    write_folder(adult_folder / "csv" / "adult", packed)
    one = load_dataset("adult", adult_folder / "uci")
    other = load_dataset("adult", adult_folder / "csv")
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.test_x, other.test_x)
    assert one.y.tolist() == [0, 0, 1]
    assert one.test_y.tolist() == [1]


def test_a_changed_row_of_adult_is_an_error(adult_folder):
    (adult_folder / "uci" / "adult" / "adult.data").write_bytes(as_uci(TRAIN[:2], test=False))
    with pytest.raises(DataError, match=census.ADULT_SUMS[0]):
        load_dataset("adult", adult_folder / "uci")


def test_features_of_adult_are_fitted_on_the_training_part():
    train, test = parse_rows(as_csv(TRAIN), "train"), parse_rows(as_csv(TEST), "test")
    data, other = encode_rows(train, test), encode_rows(train, test * 5)
    assert torch.equal(data.x, other.x)
    numbers = data.x[:, :6]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    assert numbers[:, 0].std(correction=0).item() == pytest.approx(1)
    # workclass 3, education 2, marital-status 2, occupation 3, relationship 3, race 2, sex 2, country 1
    assert data.x.shape == (3, 6 + 18)
    assert data.x[:, 6:].sum(1).tolist() == [8, 8, 8]
    assert data.x[:, 6].tolist() == [0, 1, 0]  # "?" is a category; it sorts before the names
    assert data.test_x[:, 6:].sum().item() == 6  # the training part has neither 11th nor Peru


@pytest.mark.parametrize(
    "line",
    ["39,State-gov", TRAIN[0].replace("39", "old"), TRAIN[0].replace("39", "nan"), "x" * 70 + TRAIN[0], ""],
)
def test_a_line_that_is_not_a_person_is_an_error(line):
    with pytest.raises(DataError):
        encode_rows(parse_rows(line.encode(), "train"), parse_rows(as_csv(TEST), "test"))


# --- hostile copies


def test_paths_inside_an_archive_are_never_used_as_paths(tmp_path):
    images, arrays = tiny_set("cifar10")
    inner = {f"../../{Path(name).name}": data for name, data in cifar_files(arrays, "cifar10").items()}
    (tmp_path / "in").mkdir()
    outside = {"../escaped": b"x", "/tmp/escaped": b"x"}  # noqa: S108
    write_tar(tmp_path / "in" / images.downloads[0].file, outside | inner)
    before = sorted(tmp_path.rglob("*"))
    assert load_images(images, tmp_path / "in").y.tolist() == arrays["train_labels"].tolist()
    assert sorted(tmp_path.rglob("*")) == before


def test_arrays_that_are_not_images_and_labels_are_refused(tmp_path):
    images, arrays = tiny_set("cifar10")
    for changes in (
        {"train_labels": arrays["train_labels"] + 0.5},
        {"train_images": arrays["train_images"].astype(np.int16)},
        {"train_images": arrays["train_images"][:10]},
        {"test_labels": arrays["test_labels"][:, None]},
    ):
        with pytest.raises(DataError):
            load_images(images, put(tmp_path, "npy", images, arrays | changes))
    (tmp_path / "cifar10" / "test_labels.npy").unlink()
    os.mkfifo(tmp_path / "cifar10" / "test_labels.npy")
    with pytest.raises(DataError):
        load_images(images, tmp_path)


# --- downloads

CONTENT = bytes(range(256)) * 1000
FILES = {"/good": CONTENT, "/bad": CONTENT[::-1], "/endless": b"x" * (1 << 23)}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        if self.path not in FILES:
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(FILES[self.path])))
        self.end_headers()
        try:
            self.wfile.write(FILES[self.path])
        except OSError:
            return  # the client has hung up, as it should

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.paths = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        yield running


def item(server: ThreadingHTTPServer, *paths: str) -> Download:
    base = f"http://127.0.0.1:{server.server_port}"
    return Download(
        "file.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), tuple(base + path for path in paths)
    )


def silent(file: str, done: int, total: int) -> None:
    pass


def test_addresses_are_tried_in_turn_until_the_checksum_is_right(tmp_path, server, monkeypatch):
    monkeypatch.setitem(catalog.DOWNLOADS, "mnist", (item(server, "/lost", "/bad", "/good"),))
    reports = []
    folder = fetch_dataset("mnist", tmp_path, lambda *facts: reports.append(facts))
    assert folder == tmp_path / "mnist"
    assert server.paths == ["/lost", "/bad", "/good"]
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert reports[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    fetch_dataset("mnist", tmp_path, silent)
    assert len(server.paths) == 3  # a good file is not downloaded again
    (folder / "file.bin").write_bytes(CONTENT[:100])
    fetch_dataset("mnist", tmp_path, silent)
    assert (folder / "file.bin").read_bytes() == CONTENT  # a damaged one is
    with pytest.raises(DataError):
        fetch_dataset("moons", tmp_path, silent)


@pytest.mark.parametrize("path", ["/bad", "/lost", "/endless"])
def test_a_failed_download_keeps_nothing_and_says_what_to_put_where(tmp_path, server, path):
    wanted = item(server, path)
    with pytest.raises(DataError) as error:
        fetch_file(wanted, tmp_path, silent)
    if path != "/endless":
        assert all(fact in str(error.value) for fact in (*wanted.urls, wanted.sha256, str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_without_pooch_the_error_says_what_to_install(tmp_path, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="pip install"):
        fetch_file(item(server, "/good"), tmp_path, silent)
