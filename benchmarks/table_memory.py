"""Tables: memory and time of `apportion check` and `fit`, each in a fresh process of its own, as ratios.

python benchmarks/table_memory.py [--rows 10000000] [--fit-rows 1000000] [--folder DIR]    some minutes

Memory is the peak that the system saw of the process, imports included, over the bytes of the feature
matrix (float32). Seconds are CPU seconds of one thread. `network` repeats the steps of `fit` with nothing but
the network: as many batches of the same sizes, ready in memory. What `fit` takes beyond it is outside.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS, BAG_ROWS = 8, 50  # and the bag's id: nine columns, bags of 50 rows
BATCH = 256  # instances
FIT_COLUMNS, FIT_BAGS, EPOCHS = 20, 2000, 5


def made(folder: Path, rows: int, bags: int, columns: int) -> tuple[Path, Path]:
    """The files of a table and its shares, made once and elsewhere: a child inherits its parent's peak."""
    table, shares = folder / f"rows-{rows}.parquet", folder / f"bags-{rows}.parquet"
    if not table.exists():
        fresh("make", table, shares, rows, bags, columns)
    return table, shares


def make(table: Path, shares: Path, rows: int, bags: int, columns: int) -> None:
    """A table with string ids and the shares of its bags."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng(0)
    names = pl.Series("bag", [f"precinct-{i:07d}" for i in range(bags)])
    features = {f"f{i}": random.standard_normal(rows, dtype=np.float32) for i in range(columns)}
    at = random.integers(0, bags, rows)
    at[:bags] = np.arange(bags)  # every bag has a row
    pl.DataFrame({"bag": names.gather(at), **features}).write_parquet(table, row_group_size=500_000)
    yes = random.random(bags)
    pl.DataFrame({"bag": names, "no": 1 - yes, "yes": yes}).write_parquet(shares)


def polars_alone(table: Path) -> None:
    """The read and the group-by, and nothing else."""
    import polars as pl

    means = pl.exclude("bag").mean()
    pl.scan_parquet(table).group_by("bag").agg(pl.len(), means).collect(engine="streaming")


def check(table: Path, shares: Path) -> None:
    from apportion.tables.check import check
    from apportion.tables.spec import BagColumn, TableSpec

    check(TableSpec(table, (BagColumn("bag", shares),))).report.raise_problems()


def hold(table: Path, shares: Path) -> None:
    """All that `fit` does up to the end of the first epoch: read, check, group, encode."""
    from apportion.estimator import ProportionClassifier
    from apportion.tables.check import check
    from apportion.tables.fit import fit
    from apportion.tables.spec import BagColumn, TableSpec

    spec = TableSpec(table, (BagColumn("bag", shares),))
    checked = check(spec)
    checked.report.raise_problems()
    next(fit(ProportionClassifier(epochs=1, batch_size=1024, random_state=0), spec, checked))


def network(table: Path, columns: int) -> None:
    """The arithmetic of the network alone, on batches as large and as many as those of `fit`."""
    import polars as pl
    import torch
    from torch.nn.functional import cross_entropy

    from apportion.bags.bags import Bags
    from apportion.networks import mlp
    from apportion.optim import make_optimizer

    counted = pl.scan_parquet(table).group_by("bag").len().collect()["len"].to_list()
    sizes, n = torch.tensor(counted), sum(counted)
    bags = Bags(torch.zeros(n, 0), sizes, torch.zeros(len(sizes), 2), torch.arange(n), range(len(sizes)))
    lengths = [len(b.x) for b in bags.batches(BATCH, torch.Generator())]
    net = mlp((columns,), 2)
    optimizer = make_optimizer(net, "adam", 2e-3)
    x, y = torch.randn(max(lengths), columns), torch.zeros(max(lengths), dtype=torch.int64)
    started = time.process_time()
    for length in EPOCHS * lengths:
        optimizer.zero_grad()
        cross_entropy(net(x[:length]), y[:length]).backward()
        optimizer.step()
    with torch.no_grad():  # the model's card tells how it meets the shares: one look at all rows
        for length in lengths:
            net(x[:length]).log_softmax(1)
    print(json.dumps({"cpu": time.process_time() - started}))


def fit(table: Path, shares: Path, out: Path) -> None:
    from apportion.cli.app import app

    words = ["fit", str(table), "--bag", "bag", "--proportions", str(shares), "--out", str(out)]
    words += ["--epochs", str(EPOCHS), "--batch-size", str(BATCH), "--pseudo-labels", "none"]
    app(words, standalone_mode=False)


PARTS = {"make": make, "polars": polars_alone, "check": check, "hold": hold, "network": network, "fit": fit}


def fresh(part: str, *words: object) -> dict[str, float]:
    """CPU seconds, wall seconds and peak bytes of a part in a process of its own, on one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--part", part, *map(str, words)]
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_part(part: str, words: list[str]) -> None:
    started = time.perf_counter()
    PARTS[part](*(int(word) if word.isdigit() else Path(word) for word in words))
    if part == "network":
        return
    wall, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss
    print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--fit-rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the tables are made; kept")
    parser.add_argument("--part", nargs="+", help="for its own use")
    asked = parser.parse_args()
    if asked.part:
        return run_part(asked.part[0], asked.part[1:])
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        table, shares = made(folder, asked.rows, asked.rows // BAG_ROWS, COLUMNS)
        matrix = 4 * asked.rows * COLUMNS
        found = {"polars": fresh("polars", table)}
        found |= {part: fresh(part, table, shares) for part in ("check", "hold")}
        print(
            f"{asked.rows:,} rows, {COLUMNS} features and a string id; the matrix has {matrix / 1e6:.0f} MB"
        )
        for part, line in found.items():
            beside, peak = line["cpu"] / found["polars"]["cpu"], line["peak"] / matrix
            print(f"{part:8}{line['cpu']:7.1f} s ({beside:.2f} × polars)   peak {peak:.2f} × matrix")
        table, shares = made(folder, asked.fit_rows, FIT_BAGS, FIT_COLUMNS)
        found["network"] = fresh("network", table, FIT_COLUMNS)
        found["fit"] = fresh("fit", table, shares, Path(scratch) / "model")
        total, bare = found["fit"]["cpu"], found["network"]["cpu"]
        print(f"{asked.fit_rows:,} rows × {FIT_COLUMNS}, {FIT_BAGS} bags, {EPOCHS} epochs:")
        print(f"fit     {total:7.1f} s, {EPOCHS * asked.fit_rows / total:,.0f} rows a second", end="")
        print(f"; network {bare:.1f} s; outside it {100 * (1 - bare / total):.0f} %")
        print(json.dumps(found))
    return None


if __name__ == "__main__":
    main()
