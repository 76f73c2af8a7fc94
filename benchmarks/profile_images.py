"""Where an epoch on images goes on a GPU: compiling, kernels, launches and waits.

    python benchmarks/profile_images.py beyond-resnet9-muon/two_views/64 table1/dllp/64 table1/dllp+plot/64
    python benchmarks/profile_images.py --out DIR NAME…     also a timeline of one step for each, as PNG

Each name is a recipe. Its stage is trained for a few epochs on 50,000 images of random bytes, which cost what
real ones do; the teacher of a second stage is random too. A line says how long the first epoch took beyond
the others (compiling), an epoch (median, training alone), its labels and its evaluation, for how much of an
epoch the device is busy (the union of its kernels and copies), and how long the host waits for it. Below, the
kernels that take most. The profiler slows the host, not the device, so the epoch that it watches is another.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion._device import deterministic_algorithms, find_device
from apportion._random import stream
from apportion.augment import views
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances
from apportion.evaluate import predict_log_proba
from apportion.experiments.data import RunData
from apportion.experiments.recipe import Recipe
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import build_labeler, train_stage
from apportion.pipeline import EpochState

WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")


def random_images(n_classes: int, n: int, n_test: int) -> Instances:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n + n_test, 3, 32, 32), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, n_classes, (n + n_test,), generator=generator)
    classes = tuple(str(c) for c in range(n_classes))
    center, scale = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    return Instances("random images", x[:n], y[:n], x[n:], y[n:], classes, center, scale)


def random_data(recipe: Recipe, device: torch.device, n: int) -> RunData:
    data = random_images(100 if "100" in recipe.data.name else 10, n, n // 5)
    bags, hidden = make_bags(data.x, data.y, recipe.data.bag_size, data.n_classes, stream(0, "bags"))
    augment, prepare = views(data.mean, data.std, device, recipe.stage_augment)
    data = replace(data, test_x=data.test_x.to(device), test_y=data.test_y.to(device))
    return RunData(data, bags.to(device), hidden.to(device), None, augment, prepare, device)


def states(recipe: Recipe, task: RunData, folder: Path) -> Iterator[EpochState]:
    """The epochs of the recipe's stage; a second stage starts from random predictions."""
    teacher = None
    if recipe.second is not None:
        teacher = folder
        n, k = len(task.bags.x), task.data.n_classes
        np.save(folder / "log_probs.npy", torch.randn(n, k).log_softmax(1).numpy())
    return train_stage(recipe, task, teacher, None, build_labeler(recipe.second))


