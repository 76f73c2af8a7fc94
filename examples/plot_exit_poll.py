"""An election and an exit poll: precincts publish counts, and a poll the votes of age groups.

Neither says how the old people of one precinct voted. Every voter belongs to two bags, a precinct and an
age group, and one network learns from both. Then the votes of age groups in every region are estimated,
which nobody has counted: the predictions are conditioned on the results of all precincts and all age groups
at once. The election is simulated, so the truth is known for comparison.

    python examples/plot_exit_poll.py [FOLDER]     half a minute on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion import ProportionClassifier, condition_on_proportions

AGE_GROUPS = np.array(["18–29", "30–44", "45–59", "60–74", "75+"])
BOUNDS = (30, 45, 60, 75)
AGES = np.arange(18, 91)


def probability_of_left(age: np.ndarray, income: np.ndarray, region: np.ndarray | float = 0.0) -> np.ndarray:
    """The true probability of a vote for the left: highest in middle age, lower with income, and regional."""
    return 1 / (1 + np.exp(-(1.2 - ((age - 45) / 18) ** 2 - 0.8 * (income - 3) + region)))


def simulate_voters(random: np.random.Generator, precincts: int, regions: int) -> tuple[np.ndarray, ...]:
    """Precinct, region, age, income (in 10,000) and vote of 100 people in every precinct."""
    precinct = np.repeat(np.arange(precincts), 100)
    region = precinct % regions
    age = random.normal(random.uniform(40, 55, precincts)[precinct], 15).clip(18, 90)
    income = random.lognormal(random.normal(1.0, 0.25, precincts)[precinct], 0.4)
    effect = random.normal(0, 0.7, regions)[region]  # no feature shows it
    return precinct, region, age, income, random.random(len(age)) < probability_of_left(age, income, effect)


def publish(bags: np.ndarray, votes_left: np.ndarray) -> dict:
    """The proportions of right and left in every bag."""
    shares = {bag: votes_left[bags == bag].mean() for bag in np.unique(bags).tolist()}
    return {bag: {"right": 1 - share, "left": share} for bag, share in shares.items()}


def features(age: np.ndarray, income: np.ndarray | float) -> np.ndarray:
    """Age and income, scaled."""
    return np.column_stack([(age - 48) / 16, np.broadcast_to((income - 3) / 1.5, age.shape)])


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    # The votes are hidden. They are only counted, and compared with.
    precinct, region, age, income, votes_left = simulate_voters(random, *((40, 4) if small else (200, 10)))
    bags = {"precinct": precinct, "age": AGE_GROUPS[np.digitize(age, BOUNDS)]}
    tables = {name: publish(ids, votes_left) for name, ids in bags.items()}

    cells = [(region == r) & (bags["age"] == group) for r in np.unique(region) for group in AGE_GROUPS]
    cells = [cell for cell in cells if cell.sum() >= 20]
    true_cells = [votes_left[cell].mean() for cell in cells]
    true_curve = probability_of_left(AGES, np.full(len(AGES), 3.0))

    figure = Figure(figsize=(10, 4), layout="constrained")
    voters, groups = figure.subplots(1, 2)
    voters.plot(AGES, true_curve, color="black", label="truth")
    groups.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    lengths = {"epochs": 5, "student_epochs": 2} if small else {}
    for source, names, color in (
        ("precincts", ["precinct"], "#2471a3"),
        ("precincts and exit poll", ["precinct", "age"], "#c0392b"),
    ):
        used_bags = {name: bags[name] for name in names}
        used_tables = {name: tables[name] for name in names}
        model = ProportionClassifier(random_state=0, **lengths)
        model.fit(features(age, income), bags=used_bags, proportions=used_tables)
        left = model.classes_.tolist().index("left")
        curve = model.predict_proba(features(AGES, 3.0))[:, left]
        probabilities = model.predict_proba(features(age, income))
        probabilities = condition_on_proportions(
            probabilities, used_bags, used_tables, classes=model.classes_
        )
        estimates = [probabilities[cell, left].mean() for cell in cells]
        curve_error = np.abs(curve - true_curve).mean()
        cell_error = np.abs(np.subtract(estimates, true_cells)).mean()
        print(f"{source}: mean error {curve_error:.3f} by age, {cell_error:.3f} for age groups of regions")
        voters.plot(AGES, curve, color=color, label=f"learned from {source}")
        label = f"{source}: mean error {100 * cell_error:.1f} points"
        groups.scatter(true_cells, estimates, s=16, color=color, label=label)
    voters.set(xlabel="age, at an income of 30,000", ylabel="share of the left", title="Single voters")
    groups.set(xlabel="true share of the left", ylabel="estimated", title="Age groups of regions")
    voters.legend()
    groups.legend(loc="lower right")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "exit-poll.png", dpi=120)
    print(f"figure: {folder / 'exit-poll.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
