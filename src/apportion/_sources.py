"""A checksum of the package's sources, by which a copy of them is recognized."""

import hashlib
from functools import cache
from pathlib import Path

import apportion

# folders of the package that cannot change a number: they read files and show results
NOT_TRAINING = ("cli", "report", "tables", "saving")


@cache
def source_checksum(package: Path = Path(apportion.__file__).parent) -> str:
    """A checksum of the package's Python files that training depends on, 16 hexadecimal digits."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.split("/")[0] not in NOT_TRAINING:
            total.update(f"{name}\0".encode())
            total.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]
