"""docs/results.md, made from run folders alone."""

import re
from collections import Counter
from pathlib import Path

from apportion import runs
from apportion.report.beyond import CIFAR_10, CIFAR_100, PUBLISHED, beyond_figure, beyond_table
from apportion.report.claims import claims
from apportion.report.collect import Cell, collect
from apportion.report.figures import figure_3, figure_4, save
from apportion.report.head import HEAD, OURS
from apportion.report.profile import profile_table
from apportion.report.tables import (
    ablation_table,
    accuracy_table,
    claims_table,
    held_out_table,
    other_table,
    own_table,
    run_table,
)

SETS = {"table1": "CIFAR-10", "table2": "CIFAR-100"}
OTHERS = {  # settings, as the names of their groups end
    "paper": """\
In the paper's own setting, as far as it says (Adam at 1e-4, halved every 100 epochs,
dropout 0.5, SCE, no mixup, the teacher continued; epochs and batches are ours,
[paper.md](paper.md), P1):""",
    "long": """\
With longer first stages, of 80 / 120 / 160 / 300 epochs by bag size and not 40 / 60 / 80 / 120: of what was
tried in cells below the paper, more epochs gained ([log.md](log.md)). Their lengths were chosen after a look
at the test images of seed 1:""",
    "muon": """\
With Muon for the optimizer of the first stage instead of Adam, in as many epochs ([log.md](log.md)):""",
    "muon-both": """\
Both stages by Muon: first stages as above, students in as many epochs as by SGD ([log.md](log.md)):""",
}
BEYOND = """\
Last epoch, and the seconds of all stages on one device with evaluation in them, and compilation where it was
not done before. The published best is of any method up to 2025 with WRN-28-2 and up to 1,024 epochs, often of
the best test epoch; ours is the 13-layer network unless named ([two views](methods/two-views.md)).
Two views are asked for the image and its mirror image at test time, but for those in batches of 1,024."""


def results_page(root: Path, path: Path) -> str:
    """The page's text; its figures are written beside it under images/."""
    cells = collect(root)
    paper = any(name.split("/")[0] in SETS for name in cells)
    parts = [HEAD.format(root=root, path=path) + (OURS if paper else "")]
    parts += _tables(cells)
    parts += _family(cells)
    parts += _claims(cells) if paper else []
    parts += _figures(cells, path.parent / "images")
    parts += _beyond(cells, path.parent / "images")
    if held_out := held_out_table(cells):
        parts.append(
            "## The epoch that held-out bags choose\n\n"
            "Companion runs with a tenth of the bags held out; the epoch with the least proportion error on\n"
            f"them.\n\n{held_out}\n"
        )
    if profile := profile_table(cells, "table1"):
        said = (
            "Seconds of the median epoch by part, of the first seed; prediction and transport relabel it all."
        )
        parts.append(f"## Where the time goes\n\n{said}\n\n{profile}\n")
    parts.append("## Runs\n")
    for group in sorted({name.split("/")[0] for name in cells}):
        parts.append(f"### {group}\n\n{run_table(cells, group)}\n")
    parts.append(f"Made on: {_places(cells)}.\n")
    return "\n".join(parts)


def _tables(cells: dict[str, Cell]) -> list[str]:
    """The paper's two tables in our setting and, where there are runs, in others."""
    parts = []
    for number, (table, name) in enumerate(SETS.items(), 1):
        if any(known.startswith(f"{table}/") for known in cells):
            parts.append(f"## Table {number}: {name}\n\n{accuracy_table(cells, table)}\n")
        for setting, said in OTHERS.items():
            if rows := other_table(cells, table, f"{table}-{setting}"):
                parts.append(f"{said}\n\n{rows}\n")
    return parts


def _family(cells: dict[str, Cell]) -> list[str]:
    """The MNIST family, for which the paper has a network."""
    names = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "kmnist": "KMNIST"}
    said = "The network of the paper's appendix, but for two views."
    tables = {title: own_table(cells, group) for group, title in names.items()}
    return [f"## {title}\n\n{said}\n\n{table}\n" for title, table in tables.items() if table]


def _claims(cells: dict[str, Cell]) -> list[str]:
    """The ablation, what the paper says of its tables, and the numbers that it says it of."""
    said = "Of the seeds that all of these rows have; a seed's first stage is the teacher of every row."
    parts = [
        f"## Table 3: the ablation\n\n{said}\n\n{ablation_table(cells)}\n",
        "## Proportions, entropy and labels of the training bags\n\n"
        "The share of a bag's predictions that is misplaced on balance, the mean entropy of a prediction in\n"
        "nats, and how many training instances each kind of label gets right (its largest entry), all from\n"
        "the predictions of the last epoch.\n",
    ]
    parts += [f"{name}:\n\n{rows}\n" for table, name in SETS.items() if (rows := claims_table(cells, table))]
    seeds = "From the means of the seeds above; methods are compared by the seeds that all of them have."
    head = f"## The paper's sentences, {{}}\n\n{seeds}\n\n{{}}\n"
    return parts + [head.format(name, said) for table, name in SETS.items() if (said := claims(cells, table))]


def _figures(cells: dict[str, Cell], folder: Path) -> list[str]:
    parts = []
    for (table, name), end in zip(SETS.items(), ("", "-cifar100"), strict=True):
        for stem, figure, title in (
            ("figure3", figure_3(cells, f"{table}/dllp+plot/64"), "Figure 3: labels by epoch"),
            ("figure4", figure_4(cells, table), "Figure 4: hard and soft labels"),
        ):
            if figure is not None:
                save(figure, folder / f"{stem}{end}")
                parts.append(f"## {title}, {name}\n\n![{title}](images/{stem}{end}.png)\n")
    return parts


def _beyond(cells: dict[str, Cell], folder: Path) -> list[str]:
    parts = []
    if figure := beyond_figure(cells, CIFAR_10, PUBLISHED):
        save(figure, folder / "beyond")
        parts.append(
            f"## Beyond the paper: two views, CIFAR-10\n\n{BEYOND}\n\n"
            f"{beyond_table(cells, CIFAR_10, PUBLISHED)}\n\n"
            "![Test accuracy against seconds](images/beyond.png)\n"
        )
    if table := beyond_table(cells, CIFAR_100, {}):
        words = "The 13-layer network unless named, as above."
        parts.append(f"## Beyond the paper: two views, CIFAR-100\n\n{words}\n\n{table}\n")
    return parts


def _places(cells: dict[str, Cell]) -> str:
    """Devices, torch versions and commits of all runs, most frequent first."""
    places: Counter[str] = Counter()
    for cell in cells.values():
        for folder in cell.folders:
            where = runs.read_where(folder)
            told = (str(where.get(name, "?"))[:60] for name in ("device", "torch", "commit"))
            device, torch, commit = (re.sub(r"[^\w .:,+()/-]", "?", text) for text in told)
            of = "" if commit == "None" else f", commit {commit[:10]}"  # installed, not cloned
            places[f"{device}, torch {torch}{of}"] += 1
    return "; ".join(f"{place} ({n} runs)" for place, n in places.most_common())
