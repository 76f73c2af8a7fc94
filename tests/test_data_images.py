from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    cifar_files,
    idx_files,
    npy_bytes,
    npz_bytes,
    tiny,
    write_folder,
    write_tar,
)

from apportion.data import images
from apportion.data.copies import Arrays
from apportion.data.sets import CIFAR10, CIFAR100, FASHION_MNIST, IMAGE_SETS, KMNIST, MNIST, ImageSet
from apportion.errors import DataError


def put(folder: Path, source: str, spec: ImageSet, arrays: Arrays) -> Path:
    """One copy of a set in one of the forms that a user may have."""
    hundred = spec.name == "cifar100"
    python = "python" in source
    match source:
        case "arrays":
            write_folder(
                folder / spec.name, {f"{key}.npy": npy_bytes(array) for key, array in arrays.items()}
            )
        case "binary folder" | "python folder":
            write_folder(folder, cifar_files(arrays, python, hundred))
        case "binary archive" | "python archive":
            kind = "python" if python else "binary"
            name = f"cifar-{100 if hundred else 10}-{kind}.tar.gz"
            write_tar(folder / name, cifar_files(arrays, python, hundred))
        case "idx" | "idx.gz":
            write_folder(folder / spec.name, idx_files(arrays, packed=source == "idx.gz"))
        case "npz":
            names = {"images": "imgs", "labels": "labels"}
            for key, array in arrays.items():
                part, kind = key.split("_")
                content = npz_bytes(array.squeeze(-1) if kind == "images" else array.astype(np.uint8))
                write_folder(folder / spec.name, {f"kmnist-{part}-{names[kind]}.npz": content})
    return folder


CIFAR_SOURCES = ["arrays", "binary folder", "binary archive", "python folder", "python archive"]


@pytest.mark.parametrize("source", CIFAR_SOURCES)
@pytest.mark.parametrize("spec", [CIFAR10, CIFAR100], ids=lambda spec: spec.name)
def test_cifar_is_the_same_from_every_source(tmp_path, source, spec):
    spec, arrays = tiny(spec)
    got = images.load(spec, put(tmp_path, source, spec, arrays))
    expected = images.in_order(spec, arrays)
    assert torch.equal(got.x, torch.from_numpy(expected["train_images"]).permute(0, 3, 1, 2))
    assert torch.equal(got.test_x, torch.from_numpy(expected["test_images"]).permute(0, 3, 1, 2))
    assert got.y.tolist() == expected["train_labels"].tolist()
    assert got.test_y.tolist() == expected["test_labels"].tolist()
    assert got.x.dtype == torch.uint8
    assert got.y.dtype == torch.int64
    assert got.x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *[
            (name, source)
            for name in ("mnist", "fashion_mnist", "kmnist")
            for source in ("arrays", "idx", "idx.gz")
        ],
        ("kmnist", "npz"),
    ],
)
def test_grey_sets_are_the_same_from_every_source(tmp_path, name, source):
    spec, arrays = tiny(IMAGE_SETS[name])
    got = images.load(spec, put(tmp_path, source, spec, arrays))
    assert got.x.shape == (20, 1, 28, 28)
    assert torch.equal(got.x[:, 0], torch.from_numpy(arrays["train_images"][..., 0]))
    assert got.test_y.tolist() == arrays["test_labels"].tolist()


def test_cifar100_has_one_order_whatever_the_order_of_its_source(tmp_path):
    spec, arrays = tiny(CIFAR100)
    arrays["train_images"][7] = arrays["train_images"][3]  # equal images are ordered by label
    spec = replace(spec, sums={})
    order = np.random.default_rng(1).permutation(20)
    shuffled = arrays | {key: arrays[key][order] for key in ("train_images", "train_labels")}
    first = images.load(spec, put(tmp_path / "a", "arrays", spec, arrays))
    (tmp_path / "b").mkdir()
    second = images.load(spec, put(tmp_path / "b", "python archive", spec, shuffled))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)
    assert sorted(first.y.tolist()) == sorted(arrays["train_labels"].tolist())


