"""The paper's sentences about its tables, each beside the numbers of our runs: holds, or does not."""

from collections.abc import Iterator

from apportion.report.collect import Cell, same_seeds
from apportion.report.comparisons import FIRST, Claim, comparisons
from apportion.report.figures import SOFT
from apportion.report.paper import SIZES, TABLE_3, title_of
from apportion.report.tables import Cells


def claims(cells: Cells, table: str = "table1") -> str:
    """A list in Markdown of every claim whose runs are there."""
    found = [
        claim
        for make in (_sizes, _gains, _supervised, _misses, _labels, _rows, _soft, comparisons)
        for claim in make(cells, table)
    ]
    return "\n".join(
        f"- *{said}* **{'Holds' if holds else 'Does not hold'}**: {numbers}."
        for said, holds, numbers in found
    )


def _last(cells: Cells, name: str) -> float | None:
    return cells[name].mean("test_accuracy", "last") if name in cells else None


def _row(cells: Cells, table: str, method: str) -> list[float] | None:
    values = [_last(cells, f"{table}/{method}/{size}") for size in SIZES]
    there = [value for value in values if value is not None]
    return there if len(there) == len(SIZES) else None


def _listed(values: list[float], sign: str = "") -> str:
    return " / ".join(f"{value:{sign}.2f}" for value in values)


def _seeds(cell: Cell) -> str:
    return ", ".join(folder.name for folder in cell.folders)


def _sizes(cells: Cells, table: str) -> Iterator[Claim]:
    for method in (method for first in FIRST for method in (first, f"{first}+plot")):
        row, said = _row(cells, table, method), f"Accuracy falls with the bag size ({title_of(method)})."
        if row:
            yield said, row == sorted(row)[::-1], _listed(row)


def _gains(cells: Cells, table: str) -> Iterator[Claim]:
    for first in FIRST:
        pairs = [(f"{table}/{first}/{size}", f"{table}/{first}+plot/{size}") for size in SIZES]
        found, of = [same_seeds(cells, pair) for pair in pairs], title_of(first)
        if all(len(each) == 2 for each in found):
            last = [[each[name].mean("test_accuracy", "last") for name in each] for each in found]
            gains = [after - before for before, after in last]
            largest = min(gains[2:]) > max(gains[:2])
            yield f"PLOT gains at every bag size (after {of}).", min(gains) > 0, _listed(gains, "+")
            yield f"It gains most at 64 and 128 (after {of}).", largest, _listed(gains, "+")


def _supervised(cells: Cells, table: str) -> Iterator[Claim]:
    for name, title in (
        ("supervised+plot", "the student's setting"),
        ("supervised", "the first stage's setting"),
    ):
        names = f"{table}/dllp+plot/16", f"{table}/{name}/1"
        found = same_seeds(cells, names)
        ours, bound = (_last(found, each) for each in names)
        if ours is not None and bound is not None:
            numbers = f"{ours:.2f} against {bound:.2f} supervised in {title} ({_seeds(found[names[0]])})"
            yield (
                "PLOT at bags of 16 is similar to supervised learning (no more than a point below).",
                ours >= bound - 1,
                numbers,
            )


def _misses(cells: Cells, table: str) -> Iterator[Claim]:
    small, large = cells.get(f"{table}/dllp/{SIZES[0]}"), cells.get(f"{table}/dllp/{SIZES[-1]}")
    if small and large:
        errors = [cell.mean("train", "proportion_error") for cell in (small, large)]
        entropies = [cell.mean("train", "entropy") for cell in (small, large)]
        yield (
            "DLLP misses the proportions of large bags more.",
            errors[1] > errors[0],
            f"{_listed(errors)} % misplaced at {SIZES[0]} and {SIZES[-1]}",
        )
        yield (
            "DLLP's predictions have a high entropy at large bags.",
            entropies[1] > entropies[0],
            f"{_listed(entropies)} nats at {SIZES[0]} and {SIZES[-1]}",
        )


def _labels(cells: Cells, table: str) -> Iterator[Claim]:
    found = [cells[name] for size in SIZES if (name := f"{table}/dllp/{size}") in cells]
    if found:
        exact, relaxed = (
            [cell.mean("train", "label_accuracy", kind) for cell in found] for kind in ("exact", "relaxed")
        )
        better = [a > b for a, b in zip(exact, relaxed, strict=True)]
        numbers = f"exact {_listed(exact)}, relaxed {_listed(relaxed)} % right, by bag size"
        yield "Relaxed labels (ROT) are noisier than exact ones.", all(better), numbers


def _rows(cells: Cells, table: str) -> Iterator[Claim]:
    found = same_seeds(cells, [name for _, name, *_ in TABLE_3])
    known = [(title, _last(found, name), paper) for title, name, paper, _ in TABLE_3 if paper is not None]
    if table == "table1" and all(ours is not None for _, ours, _ in known):
        ours = [title for title, *_ in sorted(known, key=lambda row: row[1] or 0.0)]
        theirs = [title for title, *_ in sorted(known, key=lambda row: row[2])]
        yield (
            "The order of the ablation's rows.",
            ours == theirs,
            "ours from worst to best: " + ", ".join(ours),
        )


def _soft(cells: Cells, table: str) -> Iterator[Claim]:
    for size in SIZES:
        for power in (1, 10):
            names = f"{table}/dllp+plot/{size}", f"{SOFT[table]}/soft-{power}/{size}"
            found = same_seeds(cells, names)
            hard, soft = (_last(found, name) for name in names)
            if hard is not None and soft is not None:
                numbers = f"bags of {size}: hard {hard:.2f}, soft {soft:.2f} ({_seeds(found[names[0]])})"
                yield (
                    f"Hard and soft labels are comparable (λ = {power}, within a point).",
                    abs(hard - soft) < 1,
                    numbers,
                )
