"""How much memory does one bag of millions of rows take, among small ones? (Linux: reads /proc.)

python benchmarks/large_bag.py [--rows 10000000] [--features 4]

Two classes that overlap; 2,000 random bags of 32 and one large one. Prints the resident memory once the
features are there, its peak in each stage, and the accuracy on the rows of the large bag.
"""

import argparse
import time
from pathlib import Path

import torch

from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.evaluate import predict_log_proba
from apportion.networks import mlp
from apportion.pipeline import fit_two_stages
from apportion.pseudo_labels import SoftLabels, hard_labels
from apportion.transport import round_to_counts

SMALL, SIZE = 2000, 32


def resident(name: str) -> float:
    """Megabytes: VmRSS now, or VmHWM, the most since the last call of `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def made(rows: int, features: int) -> tuple[Bags, torch.Tensor]:
    n = rows + SMALL * SIZE
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(n, generator=generator) < 0.3).to(torch.uint8)
    x = torch.randn(n, features, generator=generator)
    x[:, 0] += 2 * y
    sizes = torch.tensor([SIZE] * SMALL + [rows])
    ones = torch.stack([part.float().mean() for part in y.split(sizes.tolist())])
    bags = Bags(x, sizes, torch.stack([1 - ones, ones], 1), torch.arange(1).expand(n), list(range(SMALL + 1)))
    return bags, y


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    forget()
    empty = resident("VmRSS")
    bags, y = made(asked.rows, asked.features)
    size = bags.x.numel() * 4 / 2**20
    print(
        f"imports {empty:.0f} MB; {asked.rows:,} rows: features {size:.0f} MB, labels {len(y) / 2**20:.0f} MB"
    )
    print(f"resident with both: {resident('VmRSS'):.0f} MB")
    forget()
    started, stage = time.perf_counter(), "first"
    for epoch_state in fit_two_stages(bags, mlp, label=SoftLabels(1.0), epochs=10, student_epochs=5, seed=1):
        if stage == "first" and epoch_state.last:
            print(f"first stage: peak {resident('VmHWM'):.0f} MB, {time.perf_counter() - started:.0f} s")
            forget()
            stage = "second"
    print(f"second stage: peak {resident('VmHWM'):.0f} MB, {time.perf_counter() - started:.0f} s in all")
    forget()
    log_probs = predict_log_proba(epoch_state.learner.classifier, bags.x, as_floats)
    large = slice(SMALL * SIZE, None)
    right = float((log_probs[large].argmax(1) == y[large]).float().mean())
    labels = hard_labels(log_probs, bags.sizes, bags.proportions)
    counted = labels[large].sum(0).long().tolist()
    exact = round_to_counts(bags.proportions, bags.sizes)[-1].tolist()
    print(f"large bag: accuracy {100 * right:.2f} %; labels by transport {counted}, known counts {exact}")
    print(f"predicting and exact labels: peak {resident('VmHWM'):.0f} MB")


if __name__ == "__main__":
    main()