def test_cifar10_keeps_the_published_order(tmp_path):
    spec, arrays = tiny(CIFAR10)
    got = images.load(spec, put(tmp_path, "binary archive", spec, arrays))
    assert got.y.tolist() == arrays["train_labels"].tolist()


def test_writing_to_the_images_leaves_the_file_as_it_was(tmp_path):
    spec, arrays = tiny(CIFAR10)
    put(tmp_path, "arrays", spec, arrays)
    images.load(spec, tmp_path).x.zero_()
    assert images.load(spec, tmp_path).x.any()


@pytest.mark.parametrize("source", CIFAR_SOURCES)
def test_a_changed_pixel_is_an_error_that_names_file_checksum_and_remedy(tmp_path, source):
    spec, arrays = tiny(CIFAR10)
    arrays["train_images"][0, 0, 0, 0] ^= 1
    spec = replace(spec, downloads=CIFAR10.downloads)
    with pytest.raises(DataError, match="is damaged: its train_images have sha256") as error:
        images.load(spec, put(tmp_path, source, spec, arrays))
    for fact in (str(tmp_path), spec.sums["train_images"], CIFAR10.downloads[0].sha256, "https://"):
        assert fact in str(error.value)
    assert f"apportion data fetch cifar10 --data {tmp_path}" in str(error.value)


def test_a_published_file_without_known_content_must_have_its_own_checksum(tmp_path):
    spec, arrays = tiny(FASHION_MNIST)
    spec = replace(spec, sums={}, downloads=FASHION_MNIST.downloads)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged: .* expected 3aede38d"):
        images.load(spec, put(tmp_path, "idx.gz", spec, arrays))
    put(tmp_path / "plain", "idx", spec, arrays)
    assert images.load(spec, tmp_path / "plain").x.shape == (20, 1, 28, 28)


def test_a_set_of_unknown_content_with_classes_of_unequal_size_is_refused(tmp_path):
    spec, arrays = tiny(KMNIST)
    arrays["train_labels"][:] = 0
    with pytest.raises(DataError, match="same size"):
        images.load(replace(spec, sums={}), put(tmp_path, "npz", spec, arrays))


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_a_missing_set_is_an_error_that_says_where_to_get_it(tmp_path, name):
    with pytest.raises(DataError, match=f"no copy of {name}") as error:
        getattr(images, name)(tmp_path)
    spec = IMAGE_SETS[name]
    assert all(
        item.sha256 in str(error.value) and item.urls[0] in str(error.value) for item in spec.downloads
    )
    assert f"apportion data fetch {name}" in str(error.value)


def test_a_missing_part_of_a_copy_is_named(tmp_path):
    spec, arrays = tiny(MNIST)
    put(tmp_path, "idx", spec, arrays)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        images.load(spec, tmp_path)
    spec, arrays = tiny(CIFAR10)
    files = cifar_files(arrays, python=False, hundred=False)
    del files["cifar-10-batches-bin/data_batch_3.bin"]
    write_tar(tmp_path / "cifar-10-binary.tar.gz", files)
    with pytest.raises(DataError, match=r"lacks data_batch_3.bin"):
        images.load(spec, tmp_path)


def test_a_label_that_is_no_class_is_an_error(tmp_path):
    spec, arrays = tiny(CIFAR10)
    arrays["test_labels"][0] = 5
    with pytest.raises(DataError, match="not one of 5 classes"):
        images.load(spec, put(tmp_path, "arrays", spec, arrays))


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_what_is_said_of_a_set_is_consistent(name):
    spec = IMAGE_SETS[name]
    assert len(set(spec.classes)) == (100 if name == "cifar100" else 10)
    assert len(spec.mean) == len(spec.std) == spec.shape[2]
    assert all(len(item.sha256) == 64 and item.urls for item in spec.downloads)


def test_the_folder_is_taken_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path))
    assert images.default_folder() == tmp_path
    monkeypatch.delenv("APPORTION_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert images.default_folder() == tmp_path / "apportion"
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path))
    spec, arrays = tiny(CIFAR10)
    put(tmp_path, "arrays", spec, arrays)
    assert images.load(spec, None).name == "cifar10"
