"""A simulated election: how does age affect a vote, if only precinct results are published?

Two hundred precincts differ in age and income. A regression on precinct averages would have to assume that
people vote as their precinct does. Here, a network predicts single voters such that the mean of every
precinct equals its published result. The election is simulated, so the truth is known for comparison.

    python examples/plot_election.py [FOLDER]     some seconds on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from apportion import ProportionClassifier, Proportions

AGES = np.arange(18, 91)


def probability_of_left(age: np.ndarray, income: np.ndarray) -> np.ndarray:
    """The true probability of a vote for the left: highest in middle age, lower with income."""
    return 1 / (1 + np.exp(-(1.2 - ((age - 45) / 18) ** 2 - 0.8 * (income - 3))))


def simulate_voters(random: np.random.Generator, precincts: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Age and income (in 10,000) of all voters, and their precincts."""
    precinct = np.repeat(np.arange(precincts), each)
    age = random.normal(random.uniform(30, 65, precincts)[precinct], 13).clip(18, 90)
    income = random.lognormal(random.normal(1.0, 0.25, precincts)[precinct], 0.4)
    return np.column_stack([age, income]), precinct


def predict_by_age(model: Pipeline, left: int) -> np.ndarray:
    """The predicted probability of a vote for the left at every age, at an income of 30,000."""
    return model.predict_proba(np.column_stack([AGES, np.full(len(AGES), 3.0)]))[:, left]


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    people, precinct = simulate_voters(random, 40 if small else 200, 100)
    votes_left = random.random(len(people)) < probability_of_left(
        *people.T
    )  # hidden: only counted and compared

    counts = {}
    for p in np.unique(precinct).tolist():
        here = votes_left[precinct == p]
        counts[p] = {"left": int(here.sum()), "right": int((~here).sum())}
    held_out = sorted(counts)[::5]  # every fifth precinct tests the predictions
    training = ~np.isin(precinct, held_out)
    table = Proportions({p: count for p, count in counts.items() if p not in held_out}, kind="counts")

    lengths = {"epochs": 5, "student_epochs": 2} if small else {}
    model = make_pipeline(StandardScaler(), ProportionClassifier(random_state=0, **lengths))
    model.fit(
        people[training],
        proportionclassifier__bags=precinct[training],
        proportionclassifier__proportions=table,
    )

    left = model.classes_.tolist().index("left")
    predicted = [model.predict_proba(people[precinct == p])[:, left].mean() for p in held_out]
    published = [counts[p]["left"] / sum(counts[p].values()) for p in held_out]
    print(f"held-out precincts: mean error {np.abs(np.subtract(predicted, published)).mean():.3f}")
    curve = predict_by_age(model, left)
    truth = probability_of_left(AGES, np.full(len(AGES), 3.0))
    print(f"vote by age: mean error {np.abs(curve - truth).mean():.3f}")

    figure = Figure(figsize=(10, 4), layout="constrained")
    precincts, voters = figure.subplots(1, 2)
    precincts.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    precincts.scatter(published, predicted, s=16, color="#2471a3")
    precincts.set(xlabel="published share of the left", ylabel="predicted", title="Held-out precincts")
    voters.plot(AGES, truth, color="black", label="truth")
    voters.plot(AGES, curve, color="#c0392b", label="learned from precinct results")
    voters.set(xlabel="age, at an income of 30,000", ylabel="share of the left", title="Single voters")
    voters.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "election.png", dpi=120)
    print(f"figure: {folder / 'election.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
