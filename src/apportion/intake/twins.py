"""Ids of bags that are meant to be the same in two places, and are not."""

from collections.abc import Iterable
from unicodedata import normalize

OTHER_FORM = "has other Unicode characters (such as unicodedata.normalize('NFC', id) makes the same)"


def written_otherwise(lost: Iterable[str], strange: Iterable[str]) -> list[tuple[str, str]]:
    """Of ids that stand in one place alone those that are meant to be the same as one of the other, and how
    that is written: by case, spaces, zeros before it, or Unicode, where é may be an e and an accent."""
    forms, found = {_plain(name): name for name in lost}, []
    for key in (key for key in strange if _plain(key) in forms):
        other = forms[_plain(key)]
        same = normalize("NFC", key) == normalize("NFC", other)
        found.append((key, OTHER_FORM if same else f"is {other!r}"))
    return found


def _plain(name: str) -> str:
    return normalize("NFC", name).strip().lower().lstrip("0") or "0"
