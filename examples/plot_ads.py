"""Which clicks convert? An advertiser knows only how many clicks of each campaign did.

Privacy rules hide single conversions and leave counts by campaign. This example writes two CSV files with
text, numbers and missing values, and runs `apportion check`, `fit` and `predict` on them.

    python examples/plot_ads.py [FOLDER]     some seconds on one core; needs apportion[cli]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import torch
from matplotlib.figure import Figure

from apportion.cli.app import app

DEVICES = ("phone", "desktop", "tablet")
CHANNELS = ("search", "social", "mail")


def apportion(*arguments: object) -> None:
    """Run the command line as a shell would."""
    print("$ apportion", *arguments)
    app([str(argument) for argument in arguments], standalone_mode=False)


def simulate_clicks(random: np.random.Generator, n: int, campaigns: int) -> tuple[pl.DataFrame, np.ndarray]:
    """A table of clicks, and whether each converted, which the advertiser never learns."""
    campaign = random.integers(0, campaigns, n)
    device_mix = random.dirichlet(np.ones(3), campaigns)
    channel_mix = random.dirichlet(np.ones(3), campaigns)
    device = np.array([random.choice(3, p=device_mix[c]) for c in campaign])
    channel = np.array([random.choice(3, p=channel_mix[c]) for c in campaign])
    price = random.lognormal(3, 0.7, n)
    hour = random.integers(0, 24, n)
    logit = (
        np.array([-1.6, 0.3, -0.6])[device] + np.array([0.9, -0.9, 0.2])[channel] - 0.5 * (np.log(price) - 3)
    )
    converted = random.random(n) < 1 / (1 + np.exp(-logit))
    columns = {
        "campaign": [f"c{c:03d}" for c in campaign],
        "device": [DEVICES[d] for d in device],
        "channel": [CHANNELS[c] if random.random() > 0.03 else None for c in channel],
        "price": [float(p) if random.random() > 0.05 else None for p in price],
        "hour": hour.tolist(),
    }
    return pl.DataFrame(columns), converted


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    clicks, converted = simulate_clicks(random, 2000 if small else 20000, 20 if small else 150)
    counts = (
        clicks.select("campaign", yes=converted, no=~converted).group_by("campaign").sum().sort("campaign")
    )
    with tempfile.TemporaryDirectory() as scratch:
        table, model, scored = (
            Path(scratch, "clicks.csv"),
            Path(scratch, "model"),
            Path(scratch, "scored.parquet"),
        )
        conversions = Path(scratch, "conversions.csv")
        clicks.write_csv(table)
        counts.write_csv(conversions)
        lengths = ("--epochs", 3, "--student-epochs", 1) if small else ()
        apportion("check", table, "--bag", "campaign", "--counts", conversions)
        apportion("fit", table, "--bag", "campaign", "--counts", conversions, "--out", model, *lengths)
        apportion("predict", model, table, "--out", scored)
        predictions = pl.read_parquet(scored)

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, column in zip(panels, ("device", "channel"), strict=True):
        rates = predictions.with_columns(true=converted).group_by(column).agg(pl.col("true", "p(yes)").mean())
        rates = rates.drop_nulls().sort(column)
        positions = np.arange(rates.height)
        panel.bar(positions - 0.2, rates["true"], 0.4, label="truth (hidden)", color="#85929e")
        panel.bar(
            positions + 0.2, rates["p(yes)"], 0.4, label="learned from campaign counts", color="#c0392b"
        )
        panel.set_xticks(positions, rates[column].to_list())
        print(f"conversion by {column}: mean error {(rates['true'] - rates['p(yes)']).abs().mean():.3f}")
    panels[0].set_ylabel("conversion rate")
    panels[0].legend(loc="upper right")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "ads.png", dpi=120)
    print(f"figure: {folder / 'ads.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
