"""Adding a method, a network or a data set from outside to the tables of names."""

import re
from typing import Any

from apportion.errors import SettingsError


def register(table: dict[str, Any], kind: str, name: str, value: Any) -> None:
    """Add a callable to a table under a name that nothing else has. Adding it again changes nothing."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SettingsError(f"the {kind} is named {name!r}; use lower-case letters, digits and underscores")
    if not callable(value):
        raise SettingsError(
            f"the {kind} {name!r} is of type {type(value).__name__}; pass a class or a function"
        )
    if name in table and _identity(table[name]) != _identity(value):
        raise SettingsError(f"there is another {kind} named {name!r}; choose another name")
    table[name] = value


def _identity(value: Any) -> Any:
    """Where a class or function is defined: a module that is imported again defines it again."""
    return getattr(value, "__module__", None), getattr(value, "__qualname__", repr(value))
