"""Where the time of a run goes, by part."""

import statistics
from typing import Any

from apportion import runs
from apportion.experiment import sample
from apportion.report.collect import natural
from apportion.report.tables import Cells, markdown

PARTS = ("network", "augmentation", "prediction", "transport", "evaluation")


def time_by_part(seconds: dict[str, float], log: list[dict[str, Any]], kept: Any) -> dict[str, float]:
    """Seconds of a run by part. Augmentation and prediction were timed on a few batches, and are taken off
    the training and the relabeling that they belong to."""
    train, label, evaluate = (float(seconds.get(part, 0.0)) for part in ("train", "label", "evaluate"))
    if not kept or not kept["timed"]["share"] > 0:
        parts = {"network and augmentation": train, "prediction and transport": label}
    else:
        timed, relabeled = kept["timed"], sum("label_accuracy" in line for line in log)
        augment = min(train, len(log) * timed["augment"] / timed["share"])
        predict = min(label, relabeled * timed["predict"] / timed["share"])
        parts = {"network": train - augment, "augmentation": augment}
        parts |= {"prediction": predict, "transport": label - predict}
    return {part: round(spent, 3) for part, spent in (parts | {"evaluation": evaluate}).items() if spent}


def profile_table(cells: Cells, group: str) -> str:
    """Seconds an epoch by part, of every cell's first seed that kept a sample; empty where none did.

    The median epoch counts, so that compiling the network, in the first epoch, is left out; of relabeling
    the median of the epochs that did it.
    """
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: natural(item[0])):
        folder = cell.folders[0]
        if name.startswith(f"{group}/") and (folder / "sample.json").exists():
            log = [line for line in runs.read_log(folder) if line.get("seconds")]
            if not log:
                continue
            done = {
                "train": log,
                "label": [line for line in log if "label_accuracy" in line],
                "evaluate": log,
            }
            seconds = {part: _typical([line["seconds"] for line in of], part) for part, of in done.items()}
            parts = time_by_part(seconds, log, sample.read(folder, whole=True))
            spent = [parts.get(part, 0.0) / len(log) for part in PARTS]
            shares = [f"{each:.3f} ({100 * each / (sum(spent) or 1):.0f} %)" for each in spent]
            rows.append([f"`{name}`", f"{sum(spent):.3f}", *shares])
    return markdown(["run", "an epoch", *PARTS], rows) if rows else ""


def _typical(lines: list[dict[str, float]], part: str) -> float:
    """The seconds of all lines together, if each took as long as the one in the middle."""
    return len(lines) * statistics.median(line.get(part, 0.0) for line in lines) if lines else 0.0