@contextmanager
def profiled(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """What the device does and what the host waits for within this context, as events of a Chrome trace."""
    events: list[dict[str, Any]] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        yield events
    profiler.export_chrome_trace(str(folder / "trace.json"))
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    events += [event for event in trace if event.get("ph") == "X" and "dur" in event]


def on_device(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return sorted((e for e in events if e.get("cat") in kinds), key=lambda e: e["ts"])


def busy_seconds(work: list[dict[str, Any]]) -> float:
    """The union of the times of these events."""
    total = end = 0.0
    for event in work:
        start, stop = max(event["ts"], end), event["ts"] + event["dur"]
        total += max(0.0, stop - start)
        end = max(end, stop)
    return total / 1e6


def waits(events: list[dict[str, Any]]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "cuda_runtime" and event["name"] in WAITS:
            seconds[event["name"]] += event["dur"] / 1e6
    return seconds


def print_kernels(work: list[dict[str, Any]], n_steps: int, shown: int) -> None:
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for event in work:
        seconds[event["name"]] += event["dur"] / 1e6
        calls[event["name"]] += 1
    total = sum(seconds.values())
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:shown]:
        milliseconds = 1e3 * seconds[name] / n_steps
        print(f"    {milliseconds:7.3f} ms a step {calls[name] / n_steps:6.1f} x {seconds[name] / total:6.1%}"
              f"  {name[:110]}")  # fmt: skip


def profile(name: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    recipe = RECIPES[name]
    task = random_data(recipe, device, options.images)
    n_steps = -(-len(task.bags.x) // recipe.batch_size)
    walls: list[float] = []
    training: list[float] = []
    labels: list[float] = []
    evaluation: list[float] = []
    with tempfile.TemporaryDirectory() as temporary, deterministic_algorithms(False):
        folder = Path(temporary)
        started = time.perf_counter()
        epochs = states(recipe, task, folder)
        for state in epochs:
            torch.cuda.synchronize()
            walls.append(time.perf_counter() - started)
            training.append(state.epoch.seconds)
            labels.append(state.label_seconds)
            started = time.perf_counter()
            predict_log_proba(state.learner.classifier, task.data.test_x, task.prepare)
            torch.cuda.synchronize()
            evaluation.append(time.perf_counter() - started)
            if len(walls) == options.epochs:
                break
            started = time.perf_counter()
        with profiled(folder) as events:
            state = next(epochs)
            torch.cuda.synchronize()
    work = on_device(events)
    waiting = waits(events)
    steady = statistics.median(training[2:])
    launches = sum(event.get("cat") == "cuda_runtime" and "Launch" in event["name"] for event in events)
    row = {
        "recipe": name,
        "compile": walls[0] - steady,
        "second": training[1],
        "epoch": steady,
        "fastest": min(training[2:]),
        "label": statistics.median(labels[2:]),
        "evaluate": statistics.median(evaluation[2:]),
        "busy": busy_seconds(work),
        "launches": launches / n_steps,
        "waits": dict(waiting),
        "memory": torch.cuda.max_memory_reserved() / 2**30,
    }
    print(
        f"{name}: compiling {row['compile']:.1f} s, second epoch {row['second']:.2f}; epoch {steady:.3f} s "
        f"(fastest {row['fastest']:.3f}), device busy {row['busy']:.3f}, labels {row['label']:.3f}, "
        f"evaluation {row['evaluate']:.3f}, {row['launches']:.0f} launches a step, "
        f"{row['memory']:.1f} GiB reserved",
        flush=True,
    )
    print("    waits of the host:", {key: round(value, 3) for key, value in waiting.items()})
    print_kernels(work, n_steps, options.kernels)
    if options.out is not None:
        draw_step(name, events, n_steps, options.out)
    return row


def draw_step(name: str, events: list[dict[str, Any]], n_steps: int, out: Path) -> None:
    """A timeline of two steps in the middle of the epoch: what the host launches and awaits, and kernels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    work = on_device(events)
    calls = [e for e in events if e.get("cat") == "cuda_runtime"]
    start = work[0]["ts"] + (work[-1]["ts"] - work[0]["ts"]) * 0.5
    length = 2 * (work[-1]["ts"] - work[0]["ts"]) / n_steps
    rows = {
        "kernels": [e for e in work if e["cat"] == "kernel"],
        "copies": [e for e in work if e["cat"] != "kernel"],
        "host waits": [e for e in calls if e["name"] in WAITS],
        "host launches": [e for e in calls if e["name"] not in WAITS],
    }
    figure, axes = plt.subplots(figsize=(10, 2.2), layout="constrained")
    colors = ["tab:blue", "tab:orange", "tab:red", "tab:gray"]
    for height, ((label, each), color) in enumerate(zip(rows.items(), colors, strict=True)):
        bars = [((e["ts"] - start) / 1e3, e["dur"] / 1e3) for e in each if start <= e["ts"] <= start + length]
        axes.broken_barh(bars, (-height - 0.4, 0.8), color=color, label=label, linewidth=0)
    axes.set_yticks([-i for i in range(len(rows))], list(rows))
    axes.set_xlim(0, length / 1e3)
    axes.set_xlabel("milliseconds")
    axes.set_title(f"two steps of {name}", fontsize=10)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name.replace('/', '-')}.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--kernels", type=int, default=14, help="how many kernels are listed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--inductor", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args()
    if options.inductor:
        from torch._inductor import config

        for word in options.inductor:
            key, value = word.split("=")
            setattr(config, key, json.loads(value))
    device = find_device(options.device)
    rows = [profile(name, options, device) for name in options.names]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "profile.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
