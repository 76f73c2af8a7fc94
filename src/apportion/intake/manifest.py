"""Bag manifests: which rows of the data each bag holds, so that others can repeat an experiment."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.instances import as_instances
from apportion.intake.sound import checked_shares


def save_manifest(bags: Bags, path: Path | str) -> None:
    """Write which rows of the data each bag holds, and its proportions: the data and this make the bags."""
    rows = [part.tolist() for part in bags.source.split(bags.sizes.tolist())]
    keep = [i.item() if isinstance(i, np.generic) else i for i in bags.ids]
    if any(not isinstance(i, str | int | float | bool) for i in keep):
        raise DataError("a manifest can name bags by strings and numbers only; rename the bags")
    entries = [
        {"id": i, "rows": r, "proportions": p}
        for i, r, p in zip(keep, rows, bags.proportions.cpu().double().tolist(), strict=True)
    ]
    text = {"format": "apportion bags 1", "data": _fingerprint(bags.x, bags.source), "bags": entries}
    Path(path).write_text(json.dumps(text), "utf-8")


def load_manifest(path: Path | str, x: Any) -> Bags:
    """The bags of a manifest over the same data; other data is refused."""
    x = as_instances(x)
    try:
        text = json.loads(Path(path).read_bytes())
        entries, mark, known = text["bags"], text["data"], text["format"] == "apportion bags 1"
        rows = [torch.tensor(_whole(entry["rows"]), dtype=torch.int64) for entry in entries]
        shares = np.array([entry["proportions"] for entry in entries], dtype=np.float64)
        ids, source = [_name(entry["id"]) for entry in entries], torch.cat(rows)
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as problem:
        raise DataError(f"{path} is not a bag manifest: {problem}") from None
    if not known or shares.ndim != 2:
        raise DataError(f"{path} is not a bag manifest of format 1")
    for row in source[(source < 0) | (source >= len(x))].tolist():
        raise DataError(f"{path} names row {row}, but the data has {len(x)} rows")
    for name in (name for name, times in Counter(ids).items() if times > 1):
        raise DataError(f"{path} has the bag {name!r} more than once; give each a name of its own")
    for row in (source.bincount() > 1).nonzero().flatten().tolist():
        raise DataError(f"{path} names row {row} more than once; a row is in one bag")
    sizes = torch.tensor([len(r) for r in rows])
    # the values as they are, since rescaling would change their last bit
    checked_shares(shares, (ids, np.empty(0), sizes.numpy()), False)
    for name in (name for name, size in zip(ids, sizes.tolist(), strict=True) if not size):
        raise DataError(f"bag {name!r} has no instance; drop it from {path}")
    bags = Bags(x[source], sizes, torch.from_numpy(shares).float(), source, ids)
    if _fingerprint(bags.x, source) != mark:
        raise DataError(f"{path} was made for other data; the same instances in the same order are needed")
    return bags


def _whole(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError(f"the rows of a bag are {str(values)[:40]}, not a list of whole numbers")
    return values


def _name(value: Any) -> str | int | float:
    if not isinstance(value, str | int | float):
        raise TypeError(f"a bag is named {str(value)[:40]}, not by a string or a number")
    return value


def _fingerprint(x: Tensor, source: Tensor) -> str:
    return hashlib.sha256(x[source.argsort()].contiguous().cpu().numpy().tobytes()).hexdigest()
