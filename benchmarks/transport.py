"""Transport beside its peers, in one run: tables of ratios, and a JSON with everything.

    pip install 'apportion[bench]'
    python benchmarks/transport.py                      # all parts, a quarter of an hour
    python benchmarks/transport.py exact growth         # some of them
    python benchmarks/transport.py --json out.json --figures docs/images

Everything but the part `threads` runs on one core, every contestant (torch, BLAS and jax too) on one thread,
and is timed by the CPU clock of the process: time that other processes have the core for does not count. Only
the parts `threads` and `memory` read the clock on the wall. Contestants start from the same data, take turns,
and are each given their best time. Slow peers solve only the first bags; their time is scaled up.
"""

import argparse
import json
import math
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

from apportion.transport import assign, assign_with_duals, entropic_plan

Workload = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # log-probabilities (N, k) float32, sizes (m,), counts (m, k)
Contest = dict[str, tuple[Callable[[], object], float]]  # name -> (what to run, share of the bags it solves)


def workload(n_rows: int, k: int, size: int, accuracy: float, seed: int = 0) -> Workload:
    """Log-probabilities of a calibrated classifier whose argmax is right with this probability."""
    generator = np.random.default_rng(seed)
    bags = max(1, n_rows // size)
    labels = generator.integers(0, k, bags * size)
    noise = generator.normal(size=(bags * size, k)).astype(np.float32)
    sample, truth = noise[:20_000], labels[:20_000]
    low, high = 0.0, 20.0
    for _ in range(30):
        margin = (low + high) / 2
        shifted = sample + margin * (truth[:, None] == np.arange(k))
        low, high = (margin, high) if (shifted.argmax(1) == truth).mean() < accuracy else (low, margin)
    noise[np.arange(len(noise)), labels] += np.float32(high)
    log_probs = log_softmax(np.float32(high) * noise, axis=1).astype(
        np.float32
    )  # the posterior of this model
    counts = np.zeros((bags, k), np.int64)
    np.add.at(counts, (np.arange(bags * size) // size, labels), 1)
    return log_probs, np.full(bags, size), counts


def contest(entries: Contest, rounds: int) -> dict[str, float]:
    """Best CPU milliseconds of each entry, in turns; a slow entry (over four seconds) has one turn."""
    best: dict[str, float] = {}
    for turn in range(rounds):
        for name, (run, share) in entries.items():
            if turn and best[name] * share > 4_000:
                continue
            begin = time.process_time()
            run()
            taken = 1e3 * (time.process_time() - begin) / share
            best[name] = min(best.get(name, math.inf), taken)
    return best


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, ["-" * width for width in widths], *rows]:
        print(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |",
            flush=True,
        )


# Exact labels.


def bags_of(load: Workload, limit: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Log-probabilities and counts of the first bags."""
    parts = np.split(load[0], np.cumsum(load[1])[:-1])[:limit]
    return list(zip(parts, load[2], strict=False))


def pot_loop(bags: list) -> None:
    import ot

    for log_probs, counts in bags:
        n = len(log_probs)
        ot.emd(np.full(n, 1 / n), counts / n, -log_probs.astype(np.float64)).argmax(1)


def scipy_loop(bags: list) -> None:
    for log_probs, counts in bags:
        columns = np.repeat(np.arange(len(counts)), counts)
        columns[linear_sum_assignment(log_probs[:, columns], maximize=True)[1]]


def lapx_batch(bags: list) -> None:
    import lap

    for first in range(0, len(bags), 64):  # more at once would not fit into memory for bags of 1,024
        part = bags[first : first + 64]
        columns = np.stack([np.repeat(np.arange(len(counts)), counts) for _, counts in part])
        square = np.stack([-log_probs[:, c] for (log_probs, _), c in zip(part, columns, strict=True)])
        chosen = np.stack(lap.lapjvr_batch(square, return_cost=False, n_threads=1)[0])
        np.take_along_axis(columns, chosen, 1)


def exact_part(rounds: int) -> list[dict]:
    """Against POT, scipy, lapx and numpy's argmin."""
    cases = [(50_000, 10, 16), (50_000, 10, 64), (50_000, 10, 128), (50_000, 10, 1024)]
    cases += [(50_000, 100, 16), (50_000, 100, 128), (50_000, 100, 1024), (1_000_000, 2, 1000)]
    results = []
    for n_rows, k, size in cases:
        for accuracy in (0.6, 0.75, 0.9):
            load = workload(n_rows, k, size, accuracy)
            bags = bags_of(load)
            few = bags[: max(1, len(bags) // 10)] if size >= 1000 else bags
            share = len(few) / len(bags)
            entries: Contest = {
                "apportion": (lambda load=load: assign(*load), 1.0),
                "argmin": (lambda load=load: load[0].argmin(1), 1.0),
                "pot": (lambda bags=bags: pot_loop(bags), 1.0),
                "scipy": (lambda few=few: scipy_loop(few), share),
                "lapx": (lambda few=few: lapx_batch(few), share),
            }
            first = assign_with_duals(*load)
            entries["warm"] = (lambda load=load, p=first.prices: assign_with_duals(*load, prices=p), 1.0)
            times = contest(entries, rounds)
            results.append({"N": n_rows, "k": k, "n": size, "accuracy": accuracy, "ms": times})
    rows = [
        [f"{r['N']:,}", str(r["k"]), str(r["n"]), f"{r['accuracy']:.0%}", f"{r['ms']['apportion']:.1f}"]
        + [f"{r['ms'][peer] / r['ms']['apportion']:.1f}" for peer in ("pot", "scipy", "lapx")]
        + [f"{r['ms']['apportion'] / r['ms']['argmin']:.1f}"]
        for r in results
    ]
    columns = ["N", "k", "n", "argmax right", "ms", "POT, times slower", "scipy", "lapx", "ours / argmin"]
    show("Exact labels, one core", columns, rows)
    return results


# Entropic labels.


def errors_of(plans: np.ndarray | list[np.ndarray], bags: list) -> float:
    """Largest distance of a class mass from its proportion, once every row is a label that sums to one."""
    return max(
        float(np.abs((plan / plan.sum(1, keepdims=True)).mean(0) - counts / len(rows)).max())
        for plan, (rows, counts) in zip(plans, bags, strict=True)
    )


def pot_sinkhorn(bags: list, scale: float, out: dict) -> None:
    import ot

    method = "sinkhorn" if scale <= 10 else "sinkhorn_log"  # the faster one where it does not underflow
    plans = []
    for log_probs, counts in bags:
        a, b, costs = (
            np.full(len(log_probs), 1 / len(log_probs)),
            counts / len(log_probs),
            -log_probs.astype(float),
        )
        plans.append(ot.sinkhorn(a, b, costs, 1 / scale, method, 1000, 1e-6, warn=False))
    out["pot loop"] = plans


def pot_batched(bags: list, scale: float, out: dict) -> None:
    import ot

    costs = -torch.from_numpy(np.stack([log_probs for log_probs, _ in bags])).double()
    shares = torch.from_numpy(np.stack([counts / len(bags[0][0]) for _, counts in bags]))
    a = torch.full(costs.shape[:2], 1 / costs.shape[1], dtype=torch.float64)
    plan = ot.solve_batch(
        costs, 1 / scale, a, shares, max_iter=1000, tol=1e-6, method="log_sinkhorn", grad="detach"
    ).plan
    out["pot batched"] = plan.numpy()


def ott_vmapped(bags: list, scale: float) -> Callable[[dict], None]:
    """A function that is compiled on its first call, so that the first turn is not counted against it."""
    import jax
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    solver = Sinkhorn(threshold=1e-6, max_iterations=1000)
    solve = jax.jit(
        jax.vmap(lambda cost, b: solver(LinearProblem(Geometry(cost, epsilon=1 / scale), b=b)).matrix)
    )
    costs = -np.stack([log_probs for log_probs, _ in bags])
    shares = np.stack([counts / len(bags[0][0]) for _, counts in bags]).astype(np.float32)

    def run(out: dict) -> None:
        out["ott-jax"] = np.asarray(solve(costs, shares))

    return run


def entropic_part(rounds: int) -> list[dict]:
    """Against POT's loop, POT's batched solver and ott-jax, to 1e-6 or 1,000 iterations."""
    results = []
    for k, size in ((10, 16), (10, 128), (10, 1024), (100, 16), (100, 128), (100, 1024)):
        load = workload(50_000, k, size, 0.75)
        shares = load[2] / load[1][:, None]
        for scale in (1.0, 10.0, 100.0):
            few = bags_of(load, max(2, len(load[1]) // (50 if k == 10 else 100)))
            batch = bags_of(load, max(8, len(load[1]) // (5 if k == 10 else 20)))
            plans: dict[str, np.ndarray | list[np.ndarray]] = {}  # of the peers; judged after the clock
            ott = ott_vmapped(batch, scale)
            ott(plans)
            run = {
                "entropic_plan": lambda shares=shares, load=load, scale=scale: entropic_plan(
                    *load[:2], shares, reg=1 / scale
                )
            }
            plan = run["entropic_plan"]()
            few_share, batch_share = len(few) / len(load[1]), len(batch) / len(load[1])
            times = contest(
                {
                    "apportion": (run["entropic_plan"], 1.0),
                    "exact": (lambda load=load: assign(*load), 1.0),
                    "pot loop": (lambda few=few, s=scale, p=plans: pot_sinkhorn(few, s, p), few_share),
                    "pot batched": (
                        lambda batch=batch, s=scale, p=plans: pot_batched(batch, s, p),
                        batch_share,
                    ),
                    "ott-jax": (lambda ott=ott, p=plans: ott(p), batch_share),
                },
                rounds,
            )
            solved = {"pot loop": few, "pot batched": batch, "ott-jax": batch}
            reached = {peer: errors_of(plans[peer], bags) for peer, bags in solved.items()}
            reached["apportion"] = plan.error.max().item()
            results.append(
                {
                    "k": k,
                    "n": size,
                    "lambda": scale,
                    "iterations": plan.iterations,
                    "ms": times,
                    "error": reached,
                }
            )
    peers = ("pot loop", "pot batched", "ott-jax")
    rows = [
        [str(r["k"]), str(r["n"]), f"{r['lambda']:g}", f"{r['ms']['apportion']:.1f}", str(r["iterations"])]
        + [f"{r['error']['apportion']:.0e}"]
        + [f"{r['ms'][peer] / r['ms']['apportion']:.0f} ({r['error'][peer]:.0e})" for peer in peers]
        + [f"{min(r['ms'][peer] for peer in peers) / r['ms']['apportion']:.1f}"]
        + [f"{r['ms']['exact'] / r['ms']['apportion']:.2f}"]
        for r in results
    ]
    columns = ["k", "n", "lambda", "ms", "iterations", "error", "POT loop, times slower (error)"]
    columns += ["POT batched", "ott-jax", "fastest peer", "exact / entropic_plan"]
    show("Entropic labels, N = 50,000, one core", columns, rows)
    return results


# Correctness, growth, memory, threads.


def check_part(problems: int) -> list[dict]:
    """Random problems with ties, zeros and minus infinities: the cost of scipy's solution to 1e-9."""
    generator, worst, infeasible = np.random.default_rng(0), 0.0, 0
    for _ in range(problems):
        n, k = int(generator.integers(1, 60)), int(generator.integers(1, 16))
        scores = generator.normal(size=(n, k)) * generator.choice([1e-3, 1.0, 100.0])
        scores = np.round(scores) if generator.random() < 0.4 else scores
        if generator.random() < 0.3:
            scores[generator.random((n, k)) < 0.2] = -np.inf
        scores = scores.astype(np.float32) if generator.random() < 0.5 else scores
        counts = generator.multinomial(n, generator.dirichlet(np.full(k, generator.choice([0.2, 5.0]))))
        columns = scores[:, np.repeat(np.arange(k), counts)].astype(np.float64)
        try:
            rows, chosen = linear_sum_assignment(columns, maximize=True)
            best = columns[rows, chosen].sum()
        except ValueError:
            best = -math.inf
        try:
            classes = assign(scores, [n], counts[None]).numpy()
        except ValueError:
            if best > -math.inf:
                raise SystemExit("a solvable problem was called infeasible") from None
            infeasible += 1
            continue
        if not np.array_equal(np.bincount(classes, minlength=k), counts):
            raise SystemExit("labels do not have the counts that were asked for")
        got = scores[np.arange(n), classes].astype(np.float64).sum()
        size = max(abs(best), np.abs(scores[np.arange(n), classes]).sum(dtype=np.float64), 1e-300)
        worst = max(worst, abs(got - best) / size)
    if worst > 1e-9:
        raise SystemExit(f"a cost is {worst} above the least")
    text = [f"{problems:,}", f"{infeasible:,}", f"{worst:.1e}"]
    show(
        "Random problems against scipy",
        ["problems", "of them infeasible", "largest relative difference"],
        [text],
    )
    return [{"problems": problems, "infeasible": infeasible, "worst": worst}]


def exponent(sizes: list[float], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def growth_part(rounds: int) -> list[dict]:
    """Time against N at k = 10, and against n and k beside POT."""
    results, rows = [], []
    for size in (64, 1024):
        rows_of = [10**4, 10**5, 10**6, 10**7]
        times = []
        for n_rows in rows_of:
            load = workload(n_rows, 10, size, 0.75)
            turns = rounds if n_rows < 10**7 else 3
            times.append(contest({"apportion": (lambda load=load: assign(*load), 1.0)}, turns)["apportion"])
        results.append({"axis": "N", "n": size, "k": 10, "x": rows_of, "apportion": times})
        rows.append([str(size), *(f"{t:.2f}" for t in times), f"{exponent(rows_of, times):.2f}"])
    show("Milliseconds against N, k = 10", ["n", "10^4", "10^5", "10^6", "10^7", "exponent"], rows)
    axes = [("n", [16, 64, 256, 1024, 4096, 16384, 65536], 10), ("k", [2, 10, 30, 100, 300, 1000], 1024)]
    for axis, values, other in axes:
        times = {"apportion": [], "pot": []}
        for value in values:
            size, k = (value, other) if axis == "n" else (other, value)
            load = workload(65_536 if axis == "n" else 8 * 1024, k, size, 0.75)
            few = bags_of(load, 512)
            entries: Contest = {"apportion": (lambda load=load: assign(*load), 1.0)}
            if size * k <= 1 << 20:
                entries["pot"] = (lambda few=few: pot_loop(few), len(few) / len(load[1]))
            best = contest(entries, 3)
            for name, series in times.items():  # microseconds a row
                series.append(1e3 * best[name] / len(load[0]) if name in best else math.nan)
        results.append({"axis": axis, "x": values, "other": other, **times})
        table = [[str(v), f"{a:.3f}", f"{p:.3f}"] for v, a, p in zip(values, *times.values(), strict=True)]
        show(f"Microseconds a row against {axis}", [axis, "apportion", "POT"], table)
    return results


def memory_part(n_rows: int) -> list[dict]:
    """Peak memory beyond input and output."""
    results, rows = [], []
    for size in (128, 1024):
        load = workload(n_rows, 10, size, 0.75)
        shares = load[2] / load[1][:, None]
        runs = {
            "exact": lambda load=load: assign(*load),
            "entropic_plan": lambda load=load, s=shares: entropic_plan(*load[:2], s, reg=1.0).mass,
        }
        for name, run in runs.items():
            tracemalloc.start()
            begin = time.perf_counter()
            output = run().nbytes
            seconds = time.perf_counter() - begin
            peak = tracemalloc.get_traced_memory()[1] - output
            tracemalloc.stop()
            results.append({"solver": name, "N": n_rows, "n": size, "share": peak / load[0].nbytes})
            rows.append([name, f"{n_rows:,}", f"{size:,}", f"{peak / load[0].nbytes:.3f}", f"{seconds:.2f}"])
    show(
        "Peak memory beyond input and output, in shares of the input",
        ["solver", "N", "n", "share", "s"],
        rows,
    )
    return results


def threads_part(rounds: int) -> list[dict]:
    """Two threads against one; needs two idle cores."""
    results, rows = [], []
    for n_rows, k, size in ((1_000_000, 10, 128), (1_000_000, 10, 1024), (200_000, 100, 128)):
        load = workload(n_rows, k, size, 0.75)
        shares = load[2] / load[1][:, None]
        runs = {
            "exact": lambda load=load: assign(*load),
            "entropic_plan": lambda load=load, s=shares: entropic_plan(*load[:2], s, reg=0.1),
        }
        for name, run in runs.items():
            best = [math.inf, math.inf]
            for _ in range(rounds):
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    begin = time.perf_counter()
                    run()
                    best[threads - 1] = min(best[threads - 1], time.perf_counter() - begin)
            torch.set_num_threads(1)
            results.append({"solver": name, "N": n_rows, "k": k, "n": size, "speedup": best[0] / best[1]})
            rows.append([name, f"{n_rows:,}", str(k), str(size), f"{best[0] / best[1]:.2f}"])
    show("Two threads, times faster than one", ["solver", "N", "k", "n", "times"], rows)
    return results


def draw(growth: list[dict], folder: Path) -> None:
    """Time a row against n and k, beside POT."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axis, name, label in zip(
        axes, ("n", "k"), ("instances in a bag (10 classes)", "classes (bags of 1,024)"), strict=True
    ):
        series = next(entry for entry in growth if entry["axis"] == name)
        axis.loglog(series["x"], series["pot"], "o--", color="tab:gray", label="POT, a loop of ot.emd")
        axis.loglog(
            series["x"], series["apportion"], "o-", color="tab:blue", label="apportion.transport.assign"
        )
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds a row, one core")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(folder / "transport-growth.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["exact", "entropic_plan", "check", "growth", "memory", "threads"]
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args()
    wanted = options.parts or names
    if unknown := set(wanted) - set(names):
        parser.error(f"unknown part {sorted(unknown)[0]}; known are {', '.join(names)}")
    cores = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    threadpool_limits(1)
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # jax's
    os.sched_setaffinity(0, {max(cores)})  # one core for every contestant, whatever pool of threads it brings
    calls = {
        "exact": lambda: exact_part(options.rounds),
        "entropic_plan": lambda: entropic_part(min(options.rounds, 5)),
        "check": lambda: check_part(10_000),
        "growth": lambda: growth_part(options.rounds),
        "memory": lambda: memory_part(10**7),
        "threads": lambda: threads_part(options.rounds),
    }
    small = workload(1_000, 3, 10, 0.75)
    (
        assign(*small),
        assign_with_duals(*small),
        entropic_plan(*small[:2], small[2] / 10, reg=1.0),
    )  # compiles, before any clock
    report = {}
    for name in wanted:
        if name == "threads":
            os.sched_setaffinity(0, cores)
        report[name] = calls[name]()
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))
    if options.figures and "growth" in report:
        draw(report["growth"], options.figures)


if __name__ == "__main__":
    main()
