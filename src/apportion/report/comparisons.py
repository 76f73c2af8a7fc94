"""The paper's sentences that compare methods, or its two tables, beside the numbers of our runs."""

from collections.abc import Iterator

from apportion.report.collect import same_seeds
from apportion.report.paper import SIZES, title_of
from apportion.report.tables import Cells

Claim = tuple[str, bool, str]  # the paper's sentence, whether it holds, our numbers
FIRST = ("dllp", "vat", "gan")
Rows = dict[str, list[float]]  # by method, at every bag size


def comparisons(cells: Cells, table: str) -> Iterator[Claim]:
    """Every claim whose runs are all there."""
    methods = [method for first in FIRST for method in (first, f"{first}+plot")]
    found = {  # by the seeds that all methods have
        size: same_seeds(cells, [f"{table}/{method}/{size}" for method in methods]) for size in SIZES
    }
    if all(len(each) == len(methods) for each in found.values()):
        last = "test_accuracy", "last"
        yield from _first_stages(
            {method: [found[s][f"{table}/{method}/{s}"].mean(*last) for s in SIZES] for method in methods}
        )
    if table == "table2":
        yield from _margins(cells)


def _first_stages(rows: Rows) -> Iterator[Claim]:
    ours, at_64 = rows["gan+plot"][-1], {first: rows[first][SIZES.index(64)] for first in FIRST}
    listed = ", ".join(f"{title_of(first)} {value:.2f}" for first, value in at_64.items())
    beats = ours > max(at_64.values())
    yield "LLP-GAN + PLOT at 128 beats every first stage at 64.", beats, f"{ours:.2f} against {listed}"
    gains = {
        first: [after - before for before, after in zip(rows[first], rows[f"{first}+plot"], strict=True)]
        for first in FIRST
    }
    listed = "; ".join(
        f"{title_of(first)} {' / '.join(f'{gain:+.2f}' for gain in each)}" for first, each in gains.items()
    )
    yield "PLOT gains in every cell.", min(map(min, gains.values())) > 0, listed
    least = all(min(FIRST, key=lambda first: gains[first][at]) == "vat" for at in (0, 1))
    yield "LLP-VAT gains least at small bags (16 and 32).", least, listed
    best = [
        (max(FIRST, key=lambda m: rows[m][at]), max(FIRST, key=lambda m: rows[f"{m}+plot"][at]))
        for at in range(len(SIZES))
    ]
    told = " / ".join(f"{title_of(before)}, then {title_of(after)}" for before, after in best)
    yield "The best first stage stays the best after PLOT.", all(a == b for a, b in best), told


def _margins(cells: Cells) -> Iterator[Claim]:
    """By how much transport's labels of DLLP's predictions are better than the predictions themselves."""
    pairs = [(cells.get(f"table1/dllp/{size}"), cells.get(f"table2/dllp/{size}")) for size in SIZES]
    margins = [
        [
            cell.mean("train", "label_accuracy", "exact") - cell.mean("train", "label_accuracy", "argmax")
            for cell in pair
            if cell is not None
        ]
        for pair in pairs
    ]
    whole = [margin for margin in margins if len(margin) == 2]
    if whole:
        numbers = " / ".join(f"{hundred:+.2f} against {ten:+.2f}" for ten, hundred in whole)
        larger = all(hundred > ten for ten, hundred in whole)
        yield "The margin of transport is larger on CIFAR-100 than on CIFAR-10.", larger, f"{numbers} points"
