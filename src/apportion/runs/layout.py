"""JSON that people and version control read: a key a line, and a list of numbers a line."""

import json
import re
from typing import Any

NUMBERS = re.compile(r"\[\n[-+.\deE,\s]+\]")  # over several lines, as no text within JSON can be


def by_lines(values: Any) -> str:
    """A confusion of k classes has k lines, not k²."""
    text = json.dumps(values, indent=1)
    return NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
