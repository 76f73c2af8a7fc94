"""Whether a sample is one: its numbers are those that a run writes, so that no reader takes them too far."""

import base64
import binascii
from pathlib import Path
from typing import Any

from apportion.errors import RunError
from apportion.experiment.sample.packing import bits_for
from apportion.runs.files import NUMBER, parsed, read_bytes

BAG = {"name": str, "size": int, "classes": [int], "known": [NUMBER]}
LINE = {"epoch": int, "shares": str, "predicted": str, ("labels",): str, ("grid",): str}
GRID = {"low": [NUMBER], "high": [NUMBER], "across": int, "up": int}
SHAPE = {
    "classes": [str],
    "instances": int,
    "bags": [BAG],
    "shown": [int],
    "source": str,
    "epochs": [LINE],
    "evaluation": {"truth": str},
    ("grid",): GRID,
    ("every",): int,
}
CONFUSION = {("full",): [[int]], ("right",): [int], ("of",): [int], ("pairs",): [[int]]}
END = {
    "evaluation": {"truth": str, "confusion": CONFUSION, "calibration": [[NUMBER]]},
    "seconds": {...: NUMBER},
    "timed": {"share": NUMBER, "predict": NUMBER, "augment": NUMBER},
}
LIMIT = 1_000_000  # bytes of a file, fifty times what a run leaves
BAGS, SHOWN, CLASSES, ACROSS = 12, 112, 10_000, 100  # at most


def read_sample(path: Path, whole: bool) -> dict[str, Any]:
    """The sample in a file, `whole` with what is added when a run finishes."""
    kept = parsed(read_bytes(path, LIMIT), SHAPE | END if whole else SHAPE, str(path))
    check_sample(kept, str(path))
    return kept


def check_sample(kept: dict[str, Any], what: str) -> None:
    """Refuse a sample, of the shape above, whose numbers do not fit each other, or no run."""
    shown, bags, grid = kept["shown"], kept["bags"], kept.get("grid")
    known = max([len(kept["classes"]), *(c + 1 for bag in bags for c in bag["classes"])], default=0)
    fits = {
        "bags": 0 < len(bags) <= BAGS and all(0 < len(b["classes"]) == len(b["known"]) for b in bags),
        "classes": known <= CLASSES and all(c >= 0 for bag in bags for c in bag["classes"]),
        "instances": 0 < kept["instances"] < 1 << 40,
        "shown": len(shown) == len(bags)
        and all(0 <= n <= min(SHOWN, bag["size"]) for n, bag in zip(shown, bags, strict=True)),
        "source": len(_bytes(kept["source"])) == -(-sum(shown) * bits_for(kept["instances"]) // 8),
        "grid": grid is None
        or (
            len(grid["low"]) == len(grid["high"]) == 2
            and all(1 < grid[n] <= ACROSS for n in ("across", "up"))
        ),
    }
    for name in (name for name, good in fits.items() if not good):
        raise RunError(f"{what} is damaged: its {name!r} is not what a run writes there")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b"not this"
