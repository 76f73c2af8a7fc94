"""An election and an exit poll: precincts publish their counts, and a poll the shares of age groups.

Neither says how the old of one precinct voted. A voter lies in a bag of each grouping, a precinct and an age
group, and one network is learned from both. Then the cells that nobody has published, age groups of a region,
are estimated: predictions that meet the shares of all precincts and all age groups at once. The election is
simulated, so that the truth is there to compare with.

    python examples/plot_exit_poll.py [FOLDER]     half a minute on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion import ProportionClassifier, condition_on_proportions

GROUPS = ("18–29", "30–44", "45–59", "60–74", "75+")
ENDS = (30, 45, 60, 75)
AGES = np.arange(18, 91)


def truth(age: np.ndarray, income: np.ndarray, local: np.ndarray | float = 0.0) -> np.ndarray:
    """The probability of a vote for the left: highest in middle age, lower with income; regions differ."""
    return 1 / (1 + np.exp(-(1.2 - ((age - 45) / 18) ** 2 - 0.8 * (income - 3) + local)))


def shares(bags: np.ndarray, vote: np.ndarray) -> dict:
    """What is published: of every bag the shares of right and left."""
    means = {bag: vote[bags == bag].mean() for bag in np.unique(bags).tolist()}
    return {bag: [1 - mean, mean] for bag, mean in means.items()}


def voters(random: np.random.Generator, precincts: int, regions: int) -> tuple[np.ndarray, ...]:
    """A precinct of a region, an age, an income in ten thousands and a vote of everyone."""
    precinct = np.repeat(np.arange(precincts), 100)
    region = precinct % regions
    age = random.normal(random.uniform(40, 55, precincts)[precinct], 15).clip(18, 90)
    income = random.lognormal(random.normal(1.0, 0.25, precincts)[precinct], 0.4)
    local = random.normal(0, 0.7, regions)[region]  # which no column knows
    return precinct, region, age, income, random.random(len(age)) < truth(age, income, local)


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    # the vote is secret: it is used only to count, and to compare with
    precinct, region, age, income, vote = voters(np.random.default_rng(0), *((40, 4) if small else (200, 10)))
    group = np.array(GROUPS)[np.digitize(age, ENDS)]
    bags = {"precinct": precinct, "age": group}
    tables = {name: shares(ids, vote) for name, ids in bags.items()}

    def scaled(age: np.ndarray, income: np.ndarray | float) -> np.ndarray:
        return np.column_stack([(age - 48) / 16, np.broadcast_to((income - 3) / 1.5, age.shape)])

    cells = [(region == r) & (group == g) for r in np.unique(region) for g in GROUPS]
    cells = [cell for cell in cells if cell.sum() >= 20]
    real, curve = [vote[cell].mean() for cell in cells], truth(AGES, np.full(len(AGES), 3.0))
    figure = Figure(figsize=(10, 4), layout="constrained")
    one, other = figure.subplots(1, 2)
    one.plot(AGES, curve, color="black", label="truth")
    other.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    for names, color in ((["precinct"], "#2471a3"), (["precinct", "age"], "#c0392b")):
        known = {name: bags[name] for name in names}, {name: tables[name] for name in names}
        said = "precincts and exit poll" if "age" in names else "precincts"
        classifier = ProportionClassifier(
            random_state=0, **({"epochs": 5, "student_epochs": 2} if small else {})
        )
        classifier.fit(scaled(age, income), bags=known[0], proportions=known[1])
        learned = classifier.predict_proba(scaled(AGES, 3.0))[:, 1]
        met = condition_on_proportions(classifier.predict_proba(scaled(age, income)), *known, classes=[0, 1])[
            :, 1
        ]
        guess = [met[cell].mean() for cell in cells]
        off, miss = np.abs(learned - curve).mean(), np.abs(np.subtract(guess, real)).mean()
        print(f"{said}: share by age {off:.3f} off the truth, age groups of regions {miss:.3f} off")
        one.plot(AGES, learned, color=color, label=f"learned from {said}")
        other.scatter(real, guess, s=16, color=color, label=f"{said}: {100 * miss:.1f} points off")
    one.set(xlabel="age, at an income of 30,000", ylabel="share of the left", title="Single voters")
    other.set(xlabel="true share of the left", ylabel="estimated", title="Age groups of regions")
    one.legend()
    other.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "exit-poll.png", dpi=120)
    print(f"figure: {folder / 'exit-poll.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
