"""What the loop costs: DLLP through apportion against the same training written in bare PyTorch, in one run.

python benchmarks/loop.py            two moons and digits on the CPU, one thread
python benchmarks/loop.py --json F   the same, and the numbers into a file

Both train the same network on the same bags for the same number of steps, with the same optimiser; the two
are interleaved and the best of several rounds counts. The bare version is what a careful person would write
for equal bags: batches gathered by index, the loss in four lines, one wait for the device an epoch.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from apportion.backbones import mlp
from apportion.bagging import make_bags
from apportion.bags import Bags
from apportion.data import SOURCES
from apportion.first_stage import DLLP
from apportion.optimizers import make_optimizer
from apportion.pipeline import first_stage
from apportion.randomness import stream


def ours(bags: Bags, network: nn.Module, epochs: int, batch: int) -> None:
    optimizers = [make_optimizer(network, "adam", 1e-3)]
    for _ in first_stage(
        DLLP(network),
        bags,
        optimizers,
        epochs=epochs,
        rate=lambda progress: 1.0,
        seed=0,
        instances_per_batch=batch,
    ):
        pass


def bare(bags: Bags, network: nn.Module, epochs: int, batch: int) -> None:
    """Equal bags only, as most published code."""
    size, optimizer = int(bags.sizes[0]), torch.optim.Adam(network.parameters(), lr=1e-3)
    x = bags.x.view(len(bags.sizes), size, *bags.x.shape[1:])
    network.train()
    for _ in range(epochs):
        total: Tensor | float = 0.0
        for which in torch.randperm(len(x)).split(batch // size):
            instances, known = x[which].flatten(0, 1), bags.proportions[which]
            predicted = network(instances).softmax(1).view(len(which), size, -1).mean(1)
            loss = -(known * predicted.clamp_min(1e-7).log()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        float(total)


def seconds(work: Callable[[], None]) -> float:
    started = time.process_time()  # of the processor, one thread: a busy machine disturbs it least
    work()
    return time.process_time() - started


def compare(
    name: str, size: int, widths: tuple[int, ...], batch: int, epochs: int, rounds: int
) -> dict[str, float]:
    data = SOURCES[name](None, 0)
    n = len(data.x) // size * size  # equal bags, for the bare version's sake
    bags, _ = make_bags(data.x[:n], data.y[:n], size, data.n_classes, stream(0, "bags", size))
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(rounds):
        for label, work in (("ours", ours), ("bare", bare)):
            torch.manual_seed(0)
            network = mlp(data.x.shape[1:], data.n_classes, widths)
            times[label].append(seconds(lambda w=work, net=network: w(bags, net, epochs, batch)))
    best = {label: min(values) for label, values in times.items()}
    return {**best, "ratio": best["ours"] / best["bare"]}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    found = {
        "moons, 3 × 64, 100 a step": compare("moons", 50, (64, 64, 64), 100, 10, chosen.rounds),
        "digits, 3 × 128, 128 a step": compare("digits", 16, (128, 128, 128), 128, 15, chosen.rounds),
        "digits, 3 × 1024, 128 a step": compare("digits", 16, (1024, 1024, 1024), 128, 3, chosen.rounds),
    }
    print(f"{'training':32}{'ours, s':>10}{'bare, s':>10}{'ours / bare':>13}")
    for name, row in found.items():
        print(f"{name:32}{row['ours']:>10.3f}{row['bare']:>10.3f}{row['ratio']:>13.3f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
