"""Which clicks convert? An advertiser is told only how many of each campaign's clicks did.

Privacy rules hide single conversions; counts by campaign remain. Two files are written as they come from such
systems, with texts, numbers and gaps, and the commands `apportion check`, `fit` and `predict` do the rest.

    python examples/plot_ads.py [FOLDER]     some seconds on one core; needs apportion[cli]
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion.cli import app

DEVICES, CHANNELS = ("phone", "desktop", "tablet"), ("search", "social", "mail")


def apportion(*words: object) -> None:
    """The command line, as from a shell."""
    print("$ apportion", *words)
    app(list(map(str, words)), standalone_mode=False)


def clicks(random: np.random.Generator, n: int, campaigns: int) -> tuple[dict, np.ndarray]:
    """The table of clicks, and whether each converted, which the advertiser never sees."""
    campaign = random.integers(0, campaigns, n)
    tilt = random.dirichlet(np.ones(3), campaigns), random.dirichlet(np.ones(3), campaigns)
    device, channel = (np.array([random.choice(3, p=t[c]) for c in campaign]) for t in tilt)
    price, hour = random.lognormal(3, 0.7, n), random.integers(0, 24, n)
    score = (
        np.array([-1.6, 0.3, -0.6])[device] + np.array([0.9, -0.9, 0.2])[channel] - 0.5 * (np.log(price) - 3)
    )
    converted = random.random(n) < 1 / (1 + np.exp(-score))
    columns = {
        "campaign": [f"c{c:03d}" for c in campaign],
        "device": [DEVICES[d] for d in device],
        "channel": [CHANNELS[c] if random.random() > 0.03 else None for c in channel],
        "price": [float(p) if random.random() > 0.05 else None for p in price],
        "hour": hour.tolist(),
    }
    return columns, converted


def main(folder: Path, small: bool = False) -> None:
    if find_spec("polars") is None:
        print("polars is not installed, so there are no tables: pip install 'apportion[cli]'")
        return
    import polars as pl

    torch.set_num_threads(1)
    columns, converted = clicks(np.random.default_rng(0), 2000 if small else 20000, 20 if small else 150)
    table = pl.DataFrame(columns)
    counted = (
        table.select("campaign", yes=converted, no=~converted).group_by("campaign").sum().sort("campaign")
    )
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        table.write_csv(here / "clicks.csv")
        counted.write_csv(here / "conversions.csv")
        said = (here / "clicks.csv", "--bag", "campaign", "--counts", here / "conversions.csv")
        apportion("check", *said)
        epochs = ("--epochs", 3, "--student-epochs", 1) if small else ()
        apportion("fit", *said, "--out", here / "model", *epochs)
        apportion("predict", here / "model", here / "clicks.csv", "--out", here / "scored.parquet")
        scored = pl.read_parquet(here / "scored.parquet")

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, column in zip(panels, ("device", "channel"), strict=True):
        means = scored.with_columns(true=converted).group_by(column).agg(pl.col("true", "p(yes)").mean())
        means = means.drop_nulls().sort(column)
        at = np.arange(means.height)
        panel.bar(at - 0.2, means["true"], 0.4, label="truth, never seen", color="#85929e")
        panel.bar(at + 0.2, means["p(yes)"], 0.4, label="learned from campaigns' counts", color="#c0392b")
        panel.set_xticks(at, means[column].to_list())
        print(f"by {column}: {(means['true'] - means['p(yes)']).abs().mean():.3f} off on average")
    panels[0].set_ylabel("share of clicks that convert")
    panels[0].legend(loc="upper right")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "ads.png", dpi=120)
    print(f"figure: {folder / 'ads.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
