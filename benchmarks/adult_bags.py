"""Adult in the bags of Franco et al.: F1 of argmax and of the decision that respects known shares.

python benchmarks/adult_bags.py --data FOLDER [--models linear mlp auto] [--seeds 1 2 3] [--sets naive hard]

FOLDER holds adult.parquet (features and y), one file with the bags of each system, and published.csv with the
best published F1 of each. A quarter of the rows is for testing, as in their paper, whose figures are means of
30 executions.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.metrics import f1_score, roc_auc_score

from apportion import ProportionClassifier


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["auto"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--sets", nargs="+", default=[""], help="parts of names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # argmax never predicts the rare class of some systems
    table = pl.read_parquet(options.data / "adult.parquet")
    x, y = table.drop("y").to_numpy(), table["y"].to_numpy()
    with (options.data / "published.csv").open() as file:
        published = {row["set"]: float(row["best_published_f1"]) for row in csv.DictReader(file)}
    above = dict.fromkeys(options.models, 0)
    names = [name for name in published if any(part in name for part in options.sets)]
    print("set                                   published  model     argmax  shares  AUC    seconds")
    for name in names:
        bags = pl.read_parquet(options.data / f"{name}.parquet")["bag"].to_numpy()
        for model in options.models:
            results = [evaluate(x, y, bags, model, seed) for seed in options.seeds]
            argmax, shares, auc, seconds = np.mean(results, axis=0)
            above[model] += shares > published[name]
            short = name.removeprefix("adult-").split("-global")[0].split("-cluster")[0]
            scores = f"{argmax:.3f}   {shares:.3f}   {auc:.3f}  {seconds:.0f}"
            print(f"{short:<38}{published[name]:<11}{model:<10}{scores}", flush=True)
    for model, count in above.items():
        print(f"{model}: F1 of the shares decision above the best published in {count} of {len(names)}")


def evaluate(
    x: np.ndarray, y: np.ndarray, bags: np.ndarray, model: str, seed: int
) -> tuple[float, float, float, float]:
    """F1 of argmax and of the shares decision, AUC and seconds."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, training = order[: len(y) // 4], order[len(y) // 4 :]
    started = time.perf_counter()
    classifier = ProportionClassifier(model=model, random_state=seed)
    classifier.fit(x[training], y[training], bags=bags[training])
    seconds = time.perf_counter() - started
    f1 = [
        f1_score(y[test], classifier.predict(x[test], decide=decide), zero_division=0)
        for decide in ("argmax", "shares")
    ]
    return f1[0], f1[1], roc_auc_score(y[test], classifier.predict_proba(x[test])[:, 1]), seconds


if __name__ == "__main__":
    main()
