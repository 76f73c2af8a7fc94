"""What programs ask of a model again; what its card tells people hangs on no name here, nor the reverse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Facts:
    rows: int = 0  # it learned from
    bags: int = 0
    learned: str = ""  # a sum of the names, sizes and instances of these
    held_out: int = 0  # bags that it did not learn from
    held_out_names: str = ""  # a sum of the names of these, in their order
    groupings: int = 1  # that its rows lie in
    given: bool = False  # it had labels of single rows too
    bytes: bool = False  # its instances are images as bytes
    second_stage: bool = False
    stage: str = ""  # "first" or "second", and the epoch: whose weights these are
    epoch: int = 0
    first_optimizer: str = ""  # that trained each stage, and its peak rate, in words
    second_optimizer: str = ""
    device: str = ""  # where it learned
    temperature: float = 1.0  # by which its scores were divided


def facts_of(values: Mapping[str, Any]) -> Facts:
    """From a file; ValueError names what is not one. What is missing is younger than the file."""
    known = {field.name: type(field.default) for field in fields(Facts)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"a fact {name!r} that is not known; there are {', '.join(known)}")
        if type(value) is not known[name] and not (known[name] is float and type(value) is int):
            raise ValueError(f"{value!r} for {name!r}; it is a {known[name].__name__}")
    facts = Facts(**values)
    if min(facts.rows, facts.bags, facts.held_out, facts.epoch, facts.groupings - 1) < 0:
        raise ValueError("counts below zero")
    if not 0 < facts.temperature < math.inf:
        raise ValueError(f"the temperature {facts.temperature}; it is above zero")
    return facts
