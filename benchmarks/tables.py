"""Tables in bags: every model of rows beside simple rivals and supervised boosting, and how long fits take.

python benchmarks/tables.py accuracy FILE [--data FOLDER] [--sets adult digits] [--bags 64 hours] [--seeds 1]
python benchmarks/tables.py report FILE
python benchmarks/tables.py speed

`accuracy` adds a JSON line per data set, kind of bags, seed and model to FILE, and goes on where it stopped.
A quarter of the rows is for testing; of Adult, its own test part. Bags are random ones of a size, or the
values of a column. Without FOLDER there is no Adult. Rivals with LightGBM are left out where it is not
installed. `report` prints the tables, and how far the average is from the best of its members. `speed` prints
CPU seconds of one thread.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss, roc_auc_score

from apportion import ProportionClassifier
from apportion.bags.bags import Bags
from apportion.datasets.adult import read_adult
from apportion.encoding import TableEncoder
from apportion.errors import ApportionWarning
from apportion.methods.boosted_trees import boost
from apportion.methods.linear import fit_linear

OURS = ("linear", "trees", "mlp")  # what the average is compared with
ADULT = (
    "age", "work class", "weight", "education", "years of education", "marital status", "occupation",
    "relationship", "race", "sex", "gain", "loss", "hours", "country", "income",
)  # fmt: skip
MADE: dict[str, dict[str, Any]] = {
    "clusters": {"n_samples": 8000, "n_features": 20, "n_informative": 8, "n_clusters_per_class": 4},
    "rare": {"n_samples": 10000, "n_features": 15, "n_informative": 6, "weights": [0.9], "flip_y": 0.05},
    "four": {"n_samples": 10000, "n_features": 12, "n_informative": 8, "n_classes": 4},
    "ten": {"n_samples": 15000, "n_features": 16, "n_informative": 10, "n_classes": 10, "class_sep": 1.5},
    "noisy": {"n_samples": 5000, "n_features": 30, "n_informative": 3, "class_sep": 0.5, "flip_y": 0.2},
}
Rows = tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]


# --- data


def load(
    name: str, folder: Path | None, seed: int
) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """Training rows and classes from 0 to k - 1, test rows and classes."""
    if name == "adult":
        parts = [pd.DataFrame(part, columns=list(ADULT)) for part in read_adult(folder)]
        for part in parts:
            for column in ("age", "weight", "years of education", "gain", "loss", "hours"):
                part[column] = part[column].astype(float)
        labels = [(part.pop("income") == ">50K").to_numpy().astype(int) for part in parts]
        return parts[0], labels[0], parts[1], labels[1]
    if name in MADE:
        X, y = make_classification(random_state=3, **MADE[name])
    else:
        X, y = {"digits": load_digits, "cancer": load_breast_cancer}[name](return_X_y=True)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [len(y) // 4])
    return (
        frame.iloc[train].reset_index(drop=True),
        y[train],
        frame.iloc[test].reset_index(drop=True),
        y[test],
    )


def bag_ids(X: pd.DataFrame, kind: str, seed: int) -> np.ndarray:
    """Random bags of a size, or those of a column; of a column of fractions, forty quantiles."""
    if kind.isdigit():
        return np.random.default_rng(100 + seed).permutation(len(X)) // int(kind)
    column = X[kind]
    if column.dtype.kind == "f" and column.nunique() > 100:
        return pd.qcut(column, 40, labels=False, duplicates="drop").to_numpy()
    return column.astype(str).to_numpy()


def kinds_of(name: str) -> list[str]:
    columns = {
        "adult": ["education", "occupation", "hours", "age", "country"],
        "clusters": ["x0"],
        "four": ["x0"],
    }
    return ["16", "64", "256", *columns.get(name, [])]


# --- rivals: (features, bags sorted by row, test features, seed) -> probabilities


def trees_of_shares(bags: Bags, test: np.ndarray, seed: int) -> np.ndarray:
    """LightGBM's regression of the share of the row's own bag, a class at a time."""
    import lightgbm

    shares = np.repeat(bags.proportions.numpy(), bags.sizes.numpy(), 0)
    columns = [
        lightgbm.LGBMRegressor(verbose=-1, num_threads=1, random_state=seed)
        .fit(bags.x.numpy(), share)
        .predict(test)
        for share in shares.T
    ]
    return np.clip(np.stack(columns, 1), 1e-3, None)


def trees_with_row_hessian(bags: Bags, test: np.ndarray, seed: int) -> np.ndarray:
    """LightGBM with the gradient p - q of transported soft labels q and the Hessian p (1 - p), 300 rounds."""
    import lightgbm

    k = bags.n_classes
    sizes, shares = bags.sizes.numpy(), bags.proportions.double().numpy()
    first = np.cumsum(sizes) - sizes

    def gradient(scores: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        p = softmax(scores.reshape(len(bags.x), k), axis=1)
        ratio = shares / np.maximum(np.add.reduceat(p, first, 0) / sizes[:, None], 1e-9)
        q = p * np.repeat(ratio, sizes, 0)
        return p - q / q.sum(1, keepdims=True), np.maximum(p * (1 - p), 1e-6)

    settings = {"objective": gradient, "num_class": k, "verbose": -1, "num_threads": 1, "seed": seed}
    start = np.tile(np.log(bags.overall.numpy() + 1e-9), (len(bags.x), 1))
    data = lightgbm.Dataset(bags.x.numpy(), np.zeros(len(bags.x)), init_score=start)
    booster = lightgbm.train(settings, data, 300)
    return softmax(booster.predict(test, raw_score=True) + start[:1], axis=1)


def logistic_regression(bags: Bags, test: np.ndarray, seed: int) -> np.ndarray:
    """The bag loss with a fixed penalty of 0.001."""
    with torch.no_grad():
        return fit_linear(bags, 1e-3)(torch.from_numpy(test)).softmax(1).numpy()


def ridge_of_means(bags: Bags, test: np.ndarray, seed: int) -> np.ndarray:
    """Ridge regression of shares on the mean features of the bags."""
    means = torch.segment_reduce(bags.x, "mean", lengths=bags.sizes).numpy()
    model = Ridge(1.0).fit(means, bags.proportions.numpy(), sample_weight=bags.sizes.numpy())
    return np.clip(model.predict(test), 1e-3, None)


RIVALS: dict[str, Callable[[Bags, np.ndarray, int], np.ndarray]] = {
    "lightgbm, bag shares": trees_of_shares,
    "lightgbm, p - q": trees_with_row_hessian,
    "logistic regression, bag loss": logistic_regression,
    "ridge of bag means": ridge_of_means,
}


def encoded_bags(
    X: pd.DataFrame, y: np.ndarray, ids: np.ndarray, test: pd.DataFrame
) -> tuple[Bags, np.ndarray]:
    """Bags of encoded rows, as rivals take them, and the encoded test rows."""
    encoder = TableEncoder().fit(X)
    names, bag = np.unique(ids, return_inverse=True)
    order = np.argsort(bag, kind="stable")
    counts = np.zeros((len(names), y.max() + 1))
    np.add.at(counts, (bag, y), 1)
    sizes = counts.sum(1)
    bags = Bags(
        torch.from_numpy(encoder.transform(X)[order]), torch.from_numpy(sizes).long(),
        torch.from_numpy(counts / sizes[:, None]).float(), torch.from_numpy(order), list(names),
    )  # fmt: skip
    return bags, encoder.transform(test)


# --- accuracy


def measures(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    probabilities = probabilities / probabilities.sum(1, keepdims=True)
    k = probabilities.shape[1]
    found = {
        "accuracy": 100 * float((probabilities.argmax(1) == y).mean()),
        "log_loss": float(log_loss(y, np.clip(probabilities, 1e-7, 1), labels=range(k))),
    }
    if k == 2:
        found["auc"] = 100 * float(roc_auc_score(y, probabilities[:, 1]))
    return found


def run_accuracy(asked: argparse.Namespace) -> None:
    done = set()
    if asked.file.exists():
        lines = map(json.loads, asked.file.read_text().splitlines())
        done = {(line["set"], line["bags"], line["seed"], line["model"]) for line in lines}
    for seed in asked.seeds:
        for name in asked.sets:
            if name == "adult" and asked.data is None:
                print("adult: skipped; pass --data FOLDER")
                continue
            X, y, test, truth = load(name, asked.data, seed)
            for kind in asked.bags or kinds_of(name):
                if kind.isdigit() or kind in X:
                    run_cell(asked, done, (name, kind, seed), X, y, test, truth)


def run_cell(
    asked: argparse.Namespace, done: set[tuple[Any, ...]], cell: tuple[str, str, int], X: pd.DataFrame,
    y: np.ndarray, test: pd.DataFrame, truth: np.ndarray,
) -> None:  # fmt: skip
    """All models of one data set, kind of bags and seed."""
    name, kind, seed = cell
    ids = bag_ids(X, kind, seed)
    bags, encoded = encoded_bags(X, y, ids, test)
    if len(bags.sizes) < 4:
        return
    shares = pd.DataFrame(bags.proportions.double().numpy(), index=list(bags.ids))
    models = [
        model
        for model in (*OURS, "average", *RIVALS, "overall shares", "supervised")
        if model in asked.models
    ]
    for model in models:
        if (*cell, model) in done or ("lightgbm" in model and find_spec("lightgbm") is None):
            continue
        line: dict[str, Any] = {"set": name, "bags": kind, "seed": seed, "model": model}
        started = time.process_time()
        if model in RIVALS:
            probabilities = RIVALS[model](bags, encoded, seed)
        elif model == "supervised":
            supervised = HistGradientBoostingClassifier(random_state=seed)
            probabilities = supervised.fit(bags.x.numpy(), y[bags.source.numpy()]).predict_proba(encoded)
        elif model == "overall shares":
            probabilities = np.tile(bags.overall.numpy(), (len(test), 1))
        else:
            classifier = ProportionClassifier(model, random_state=seed).fit(X, bags=ids, proportions=shares)
            probabilities = classifier.predict_proba(test)
            if classifier.selection_ is not None:
                chosen = classifier.selection_["candidates"]
                line["weights"] = {each: round(found["weight"], 2) for each, found in chosen.items()}
        line |= {"seconds": round(time.process_time() - started, 1)} | measures(probabilities, truth)
        with asked.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def report(asked: argparse.Namespace) -> None:
    table = pd.DataFrame(map(json.loads, asked.file.read_text().splitlines()))
    table["log_loss"] = -table["log_loss"]  # larger is better, as for the others
    cells = ["set", "bags"]
    for measure in ("accuracy", "auc", "log_loss"):
        digits = 3 if measure == "log_loss" else 2
        means = table.pivot_table(index=cells, columns="model", values=measure, aggfunc="mean").dropna(
            how="all"
        )
        print(f"\n{measure}\n{means.round(digits).to_string()}")
    losses = defaultdict(list)
    for (name, kind), rows in table.groupby(cells):
        for measure in ("accuracy", "auc", "log_loss"):
            values = rows.pivot_table(index="seed", columns="model", values=measure)
            if values.empty or "average" not in values or not set(OURS) <= set(values):
                continue
            best = values[list(OURS)].mean().idxmax()
            gap = values["average"] - values[best]
            losses["random" if kind.isdigit() else "column", measure].append(gap.mean())
            others = [best, *(rival for rival in RIVALS if rival in values)]
            if measure == "log_loss" and "overall shares" in values:
                others.append("overall shares")
            for other in others:
                gap = values["average"] - values[other]
                error = gap.std() / len(gap) ** 0.5 if len(gap) > 1 else 0.0
                if gap.mean() + 2 * error < 0:
                    print(f"{name}, {kind}: {measure} of the average is {-gap.mean():.3f} below {other}")
    print("\nmean gain of the average over the best of its members, and the worst cell")
    for (kind, measure), gaps in losses.items():
        print(f"{kind:8}{measure:10}{np.mean(gaps):8.3f}{np.min(gaps):8.3f}   {len(gaps)} cells")


# --- speed


def run_speed(asked: argparse.Namespace) -> None:
    n = asked.rows
    X, y = make_classification(n, 20, n_informative=10, flip_y=0.05, random_state=0)
    frame = pd.DataFrame(X.astype(np.float32)).rename(columns=str)
    bags, _ = encoded_bags(frame, y, np.arange(n) // 64, frame[:1])
    list(boost(bags, rounds=1))  # compiles
    started = time.process_time()
    rounds = list(boost(bags, rounds=300))[-1].number
    ours = time.process_time() - started
    print(f"{n:,} × 20, bags of 64: {rounds} rounds of trees {ours:.1f} s")
    if find_spec("lightgbm") is not None:
        import lightgbm

        settings = {"objective": "binary", "num_threads": 1, "verbose": -1}
        started = time.process_time()
        lightgbm.train(settings, lightgbm.Dataset(bags.x.numpy(), y), 300)
        other = time.process_time() - started
        print(f"LightGBM, supervised, 300 rounds of 31 leaves: {other:.1f} s; ratio {ours / other:.2f}")
    for model in asked.models:
        for size in (16, 256, 1024, 5000) if model == "average" else (64,):
            ids = np.arange(n) // size
            classifier = ProportionClassifier(model, random_state=0)
            started = time.process_time()
            classifier.fit(frame, y, bags=ids)
            print(f"{model:8} bags of {size:5}: {time.process_time() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    accuracy = parts.add_parser("accuracy")
    accuracy.add_argument("file", type=Path)
    accuracy.add_argument("--data", type=Path, help="the folder that has a folder adult")
    accuracy.add_argument("--sets", nargs="+", default=["adult", "digits", "cancer", *MADE])
    accuracy.add_argument("--bags", nargs="+", help="sizes, or columns")
    accuracy.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    every = [*OURS, "average", *RIVALS, "overall shares", "supervised"]
    accuracy.add_argument("--models", nargs="+", choices=every, default=every)
    parts.add_parser("report").add_argument("file", type=Path)
    speed = parts.add_parser("speed")
    speed.add_argument("--rows", type=int, default=50_000)
    speed.add_argument("--models", nargs="+", default=["linear", "trees", "average"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ApportionWarning)
    {"accuracy": run_accuracy, "report": report, "speed": run_speed}[asked.part](asked)


if __name__ == "__main__":
    main()
