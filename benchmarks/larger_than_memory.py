"""A table larger than memory: `apportion fit` and `predict` of Parquet in processes with limited memory.

python benchmarks/larger_than_memory.py [--rows 40000000] [--columns 40] [--limit 2048]
                                        [--models trees linear] [--folder DIR] [--cgroup DIR] [--in-memory]

`--limit` is in MiB. In a cgroup that may be written to (`--cgroup`, an empty one with the memory controller),
it is `memory.max` or, of version 1, `memory.limit_in_bytes`. Without one, the limit is RLIMIT_DATA, which
counts what a process reserves besides files, used or not; the files' pages that the process has in memory are
thrown out (MADV_PAGEOUT) whenever they and the rest exceed the limit. This needs Linux and root, and is not
exact: between two looks, a tenth of a second, files may take more.

Printed are the peak of the memory that is no file's, of all that is resident, and of the disk, and CPU and
wall seconds. `--in-memory` repeats the fit on a tenth of the rows without a limit, for the time per row. The
files take as much as the encoded features, temporary files another 1.4 times as much.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BAG_ROWS = 50
GROUP_ROWS = 250_000
MIB = 1 << 20
PIDFD_OPEN, PROCESS_MADVISE, MADV_PAGEOUT = 434, 440, 21


def make(rows: int, columns: int, table: Path, shares: Path) -> None:
    """A table with a number for the bag of each row, in random order, and the counts of the bags."""
    import numpy as np
    import polars as pl
    from polars.io.plugins import register_io_source

    random = np.random.default_rng(0)
    n_bags = rows // BAG_ROWS
    bag = random.permutation(np.arange(rows, dtype=np.int32) % n_bags)
    names = [f"f{j}" for j in range(columns)]
    counts = np.zeros((n_bags, 2), np.int64)

    def batches(*_: object) -> Iterator[pl.DataFrame]:
        for start in range(0, rows, GROUP_ROWS):
            own = bag[start : start + GROUP_ROWS]
            x = random.standard_normal((len(own), columns), dtype=np.float32)
            score = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(2 * x[:, 3]) + np.sin(own)
            yes = score + random.logistic(size=len(own)) > 0
            np.add.at(counts, (own, yes.astype(int)), 1)
            yield pl.DataFrame({"bag": own, **{name: x[:, j] for j, name in enumerate(names)}})

    schema = {"bag": pl.Int32, **dict.fromkeys(names, pl.Float32)}
    register_io_source(batches, schema=schema).sink_parquet(table, row_group_size=GROUP_ROWS)
    pl.DataFrame({"bag": range(n_bags), "no": counts[:, 0], "yes": counts[:, 1]}).write_parquet(shares)


def command_of(part: str, table: Path, shares: Path, model: Path, out: Path) -> list[str]:
    if part == "predict":
        return ["predict", str(model), str(table), "--out", str(out)]
    options = ["--bag", "bag", "--counts", str(shares), "--model", part]
    return ["fit", str(table), *options, "--out", str(model)]


def run_limited(words: list[str], limit: int, cgroup: Path | None, temporary: Path) -> dict[str, float]:
    """Run `apportion` with a limit of memory in bytes, and watch it. 0: no limit."""

    def restrict() -> None:
        os.nice(10)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        elif limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    if cgroup is not None:
        limit_of(cgroup).write_text(str(limit or 1 << 62))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
    environment = os.environ | threads | {"TMPDIR": str(temporary)}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", *words], env=environment, preexec_fn=restrict,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    peaks = {"anonymous": 0, "resident": 0, "disk": 0}
    thrown_out = 0
    while process.poll() is None:
        anonymous, files = memory_of(process.pid)
        mapped = temporary_mappings(process.pid, temporary)
        found = {"anonymous": anonymous, "resident": anonymous + files, "disk": sum(n for _, n in mapped)}
        peaks = {name: max(peak, found[name]) for name, peak in peaks.items()}
        if limit and cgroup is None and anonymous + files > limit:
            page_out(process.pid, mapped)
            thrown_out += 1
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return peaks | {
        "wall": time.perf_counter() - started,
        "cpu": used.ru_utime + used.ru_stime,  # of all children so far
        "thrown out": thrown_out,
    }


def limit_of(cgroup: Path) -> Path:
    """The file of a cgroup's limit."""
    version_2 = cgroup / "memory.max"
    return version_2 if version_2.exists() else cgroup / "memory.limit_in_bytes"


def memory_of(pid: int) -> tuple[int, int]:
    """Resident bytes of a process that belong to no file, and those of files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")}
    return values.get("RssAnon", 0) + values.get("RssShmem", 0), values.get("RssFile", 0)


def temporary_mappings(pid: int, folder: Path) -> list[tuple[int, int]]:
    """Address and length of the temporary files that a process has mapped."""
    found = []
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if str(folder) in line and line.endswith("(deleted)"):
                first, last = (int(each, 16) for each in line.split()[0].split("-"))
                found.append((first, last - first))
    except OSError:
        pass
    return found


def page_out(pid: int, mappings: list[tuple[int, int]]) -> None:
    """Write the pages of these mappings to their files, and take them out of memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(PIDFD_OPEN, pid, 0)
    if handle < 0:
        return
    for address, length in mappings:
        for start in range(0, length, 1 << 29):
            part = (ctypes.c_size_t * 2)(address + start, min(1 << 29, length - start))
            libc.syscall(PROCESS_MADVISE, handle, part, ctypes.c_size_t(1), MADV_PAGEOUT, 0)
    os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--limit", type=int, default=2048, help="MiB")
    parser.add_argument("--models", nargs="+", default=["trees", "linear"])
    parser.add_argument("--folder", type=Path, help="where the table is made; kept")
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("--in-memory", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        folder, temporary = asked.folder or Path(scratch), Path(scratch)
        sizes = [(asked.rows, asked.limit * MIB)]
        if asked.in_memory:
            sizes.append((asked.rows // 10, 0))
        for rows, limit in sizes:
            table, shares = folder / f"rows-{rows}.parquet", folder / f"bags-{rows}.parquet"
            if not shares.exists():
                words = [str(each) for each in (rows, asked.columns, table, shares)]
                subprocess.run([sys.executable, __file__, "--make", *words], check=True)
            matrix = 4 * rows * asked.columns
            print(f"{rows:,} rows × {asked.columns}: features {matrix / 2**30:.2f} GiB", end="")
            print(f", limit {limit / 2**30:.2f} GiB" if limit else ", no limit", flush=True)
            before = 0.0
            for number, part in enumerate([*asked.models, "predict"]):
                model = temporary / f"model-{rows}-{asked.models[min(number, len(asked.models) - 1)]}"
                words = command_of(part, table, shares, model, temporary / "scored.parquet")
                found = run_limited(words, limit, asked.cgroup, temporary)
                found["cpu"], before = found["cpu"] - before, found["cpu"]
                print(
                    f"{part:8} anonymous {found['anonymous'] / 2**30:.2f} GiB, "
                    f"{found['anonymous'] / matrix:.2f} × features; "
                    f"resident {found['resident'] / 2**30:.2f} GiB; "
                    f"temporary files {found['disk'] / 2**30:.2f} GiB; "
                    f"{found['cpu']:.0f} CPU s, {1e6 * found['cpu'] / rows:.1f} µs per row; "
                    f"{found['wall']:.0f} s; thrown out {found['thrown out']:.0f} times",
                    flush=True,
                )
                print(json.dumps({"rows": rows, "part": part} | found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
    else:
        main()
