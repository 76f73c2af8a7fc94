import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import tiny, write_pack
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.data import images, pack
from apportion.data.pack import import_pack, read_pack
from apportion.data.sets import CIFAR10, CIFAR100, MNIST
from apportion.errors import DataError

REAL = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.parametrize("spec", [CIFAR10, CIFAR100, MNIST], ids=lambda spec: spec.name)
def test_an_imported_pack_is_read_as_the_set_it_was_made_from(tmp_path, spec):
    spec, arrays = tiny(spec)
    write_pack(tmp_path / "packs", spec.name, arrays)
    place = import_pack(spec, tmp_path / "packs", tmp_path / "data")
    assert sorted(path.name for path in place.iterdir()) == sorted(f"{key}.npy" for key in arrays)
    assert os.name != "posix" or {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o644}
    got, expected = images.load(spec, tmp_path / "data"), images.in_order(spec, arrays)
    assert torch.equal(got.x.permute(0, 2, 3, 1), torch.from_numpy(expected["train_images"]))
    assert got.test_y.tolist() == expected["test_labels"].tolist()


def test_an_import_that_is_cut_short_announces_nothing(tmp_path, monkeypatch):
    spec, arrays = tiny(MNIST)
    write_pack(tmp_path / "packs", spec.name, arrays)
    written, real = [], pack.write_whole

    def cut_short(path: Path, content: bytes) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(pack, "write_whole", cut_short)
    with pytest.raises(KeyboardInterrupt):
        import_pack(spec, tmp_path / "packs", tmp_path / "data")
    with pytest.raises(DataError, match=r"no copy of mnist in"):
        images.load(spec, tmp_path / "data")


def test_imported_rows_are_already_in_the_order_in_which_they_are_read(tmp_path):
    spec, arrays = tiny(CIFAR100)
    write_pack(tmp_path, spec.name, arrays)
    place = import_pack(spec, tmp_path, tmp_path / "data")
    assert np.load(place / "train_labels.npy").tolist() == images.load(spec, tmp_path / "data").y.tolist()


def test_a_pack_with_a_changed_pixel_is_refused_and_nothing_is_written(tmp_path):
    spec, arrays = tiny(CIFAR10)
    arrays["test_images"][0, 0, 0, 0] ^= 1
    write_pack(tmp_path, spec.name, arrays)
    with pytest.raises(DataError, match=f"test_images have sha256 .* expected {spec.sums['test_images']}"):
        import_pack(spec, tmp_path, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_pack_that_disagrees_with_its_manifest_is_refused(tmp_path):
    spec, arrays = tiny(MNIST)
    manifest = write_pack(tmp_path, spec.name, arrays)
    manifest["arrays"]["train_labels"]["sha256"] = "0" * 64
    (tmp_path / "mnist.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"train_labels .* is damaged.*expected {'0' * 64}"):
        read_pack(spec, tmp_path)


@pytest.mark.parametrize("chunk", ["../mnist_a.zip", "/etc/passwd", "..", "", 3, "a\\b", "c:x", "x\0y"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(tmp_path, chunk):
    spec, arrays = tiny(MNIST)
    manifest = write_pack(tmp_path / "packs", spec.name, arrays)
    manifest["chunks"][0] = chunk
    (tmp_path / "packs" / "mnist.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="may not name the file"):
        read_pack(spec, tmp_path / "packs")


def test_a_missing_zip_is_named(tmp_path):
    spec, arrays = tiny(MNIST)
    write_pack(tmp_path, spec.name, arrays)
    (tmp_path / "mnist_b.zip").unlink()
    with pytest.raises(
        DataError, match=r"mnist_b.zip is missing; all files of a pack must lie in one folder"
    ):
        read_pack(spec, tmp_path)


@pytest.mark.parametrize("shape", [[20, 28, 28], [10**12, 28, 28, 1], "x", None])
def test_a_manifest_with_another_shape_is_refused_before_anything_is_unpacked(tmp_path, shape):
    spec, arrays = tiny(MNIST)
    manifest = write_pack(tmp_path, spec.name, arrays)
    manifest["arrays"]["train_images"]["shape"] = shape
    (tmp_path / "mnist.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="mnist.json"):
        read_pack(spec, tmp_path)


def test_a_pack_with_more_images_than_the_set_is_refused(tmp_path):
    spec, arrays = tiny(CIFAR10)
    manifest = write_pack(tmp_path, spec.name, arrays)
    manifest["arrays"]["train_images"]["parts"] *= 2
    (tmp_path / "cifar10.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="too many images"):
        read_pack(spec, tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_nothing_but_a_data_error_comes_of_a_strange_manifest(tmp_path):
    spec, arrays = tiny(MNIST)
    good = write_pack(tmp_path, spec.name, arrays)
    entry = good["arrays"]["train_images"]

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(["all", "arrays", "chunks", "train_images", *entry]), JSON)
    def holds(place: str, value: object) -> None:
        strange = json.loads(json.dumps(good))
        if place in good:
            strange[place] = value
        elif place in entry:
            strange["arrays"]["train_images"][place] = value
        elif place == "train_images":
            strange["arrays"][place] = value
        (tmp_path / "mnist.json").write_text(json.dumps(value if place == "all" else strange))
        if place != "dtype":
            with pytest.raises(DataError):
                read_pack(spec, tmp_path)

    holds()


def test_a_deeply_nested_manifest_is_refused(tmp_path):
    (tmp_path / "mnist.json").write_text("[" * 200_000)
    with pytest.raises(DataError, match="not the manifest"):
        read_pack(MNIST, tmp_path)


def test_without_pillow_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    spec, arrays = tiny(CIFAR10)
    write_pack(tmp_path, spec.name, arrays)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'apportion\[pack\]'"):
        read_pack(spec, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    spec, arrays = tiny(MNIST)
    write_pack(tmp_path, spec.name, arrays)
    (tmp_path / "data").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        import_pack(spec, tmp_path, tmp_path / "data")


@pytest.mark.skipif(not (REAL / "mnist.json").is_file(), reason=f"the real packs are not in {REAL}")
def test_the_real_mnist_has_the_checksums_and_statistics_that_are_written_down(tmp_path):
    import_pack(MNIST, REAL, tmp_path)
    got = images.mnist(tmp_path)
    pixels = got.x.double() / 255
    assert got.x.shape == (60_000, 1, 28, 28)
    assert pixels.mean().item() == pytest.approx(got.mean[0], abs=1e-6)
    assert pixels.std(correction=0).item() == pytest.approx(got.std[0], abs=1e-6)
    assert got.y[:5].tolist() == [5, 0, 4, 1, 9]
