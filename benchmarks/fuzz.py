"""Fuzz every reader of files from strangers: nothing but its own error may come of any input.

    python benchmarks/fuzz.py                       all readers, 100,000 inputs each
    python benchmarks/fuzz.py csv --inputs 1000000  one of them

Readers of Parquet run only if they are named: some damaged files crash the library that decodes them
(SECURITY.md).

Needs atheris (pip install -e '.[fuzz]'), which steers by the branches that an input takes through our code
and through the standard library's. A finding is kept in fuzz/ and becomes a test.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import apportion

HERE = Path(__file__).resolve().parent
LIMITS = ("-rss_limit_mb=3000", "-malloc_limit_mb=1000", "-timeout=10", "-max_len=20000")


def fuzz(name: str, inputs: int, corpus: str) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    sys.path.insert(0, str(HERE.parent / "tests"))
    import_compiled_modules()  # before the others are instrumented: numba cannot compile a traced function
    with atheris.instrument_imports(include=["apportion", "tarfile", "zipfile", "gzip", "json"]):
        from readers import READERS
    good, read, error = READERS[name]
    (Path(corpus) / "good").write_bytes(good)

    def holds(data: bytes) -> None:
        with suppress(error):
            read(data)

    def other_values(data: bytes, most: int, seed: int) -> bytes:
        """JSON of which a value is another, half of the time: changed bytes are seldom JSON."""
        changed = with_another(data, seed) if seed % 2 else b""
        return changed[:most] or atheris.Mutate(data, most)

    findings = f"-artifact_prefix={HERE.parent / 'fuzz'}/{name.replace(' ', '-')}-"
    flags = [f"-runs={inputs}", "-seed=1", "-print_final_stats=1", findings, *LIMITS, corpus]
    options = {"custom_mutator": other_values} if with_another(good, 1) else {}
    atheris.Setup([sys.argv[0], *flags], holds, **options)
    atheris.Fuzz()


def import_compiled_modules() -> None:
    source = Path(apportion.__file__).parent
    for path in source.rglob("*.py"):
        if "numba" in path.read_text():
            import_module(".".join(["apportion", *path.relative_to(source).with_suffix("").parts]))


HOSTILE: tuple[object, ...] = (
    None, True, -1, 0, 1, 0.5, 2**31, 2**63, 10**400, 1e308, -1e-300, float("nan"), float("inf"), "", "x",
    "\ud800", "1" * 5000, [], {}, [[]], {"": {}}, [1] * 2000, "=\n|<script>\x1b[2J",
)  # fmt: skip


def with_another(data: bytes, seed: int) -> bytes:
    """JSON, or lines of it, with another value at one place; nothing where it is no JSON."""
    chance = random.Random(seed)  # noqa: S311
    lines = data.splitlines() if data.count(b"}\n{") else [data]
    which = chance.randrange(max(1, len(lines)))
    try:
        place = values = json.loads(lines[which])
    except (ValueError, RecursionError, IndexError):
        return b""
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or chance.random() < 0.2:
            kind = chance.randrange(10)
            if kind == 0:
                del place[key]
            else:
                place[key] = chance.choice(HOSTILE) if kind > 1 else values
            break
        place = place[key]
    try:
        lines[which] = json.dumps(values).encode()
    except ValueError:  # it holds itself
        return b""
    return b"\n".join(lines) + (b"\n" if len(lines) > 1 else b"")


def all_names() -> list[str]:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from readers import READERS

    return [name for name in READERS if "parquet" not in name]


def fuzz_apart(name: str, inputs: int) -> bool:
    """Fuzz one reader in a process of its own; whether nothing was found."""
    started = time.monotonic()
    command = [sys.executable, __file__, name, "--inputs", str(inputs), "--inside"]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: S108
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": folder})
    numbers = {words[0]: words[-1] for line in done.stderr.splitlines() if (words := line.split())}
    tried, peak = numbers.get("stat::number_of_executed_units:", "?"), numbers.get("stat::peak_rss_mb:", "?")
    seconds = time.monotonic() - started
    verdict = "nothing found" if done.returncode == 0 else "FOUND:\n" + done.stderr[-3000:]
    print(f"{name:12} {tried:>9} inputs {seconds:6.0f} s {peak:>6} MB  {verdict}", flush=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("readers", nargs="*", help="by default all but those of Parquet")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        with tempfile.TemporaryDirectory() as corpus:
            fuzz(given.readers[0], given.inputs, corpus)
    (HERE.parent / "fuzz").mkdir(exist_ok=True)
    good = [fuzz_apart(name, given.inputs) for name in given.readers or all_names()]
    print(f"{sum(good)} of {len(good)} readers without a finding")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
