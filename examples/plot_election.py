"""A simulated election: votes are published by precinct, and the question is how age moves a vote.

Two hundred precincts of different ages and incomes. Only their shares are known. A regression on precinct
averages would have to assume that people behave as their precinct does; here a network of single voters is
learned whose mean over every precinct is what was published. The election is simulated, so that the truth is
there to compare with.

    python examples/plot_election.py [FOLDER]     some seconds on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion import ProportionClassifier, Proportions

AGES = np.arange(18, 91)


def truth(age: np.ndarray, income: np.ndarray) -> np.ndarray:
    """The probability of a vote for the left: highest in middle age, lower with income."""
    return 1 / (1 + np.exp(-(1.2 - ((age - 45) / 18) ** 2 - 0.8 * (income - 3))))


def voters(random: np.random.Generator, precincts: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Age and income (in ten thousands) of everyone, and their precincts."""
    precinct = np.repeat(np.arange(precincts), each)
    age = random.normal(random.uniform(30, 65, precincts)[precinct], 13).clip(18, 90)
    income = random.lognormal(random.normal(1.0, 0.25, precincts)[precinct], 0.4)
    return np.column_stack([age, income]), precinct


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    people, precinct = voters(random, 40 if small else 200, 100)
    vote = random.random(len(people)) < truth(*people.T)  # secret: used below only to count and to compare
    scale = people.mean(0), people.std(0)
    x = (people - scale[0]) / scale[1]

    counts = {
        p: {"right": int((~vote[precinct == p]).sum()), "left": int(vote[precinct == p].sum())}
        for p in np.unique(precinct)
    }
    held = sorted(counts)[::5]  # every fifth precinct is kept aside, to see whether its share is foretold
    learned = ~np.isin(precinct, held)
    known = {p: count for p, count in counts.items() if p not in held}
    classifier = ProportionClassifier(random_state=0, **({"epochs": 5, "student_epochs": 2} if small else {}))
    classifier.fit(x[learned], bags=precinct[learned], proportions=Proportions(known, "counts"))

    left = list(classifier.classes_).index("left")
    foretold = [classifier.predict_proba(x[precinct == p])[:, left].mean() for p in held]
    published = [counts[p]["left"] / sum(counts[p].values()) for p in held]
    print(f"precincts kept aside: {np.abs(np.subtract(foretold, published)).mean():.3f} off on average")
    curve = [people_at(classifier, scale, age)[:, left].mean() for age in AGES]
    real = truth(AGES, np.full(len(AGES), 3.0))
    print(f"share by age: {np.abs(curve - real).mean():.3f} off the truth on average")

    figure = Figure(figsize=(10, 4), layout="constrained")
    one, other = figure.subplots(1, 2)
    one.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    one.scatter(published, foretold, s=16, color="#2471a3")
    one.set(xlabel="published share of the left", ylabel="foretold", title="Precincts that were kept aside")
    other.plot(AGES, real, color="black", label="truth")
    other.plot(AGES, curve, color="#c0392b", label="learned from precincts' shares")
    other.set(xlabel="age, at an income of 30,000", ylabel="share of the left", title="Single voters")
    other.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "election.png", dpi=120)
    print(f"figure: {folder / 'election.png'}")


def people_at(classifier: ProportionClassifier, scale: tuple[np.ndarray, np.ndarray], age: int) -> np.ndarray:
    return classifier.predict_proba((np.array([[age, 3.0]]) - scale[0]) / scale[1])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
