"""Where a number comes from: version, commit, sources, imported modules, device."""

import ast
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import apportion
from apportion._sources import source_checksum

MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")  # the name of one


def describe_where(
    device: torch.device, exact: bool, imports: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a number depends on besides the recipe. `imports` are the checksums of imported modules.

    $APPORTION_COMMIT names the commit where git cannot, in a copy without its history. The checksum of the
    sources shows whether that copy was clean.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "apportion": apportion.__version__,
        "commit": _git_commit() or os.environ.get("APPORTION_COMMIT"),
        "sources": source_checksum(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
        "exact": exact,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"imports": dict(imports)} if imports else {}),
    }


@cache
def module_checksum(module: ModuleType) -> str:
    """A checksum of a user's module and of the modules in its folder that it imports, 16 hexadecimal digits.

    It is that of the files when it is first called, after the import: a module that is changed later is not
    what runs. Installed modules count by their own file.
    """
    files: dict[str, bytes] = {}
    folder = _file_of(module).parent
    waiting = [module.__name__]
    while waiting:
        name = waiting.pop()
        path = _file_of(sys.modules.get(name))
        is_own = path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & set(path.parts)
        if name in files or path.suffix != ".py" or not (is_own or name == module.__name__):
            continue
        files[name] = path.read_bytes().replace(b"\r\n", b"\n")
        for node in ast.walk(ast.parse(files[name])):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = resolve_name("." * node.level + (node.module or ""), sys.modules[name].__package__)
                waiting += [package, *(f"{package}.{alias.name}" for alias in node.names)]
    total = hashlib.sha256()
    for name, text in sorted(files.items()):
        total.update(f"{name}\0".encode())
        total.update(text)
    return total.hexdigest()[:16]


def _file_of(module: ModuleType | None) -> Path:
    return Path(getattr(module, "__file__", None) or "").resolve()


def imported_modules(where: Mapping[str, Any]) -> dict[str, str]:
    """The modules that a run imported, with their checksums; where.json may come from a stranger."""
    imports = where.get("imports")
    if not isinstance(imports, dict):
        return {}
    return {name: str(checksum) for name, checksum in imports.items() if MODULE.fullmatch(name)}


def usual_sources(places: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The checksums of the package and of each imported module that most of these runs have."""
    counts: dict[str, Counter[str]] = {}
    for where in places:
        for name, checksum in _sources_of(where).items():
            counts.setdefault(name, Counter())[checksum] += 1
    return {name: count.most_common(1)[0][0] for name, count in counts.items()}


def has_other_sources(where: Mapping[str, Any], usual: Mapping[str, str]) -> bool:
    """Whether a run was made by other sources of the package, or of its own modules, than is usual."""
    own = _sources_of(where)
    return own.get("package") != usual.get("package") or any(own[name] != usual[name] for name in own)


def _sources_of(where: Mapping[str, Any]) -> dict[str, str]:
    modules = {f"module {name}": checksum for name, checksum in imported_modules(where).items()}
    return modules | ({"package": str(where["sources"])} if where.get("sources") else {})


def _git_commit() -> str | None:
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # else it is a repository of something else
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    program = shutil.which("git")
    if program is None:
        raise FileNotFoundError("git")
    here = Path(apportion.__file__).parent
    # a fixed program with words from this file, and no shell
    done = subprocess.run([program, *words], cwd=here, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
