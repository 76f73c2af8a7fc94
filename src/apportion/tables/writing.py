"""How texts are to be written that stand where a bag has a number."""

import re
from collections.abc import Sequence

from apportion.tables.looks import DECIMAL, PERCENT, THOUSANDS

INTERVAL = r"[\[(]?\s*[\d.]+\s*%?\s*(-|–|,|;|to|\.\.)\s*[\d.]+\s*%?\s*[\])]?"


def as_number(texts: Sequence[str], name: str, *, counts: bool) -> str:
    """What to do about these texts of a class: all of one look have its remedy."""

    def all_are(*patterns: str) -> bool:
        look = re.compile(rf"\s*({'|'.join(patterns)})\s*")
        return all(look.fullmatch(text) for text in texts)

    if counts and all_are(THOUSANDS.pattern):  # of shares 12,345 is a percentage
        return THOUSANDS.remedy
    if all_are(DECIMAL.pattern, PERCENT.pattern):
        return "write 0,35 or 35% as 0.35"
    if all_are(INTERVAL):
        return "give the middle of an interval, and its width over 3.46 (the root of 12) as --noise"
    return f"give a number; if {name!r} is no class, name the classes with --classes"
