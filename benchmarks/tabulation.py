"""Do the intervals of tables by group hold? Simulated elections, whose votes by group are known.

python benchmarks/tabulation.py [--seeds 0 1 2 3] [--effects 0 0.3 0.7] [--epochs 40] [--level 0.9]

Votes depend on race, age (not linearly) and degree, and on an effect of the precinct with this deviation.
Race and age differ by precinct. Prints, for six tables, how many cells the interval holds, its interval score
(width, plus a penalty of 2 / (1 - level) times the distance by which it misses; Gneiting and Raftery, 2007)
and the root mean square error, both in percent of all voters. Half a minute an election on one core.
"""

import argparse
from collections import defaultdict

import numpy as np
import polars as pl
import torch

from apportion import ProportionClassifier, Proportions, tabulate

TABLES = (
    ["race"],
    ["age group"],
    ["degree"],
    ["race", "county"],
    ["race", "age group"],
    ["age group", "county"],
)
FEATURES = ["race", "age", "degree"]


def simulate(seed: int, effect: float, m: int = 80, each: int = 80) -> tuple[pl.DataFrame, np.ndarray]:
    """Voters, and how they voted: left, right, or not at all."""
    random = np.random.default_rng(seed)
    precinct = np.repeat(np.arange(m), each)
    mixtures = random.dirichlet([4, 2, 1], m)
    race = np.concatenate([random.choice(3, each, p=mixture) for mixture in mixtures])
    age = random.normal(random.uniform(35, 60, m)[precinct], 14).clip(18, 90)
    degree = random.random(len(precinct)) < random.uniform(0.2, 0.6, m)[precinct]
    score = np.array([-0.4, 0.3, 1.5])[race] - ((age - 45) / 25) ** 2 * 0.8 + 0.6 * degree
    score += random.normal(0, 1, m)[precinct] * effect
    left = random.random(len(precinct)) < 1 / (1 + np.exp(-score))
    vote = np.where(random.random(len(precinct)) < 0.12, "none", np.where(left, "left", "right"))
    columns = {
        "race": np.array(["A", "B", "C"])[race],
        "age": age,
        "degree": degree,
        "county": np.array(list("vwxyz"))[precinct * 5 // m],
        "precinct": precinct,
        "age group": np.array(["young", "middle", "old"])[np.digitize(age, [35, 60])],
    }
    return pl.DataFrame(columns), vote


class Remembered:
    """Fits a network to the same bags only once: halves are the same for every table."""

    def __init__(self, epochs: int, networks: dict[tuple[int, ...], ProportionClassifier]) -> None:
        self.epochs = epochs
        self.networks = networks
        self.feature_names_in_ = np.array(FEATURES)

    def __deepcopy__(self, memo: dict[int, object]) -> "Remembered":
        return Remembered(self.epochs, self.networks)

    def fit(self, X: pl.DataFrame, *, bags: pl.Series, proportions: Proportions) -> "Remembered":
        key = tuple(np.unique(bags.to_numpy() if isinstance(bags, pl.Series) else bags).tolist())
        if key not in self.networks:
            network = ProportionClassifier("mlp", "dllp", None, epochs=self.epochs, random_state=0)
            self.networks[key] = network.fit(X.select(FEATURES), bags=bags, proportions=proportions)
        self.network = self.networks[key]
        self.classes_ = self.network.classes_
        return self

    def predict_proba(self, X: pl.DataFrame) -> np.ndarray:
        return self.network.predict_proba(X.select(FEATURES))


def count_votes(voters: pl.DataFrame, vote: np.ndarray, by: list[str]) -> dict[tuple[str, ...], int]:
    counts = voters.with_columns(vote=vote).group_by([*by, "vote"]).len()
    return {tuple(map(str, row[:-1])): row[-1] for row in counts.rows()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--effects", type=float, nargs="+", default=[0.0, 0.3, 0.7])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--level", type=float, default=0.9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for effect in asked.effects:
        held = defaultdict(list)
        scores = defaultdict(list)
        errors = defaultdict(list)
        for seed in asked.seeds:
            voters, vote = simulate(seed, effect)
            counts = count_votes(voters, vote, ["precinct"])
            names = ["left", "none", "right"]
            table = {i: {name: counts.get((str(i), name), 0) for name in names} for i in range(80)}
            proportions = Proportions(table, "counts")
            bags = voters["precinct"]
            model = Remembered(asked.epochs, {})
            model.fit(voters.select(FEATURES), bags=bags, proportions=proportions)
            for by in TABLES:
                X = voters.select(list(dict.fromkeys([*FEATURES, *by])))
                cells = tabulate(model, X, by, bags=bags, proportions=proportions, level=asked.level)
                truth = count_votes(voters, vote, by)
                keys = cells.select(*by, "class").rows()
                true = np.array([truth.get(tuple(map(str, key)), 0) for key in keys])
                low, count, high = (cells[name].to_numpy() for name in ("count_low", "count", "count_high"))
                miss = np.maximum(low - true, 0) + np.maximum(true - high, 0)
                name = ", ".join(by)
                held[name] += (miss == 0).tolist()
                scores[name] += ((high - low + 2 / (1 - asked.level) * miss) / len(voters) * 100).tolist()
                errors[name] += ((count - true) / len(voters) * 100).tolist()
        for name in held:
            error = np.sqrt(np.mean(np.square(errors[name])))
            print(
                f"effect {effect}, {name}: {len(held[name])} cells, {np.mean(held[name]):.1%} hold,"
                f" score {np.mean(scores[name]):.2f}, error {error:.2f}"
            )
        everything = [each for values in held.values() for each in values]
        print(f"effect {effect}: {np.mean(everything):.1%} of {len(everything)} cells hold", flush=True)


if __name__ == "__main__":
    main()
