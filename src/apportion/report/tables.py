"""Tables in Markdown: ours beside the paper's, a missing run a dash."""

from collections.abc import Mapping, Sequence

from apportion import runs
from apportion.report.collect import Cell, natural, same_seeds, spread
from apportion.report.paper import LARGER, SIZES, TABLE_3, TABLES, title_of

Cells = Mapping[str, Cell]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def beside(cell: Cell | None, paper: float | None) -> str:
    """ours / the paper's / the difference."""
    known = "–" if paper is None else f"{paper:.2f}"
    if cell is None:
        return f"– / {known}"
    values = cell.numbers("test_accuracy", "last")
    difference = "" if paper is None else f" / {sum(values) / len(values) - paper:+.2f}"
    return f"**{spread(values)}** / {known}{difference}"


def method_row(cells: Cells, table: str, group: str, method: str) -> list[str]:
    """A method of the paper's table, a column a bag size, from the runs of a group."""
    cell = [cells.get(f"{group}/{method}/{size}") for size in SIZES]
    known = [mean for mean, _ in TABLES[table][method]]
    return [title_of(method), *(beside(c, mean) for c, mean in zip(cell, known, strict=True))]


def other_table(cells: Cells, table: str, group: str) -> str:
    """The methods that were run in another setting, a group, and what became of their labels; or nothing."""
    there = [method for method in TABLES[table] if any(n.startswith(f"{group}/{method}/") for n in cells)]
    rows = [method_row(cells, table, group, method) for method in there]
    for method in (each for each in there if each.endswith("+plot")):
        found = [cells.get(f"{group}/{method}/{size}") for size in SIZES]
        drift = ["–" if cell is None else right_labels(cell) for cell in found]
        rows.append([f"{title_of(method)}: labels right, first → last", *drift])
    return markdown(["", *(f"bags of {size}" for size in SIZES)], rows) if rows else ""


def right_labels(cell: Cell) -> str:
    """The share of labels that are right after the first and the last relabeling, of the first seed."""
    parts = (line.get("label_accuracy", {}) for line in runs.read_log(cell.folders[0]))
    right = [part["labels"] for part in parts if "labels" in part]
    return f"{right[0]:.2f} → {right[-1]:.2f}" if right else "–"


def accuracy_table(cells: Cells, table: str) -> str:
    """Table 1 or 2: a row a method, a column a bag size."""
    rows = [method_row(cells, table, table, method) for method in TABLES[table]]
    for method in ("supervised", "supervised+plot"):
        cell = cells.get(f"{table}/{method}/1")
        label = "supervised (bags of one), setting of " + (
            "PLOT's student" if "+" in method else "the first stage"
        )
        rows.append([label, beside(cell, None), "", "", ""])
    return markdown(["", *(f"bags of {size}" for size in SIZES)], rows)


def own_table(cells: Cells, group: str) -> str:
    """A group for which the paper has no number: a row a method, a column a bag size; empty without runs.

    Sizes beyond the paper's stand where there is a run of them.
    """
    methods = ("dllp", "dllp+plot", "counts", "counts+plot")
    stems = {title_of(method): f"{group}/{method}" for method in methods}
    stems["two views, ResNet-9 of width 8"] = f"beyond-{group}/two-views"
    stems["the same, + PLOT"] = f"beyond-{group}/two-views+plot"
    stems["the same, argmax labels"] = f"beyond-{group}-argmax/two-views"
    larger = [size for size in LARGER if any(f"{stem}/{size}" in cells for stem in stems.values())]
    sizes, rows = [*SIZES, *larger], []
    for title, stem in stems.items():
        found = [cells.get(f"{stem}/{size}") for size in sizes]
        values = [spread(cell.numbers("test_accuracy", "last")) if cell else "–" for cell in found]
        rows += [[title, *values]] if any(found) else []
    return markdown(["", *(f"bags of {size}" for size in sizes)], rows) if rows else ""


def ablation_table(cells: Cells) -> str:
    """Table 3, with the row that the paper lacks: all rows from the same teachers."""
    found = same_seeds(cells, [name for _, name, _, _ in TABLE_3])
    rows = [[title, beside(found.get(name), mean)] for title, name, mean, _ in TABLE_3]
    return markdown(["CIFAR-10, bags of 64", "ours / paper / difference"], rows)


def claims_table(cells: Cells, table: str) -> str:
    """What the paper says of proportions, entropy and labels: numbers of the training bags, or nothing."""
    head = [
        "",
        "bag size",
        "proportion error",
        "entropy",
        "argmax",
        "exact",
        "entropic λ=1",
        "relaxed λ=1",
    ]
    rows = []
    for method in ("dllp", "dllp+plot"):
        for size in SIZES:
            cell = cells.get(f"{table}/{method}/{size}")
            if cell is None:
                continue
            labels = [f"{cell.mean('train', 'label_accuracy', kind):.2f}" for kind in LABELS]
            error, entropy = cell.mean("train", "proportion_error"), cell.mean("train", "entropy")
            rows.append([title_of(method), str(size), f"{error:.2f} %", f"{entropy:.3f}", *labels])
    return markdown(head, rows) if rows else ""


LABELS = ("argmax", "exact", "entropic_plan", "relaxed")


def run_table(cells: Cells, group: str) -> str:
    """Every cell of a group: last epoch, oracle epoch, epochs, seconds by part, where."""
    head = [
        "run",
        "last epoch",
        "best epoch (oracle)",
        "epochs",
        "seconds of this stage",
        "of them labels",
        "evaluation",
    ]
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: natural(item[0])):
        if name.startswith(f"{group}/"):
            rows.append(
                [
                    f"`{name}`",
                    spread(cell.numbers("test_accuracy", "last")),
                    f"{cell.mean('test_accuracy', 'oracle'):.2f}",
                    f"{cell.mean('epochs'):.0f}",
                    f"{cell.seconds():.0f}",
                    f"{cell.mean('seconds', 'label'):.0f}",
                    f"{cell.mean('seconds', 'evaluate'):.0f}",
                ]
            )
    return markdown(head, rows)


def held_out_table(cells: Cells) -> str:
    """The last epoch, the epoch that held-out bags choose, and the oracle's, of runs that held some out."""
    head = ["run", "last epoch", "chosen by held-out bags", "best epoch (oracle)"]
    rows = []
    for name, cell in cells.items():
        if all("held_out" in result["test_accuracy"] for result in cell.results):
            kinds = ("last", "held_out", "oracle")
            rows.append([f"`{name}`", *(spread(cell.numbers("test_accuracy", kind)) for kind in kinds)])
    return markdown(head, rows) if rows else ""
