"""Every reader of files that may be a stranger's: a good input, and the one error that bad ones may give."""

import io
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from data_files import cifar_bin, idx_bytes, npy_bytes
from run_folders import sample_of

from apportion.checkpoints import check_state, pack_state, unpack_state
from apportion.datasets.adult import encode_rows, parse_rows
from apportion.datasets.images import parse_cifar, parse_idx
from apportion.errors import DataError, RunError, SettingsError
from apportion.experiments.recipe import Recipe, SecondStage, check_recipe, from_json, to_json
from apportion.experiments.run_folder import (
    read_log,
    read_log_probs,
    read_recipe,
    read_result,
    read_weights,
    read_where,
)
from apportion.experiments.sample import read_sample
from apportion.optim import make_optimizer

RNG = np.random.default_rng(0)
COLOR, GREY, LABELS = (RNG.integers(0, 5, shape, np.uint8) for shape in ((3, 32, 32, 3), (3, 28, 28), (3,)))
PERSON = (
    b"39, State-gov, 77516, Bachelors, 13, Never-married, Clerk, Not, White, Male, 2174, 0, 40, US, <=50K\n"
)
X = torch.from_numpy(RNG.random((6, 2), np.float32))


class Reader(NamedTuple):
    good: bytes
    read: Callable[[bytes], object]
    error: type[Exception] | tuple[type[Exception], ...]


