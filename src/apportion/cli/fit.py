"""apportion fit TABLE"""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli import tabling

if TYPE_CHECKING:
    from apportion.bags.bags import Bags
    from apportion.intake.weights import Relax
    from apportion.models import Model
    from apportion.tables.asking import Asked, Found

Out = Annotated[Path, typer.Option(metavar="DIR", help="The model's folder: a new or an empty one.")]
AUTO = "auto"  # what goes with the instances
FirstStage = Annotated[str, typer.Option(help="dllp (rows), two-views (images), counts, vat, gan or rot.")]
SecondStage = Annotated[str, typer.Option(help="plot (rows), or none for the first stage alone (images).")]
Labels = Annotated[str, typer.Option(help="What the second stage learns: soft, hard, predicted, argmax.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of the stage; by default as the bags need.")]
Rate = Annotated[float | None, typer.Option(help="The first stage's peak learning rate. Rows: 0.002.")]
Rows = Annotated[int | None, typer.Option(help="Rows a step; by default as the bags need.")]
HeldOut = Annotated[float, typer.Option(help="A share of the bags to measure the model on, not to learn.")]
Choose = Annotated[
    str, typer.Option(metavar="SCORE", help="Keep the epoch that is best on held-out bags, by likelihood, …")
]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Fit a temperature on held-out bags.")]
Mirror = Annotated[bool, typer.Option("--mirror/--no-mirror", help="Are mirror images of the same class?")]
SECONDS = 1.0  # between the lines of epochs


def command(
    table: tabling.Table,
    bag: tabling.Bag,
    out: Out,
    proportions: tabling.Proportions = None,
    counts: tabling.Counts = None,
    shares: tabling.Shares = "",
    key: tabling.Key = None,
    classes: tabling.Classes = "",
    drop: tabling.Drop = "",
    categorical: tabling.Categorical = "",
    keep: tabling.Keep = "",
    missing: tabling.Missing = None,
    normalize: tabling.Normalize = False,
    noise: tabling.Noise = None,
    unlabeled: tabling.Unlabeled = False,
    fill: tabling.Fill = False,
    given: tabling.Given = "",
    image: tabling.Image = "",
    pixels: tabling.Pixels = None,
    mirror: Mirror = True,
    first_stage: FirstStage = AUTO,
    second_stage: SecondStage = AUTO,
    labels: Labels = AUTO,
    first_epochs: Epochs = None,
    second_epochs: Epochs = None,
    rate: Rate = None,
    batch_size: Rows = None,
    held_out: HeldOut = 0.0,
    choose: Choose = "",
    calibrate: Calibrate = False,
    seed: Annotated[int, typer.Option(help="Seed of networks and batches.")] = 0,
    device: tabling.Device = AUTO,
) -> None:
    from apportion._device import find_device
    from apportion._untrusted import check_writable_place
    from apportion.errors import DataError
    from apportion.models import refuse_taken, save_model
    from apportion.tables.checking import refuse
    from apportion.tables.groupings import check_groupings
    from apportion.tabular.fit import checked, settled

    check_writable_place(out, folder=True, error=DataError)
    refuse_taken(out)
    find_device(device)
    words = {"first_stage": first_stage, "second_stage": second_stage, "labels": labels}
    settings = {name: None if word == "none" else word for name, word in words.items() if word != AUTO}
    settings |= {"rate": rate} if rate is not None else {}
    settings |= {"mirror": mirror} if image else {}
    settings |= {
        "first_epochs": first_epochs,
        "second_epochs": second_epochs,
        "batch_size": batch_size,
        "seed": seed,
        "held_out": held_out,
        "choose": choose or None,
        "calibrate": calibrate,
    }
    if not mirror and not image:
        raise typer.BadParameter("--no-mirror is of images: name the column of their files with --image")
    settings = settled(settings, bool(image), device)
    checked(settings)
    asked = tabling.asked(
        table, bag, proportions, counts, shares, key, classes, drop, categorical, missing, normalize,
        noise, unlabeled, fill, given, keep, image, pixels,
    )  # fmt: skip
    found = check_groupings(asked)
    for note in found[0].notes:
        print(note)
    refuse(found[0])
    model = trained(asked, found, settings, device)
    save_model(model, out)
    for name, value in model.quality.items():
        print(f"{name}: {'–' if value is None else f'{value:.4f}' if isinstance(value, float) else value}")
    print(f"{out}")


def trained(asked: "list[Asked]", found: "list[Found]", settings: dict[str, Any], device: str) -> "Model":
    """The model of checked tables; a line of an epoch is printed, though not of each where they are short."""
    from apportion.fitting.telling import words_of
    from apportion.selection.epochs import EpochSelector, split_bags
    from apportion.tables.holding import hold_parts
    from apportion.tabular.believing import together
    from apportion.tabular.fit import model_of, train_table

    relax: Relax = math.inf

    def divide(groupings: "list[Bags]") -> "list[Bags]":
        nonlocal relax
        bags, relax = together(groupings, asked, found)
        held_out, seed, choose = (settings[name] for name in ("held_out", "seed", "choose"))
        learned, held = split_bags(bags, held_out, seed, choose)
        return [learned] if held is None else [learned, held]

    made, columns = hold_parts(asked, found, divide)
    parts = made[0], made[1] if len(made) > 1 else None
    chosen, printed = EpochSelector(parts[1], settings["choose"]), -math.inf
    for epoch_state in train_table(parts[0], device, settings, relax):
        line = words_of(epoch_state, chosen.update(epoch_state))
        if epoch_state.epoch.number == 1 or epoch_state.last or time.monotonic() - printed > SECONDS:
            print(line, flush=True)
            printed = time.monotonic()
    return model_of(chosen, parts, columns, asked, found[0], settings, device)