def on_disk(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """The reader of a path, given bytes; one file for all, since making folders takes longer than reading."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / name

    def written(data: bytes, keep: object = folder) -> object:
        path.write_bytes(data)
        return read(path)

    return written


# --- bags, recipes


def read_recipe_text(data: bytes) -> None:
    with suppress(UnicodeDecodeError):  # a recipe is read from text
        check_recipe(from_json(data.decode()))


# --- run folders

RESULT = {
    "test_accuracy": {"last": 90.0, "oracle": 91.0, "oracle_epoch": 1},
    "epochs": 2,
    "train": {"errors": 3, "proportion_error": 1.0, "entropy": 0.5, "label_accuracy": {"exact": 90.0}},
    "seconds": {"train": 1.0},
}
LINE = {"stage": "first", "epoch": 1, "terms": {"proportion": 0.7}, "test_accuracy": 50.0}


def states() -> tuple[bytes, Callable[[bytes], object]]:
    """A checkpoint, and what takes it up."""
    network = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(network, "adam", 1e-3)
    network(X).sum().backward()
    optimizer.step()
    table = torch.rand(6, 2)
    state = {
        "epoch": 2,
        "networks": [network.state_dict()],
        "optimizers": [optimizer.state_dict()],
        "labels": [table],
        "ema": table,
        "previous": None,
    }
    return pack_state(state), lambda data: check_state(
        unpack_state(data, "it", error=RunError), [network], [optimizer], table.shape, error=RunError
    )


def weights_bytes() -> bytes:
    from safetensors.torch import save

    return save({"a": torch.ones(3, 2), "b": torch.zeros(2, dtype=torch.bfloat16)})


def in_folder(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    return on_disk(lambda path: read(path.parent), name)


def data_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    return {
        "idx": (idx_bytes(GREY), lambda data: parse_idx(data, (3, 28, 28), "it")),
        "cifar": (cifar_bin(COLOR, LABELS), lambda data: parse_cifar(data, 3, 1, "it")),
        "adult": (PERSON * 2, lambda data: encode_rows(parse_rows(data, "it"), parse_rows(PERSON, "it"))),
    }


def run_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    recipe = to_json(Recipe(second=SecondStage())).encode()
    return {
        "result": (json.dumps(RESULT).encode(), in_folder(read_result, "result.json")),
        "where": (b'{"apportion": "1", "torch": "2"}', in_folder(read_where, "where.json")),
        "recipe file": (recipe, in_folder(read_recipe, "recipe.json")),
        "log": ((json.dumps(LINE) + "\n").encode() * 2, in_folder(read_log, "log.jsonl")),
        "log_probs": (npy_bytes(np.zeros((5, 2), np.float16)), in_folder(read_log_probs, "log_probs.npy")),
        "weights": (weights_bytes(), in_folder(read_weights, "model.safetensors")),
        "checkpoint": states(),
        "sample": (sample_of(2).to_bytes(), in_folder(read_sample, "sample.npz")),
    }


# --- tables and models

PEOPLE = b"bag,n,c\na,1.5,x\na,,y\nb,2,x\nb,7,\n"
SHARES = b"bag,no,yes\na,0.25,0.75\nb,0.5,0.5\n"


def parquet(data: bytes) -> bytes:
    import polars as pl

    content = io.BytesIO()
    pl.read_csv(data).write_parquet(content)
    return content.getvalue()


def table_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """A table, or the proportions of its bags, checked and encoded; the other file is good."""
    from apportion.encoding import TableEncoder
    from apportion.tables.check import check as check_table
    from apportion.tables.fit import feature_columns
    from apportion.tables.read import clean_errors
    from apportion.tables.spec import BagColumn, TableSpec

    folder = tempfile.TemporaryDirectory()
    people, shares = Path(folder.name) / "people.csv", Path(folder.name) / "shares.csv"
    people.write_bytes(PEOPLE)
    shares.write_bytes(SHARES)

    def read(table: Path, proportions: Path, keep: object = folder) -> None:
        spec = TableSpec(table, (BagColumn("bag", proportions),))
        checked = check_table(spec)
        checked.report.raise_problems()
        X = checked.frame.select(feature_columns(spec, checked))
        with clean_errors(table):
            TableEncoder().fit(X).transform(X)

    return {
        "csv": (PEOPLE, on_disk(lambda path: read(path, shares), "it.csv")),
        "parquet": (parquet(PEOPLE), on_disk(lambda path: read(path, shares), "it.parquet")),
        "shares": (SHARES, on_disk(lambda path: read(people, path), "it.csv")),
        "shares parquet": (parquet(SHARES), on_disk(lambda path: read(people, path), "it.parquet")),
    }


def image_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """An image file of each format."""
    from PIL import Image

    from apportion.tables.images import FORMATS, ImageColumn, read_header, read_image

    def read(path: Path) -> None:
        read_header(path.parent, path.name)
        read_image(path.parent, ImageColumn("file", (3, 8, 8), resize=True), path.name)

    readers = {}
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 14, 3), np.uint8))
    for name in FORMATS:
        content = io.BytesIO()
        image.save(content, name)
        readers[f"image {name}"] = content.getvalue(), on_disk(read, "it")
    return readers


def model_readers() -> dict[str, tuple[bytes, Callable[[bytes], object], tuple[type[Exception], ...]]]:
    """The two files of a model, the other one good; and a table that a good model predicts."""
    import polars as pl

    from apportion import ProportionClassifier
    from apportion.errors import DataError, ModelError
    from apportion.saving import load, save
    from apportion.tables.predict import predict_table
    from apportion.tables.read import write_table

    keep = tempfile.TemporaryDirectory()
    folder, table = Path(keep.name) / "model", Path(keep.name) / "people.csv"
    table.write_bytes(PEOPLE)
    classifier = ProportionClassifier(epochs=1, pseudo_labels=None, random_state=0)
    classifier.fit(pl.read_csv(PEOPLE), bags="bag", proportions={"a": [0.25, 0.75], "b": [0.5, 0.5]})
    save(classifier, folder)
    model = load(folder)

    def file(name: str) -> tuple[bytes, Callable[[bytes], object], tuple[type[Exception], ...]]:
        good = (folder / name).read_bytes()

        def read(data: bytes, keep: object = keep) -> None:
            (folder / name).write_bytes(data)
            try:
                found = load(folder)
            finally:
                (folder / name).write_bytes(good)
            predict_table(found, table)[0].collect()

        return good, read, (ModelError, DataError)  # a good model of another table is a DataError

    def predict(path: Path) -> None:
        write_table(predict_table(model, path)[0], path.with_name("predicted.csv"))

    return {
        "model": file("model.json"),
        "model weights": file("model.safetensors"),
        "predicted": (PEOPLE, on_disk(predict, "it.csv"), (DataError,)),
        "predicted parquet": (parquet(PEOPLE), on_disk(predict, "it.parquet"), (DataError,)),
    }


def all_readers() -> dict[str, Reader]:
    recipe = to_json(Recipe(second=SecondStage())).encode()
    found = {name: Reader(*pair, DataError) for name, pair in data_readers().items()}
    found |= {name: Reader(*pair, RunError) for name, pair in run_readers().items()}
    found["recipe"] = Reader(recipe, read_recipe_text, SettingsError)
    if find_spec("polars"):
        found |= {name: Reader(*pair, DataError) for name, pair in table_readers().items()}
        found |= {name: Reader(*three) for name, three in model_readers().items()}
    if find_spec("PIL"):
        from apportion.tables.images import ImageProblem

        found |= {name: Reader(*pair, ImageProblem) for name, pair in image_readers().items()}
    return found


READERS = all_readers()
