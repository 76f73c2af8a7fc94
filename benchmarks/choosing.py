"""Which score of held-out bags ranks networks as their true accuracy does, and how good is its estimate?

python benchmarks/choosing.py train FILE [--data FOLDER] [--seeds 1] [--keep PREDICTIONS]
python benchmarks/choosing.py report FILE [--keep PREDICTIONS]

`train` adds a JSON line a trained network to FILE and goes on where it stopped: five data sets, three kinds
of bags, 36 networks each, a quarter of the bags held out; one to four seconds a network on one core.
`report` prints the tables of docs/model-selection.md and docs/studies.md; those of calibration need the kept
predictions, from which the estimates are also made anew. Without FOLDER there is no Adult.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.datasets import make_classification
from torch import Tensor

from apportion._random import stream
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances
from apportion.datasets.adult import adult
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.evaluate import calibration, predict_log_proba
from apportion.networks import mlp
from apportion.pipeline import fit_two_stages
from apportion.pseudo_labels import make_labeler
from apportion.selection.calibration import fit_temperature
from apportion.selection.diagnosis import diagnose_bags
from apportion.selection.scores import SCORES

KINDS = {"random": "random", "skewed": "dirichlet", "by cluster": "cluster"}
HELD_OUT, MODELS = 0.25, 36


def tangle(seed: int) -> Instances:
    """Three classes of six clouds in ten dimensions that overlap, with 3 % of labels wrong."""
    x, y = make_classification(
        8000, 10, n_informative=6, n_redundant=2, n_classes=3, n_clusters_per_class=2, class_sep=1.2,
        flip_y=0.03, weights=[0.5, 0.3], random_state=seed,
    )  # fmt: skip
    points, labels = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    return Instances("tangle", points[:4000], labels[:4000], points[4000:], labels[4000:], ("a", "b", "c"))


def people(seed: int, folder: Path) -> Instances:
    """8,000 rows of Adult to learn from."""
    data = adult(folder)
    some = torch.randperm(len(data.x), generator=stream(seed, "people"))[:8000]
    return Instances("adult", data.x[some], data.y[some], data.test_x, data.test_y, data.classes)


def sources(folder: Path | None) -> dict[str, tuple[Callable[[int], Instances], int]]:
    """By name: how to get the data, and the size of the bags."""
    found: dict[str, tuple[Callable[[int], Instances], int]] = {
        "digits": (digits, 8),
        "moons": (partial(moons, n=4000, noise=0.3), 16),
        "blobs": (partial(blobs, n=4000, classes=5), 32),
        "tangle": (tangle, 32),
    }
    return found if folder is None else found | {"adult": (partial(people, folder=folder), 32)}


def settings() -> list[dict[str, Any]]:
    """The same 36 for all data: good ones, and such as learn too little, too much or too fast."""
    random = np.random.default_rng(8)
    made = []
    for i in range(MODELS):
        made.append(
            {
                "method": str(random.choice(["dllp", "dllp", "rot", "llp_vat", "llp_gan"])),
                "second_stage": "plot" if i % 2 else None,
                "steps": int(random.choice([20, 60, 200, 600, 1500])),
                "learning_rate": float(random.choice([3e-4, 1e-3, 3e-3, 1e-2])),
                "widths": [[8], [32], [64, 64], [128, 128, 128]][int(random.integers(4))],
            }
        )
    return made


def split(data: Instances, size: int, kind: str, seed: int) -> tuple[Bags, Bags, Tensor]:
    """Bags to learn from, held-out bags, and the hidden labels of the second."""
    generator = stream(seed, "bags", kind, size)
    bags, hidden = make_bags(data.x, data.y, size, data.n_classes, generator, KINDS[kind])
    order = torch.randperm(len(bags.sizes), generator=stream(seed, "held-out"))
    cut = round(HELD_OUT * len(order))
    held, rows = bags.select(order[:cut]), bags.take(order[:cut]).row
    return bags.select(order[cut:]), held, hidden[rows]


def trained(bags: Bags, asked: dict[str, Any], seed: int) -> Iterator[Any]:
    """A epoch_state an epoch; steps are those of batches of 256, spread over at most 12 epochs a stage."""
    batches = -(-len(bags.x) // 256)
    return fit_two_stages(
        bags, partial(mlp, widths=tuple(asked["widths"])), method=asked["first_stage"],
        label=None if asked["second_stage"] is None else make_labeler("soft", reg=1.0),
        epochs=max(1, asked["steps"] // batches), student_epochs=max(1, asked["steps"] // 2 // batches),
        learning_rate=asked["rate"], student_learning_rate=asked["rate"] / 2, batch_size=256, seed=seed,
    )  # fmt: skip


def measured(classifier: Any, held: Bags, hidden: Tensor, data: Instances) -> dict[str, Any]:
    """True accuracies, every score on held-out bags, and the estimate with its interval."""
    log_probs = predict_log_proba(classifier, held.x, as_floats)
    test = predict_log_proba(classifier, data.test_x, as_floats)
    found = diagnose_bags(log_probs, held, n_permutations=499)
    return {
        "test": float((test.argmax(1) == data.test_y).double().mean()),
        "true": float((log_probs.argmax(1) == hidden).double().mean()),
        "scores": {name: score(log_probs, held) for name, score in SCORES.items()},
        "estimate": [found.accuracy, found.accuracy_low, found.accuracy_high],
        "supported": found.supported,
    }


def train(
    out: Path, folder: Path | None, seeds: list[int], keep: Path | None, only: list[str] | None, models: int
) -> None:
    torch.set_num_threads(1)
    done = {line["key"] for line in lines(out)} if out.exists() else set()
    for seed in seeds:
        for name, (source, size) in sources(folder).items():
            if only is not None and name not in only:
                continue
            data = source(seed)
            for kind in KINDS:
                bags, held, hidden = split(data, size, kind, seed)
                for i, asked in enumerate(settings()[:models]):
                    key = f"{name}, {kind}, {seed}, {i}"
                    if key in done:
                        continue
                    started, trace = time.perf_counter(), []
                    for epoch_state in trained(bags, asked, seed):
                        at, last = epoch_state.epoch.number, epoch_state.last
                        if last or at % max(1, asked["steps"] // (5 * -(-len(bags.x) // 256))) == 0:
                            found = measured(epoch_state.learner.classifier, held, hidden, data)
                            trace.append([epoch_state.stage, at, found["test"], found["scores"]])
                    seen = predict_log_proba(epoch_state.learner.classifier, bags.x, as_floats)
                    line = {"key": key, "data": name, "bags": kind, "seed": seed, **asked, **found}
                    line |= {"training error": SCORES["error"](seen, bags), "trace": trace}
                    line["seconds"] = round(time.perf_counter() - started, 2)
                    if keep is not None:
                        log_probs = predict_log_proba(epoch_state.learner.classifier, held.x, as_floats)
                        torch.save((log_probs, held.sizes, held.proportions, hidden), keep / f"{key}.pt")
                    with out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                print(f"{name}, {kind}, seed {seed}: done", flush=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def renewed(line: dict[str, Any], keep: Path | None) -> dict[str, Any]:
    """The line with the estimate and the calibration of its kept predictions, as they come out now."""
    if keep is None:
        return line
    log_probs, sizes, shares, hidden = torch.load(keep / f"{line['key']}.pt")
    held = Bags(log_probs, sizes, shares, torch.arange(len(log_probs)), list(range(len(sizes))))
    found = diagnose_bags(log_probs, held, n_permutations=499)
    temperature = fit_temperature(log_probs, sizes, shares)
    cooler = (log_probs.double() / temperature).log_softmax(1)
    return line | {
        "estimate": [found.accuracy, found.accuracy_low, found.accuracy_high],
        "supported": found.supported,
        "calibration": [calibration_error(log_probs, hidden), calibration_error(cooler, hidden)],
    }


def calibration_error(log_probs: Tensor, hidden: Tensor) -> float:
    """The expected one, of 15 bins."""
    return sum(n * abs(sure - right) for n, sure, right in calibration(log_probs, hidden, 15)) / len(hidden)


def report(paths: list[Path], keep: Path | None) -> None:
    torch.set_num_threads(1)
    found = [renewed(line, keep) for path in paths for line in lines(path)]
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        groups[line["data"], line["bags"], line["seed"]].append(line)
    ranking(groups)
    stopping(found)
    estimates(groups, found)
    if keep is not None:
        temperatures(found)


def ranking(groups: dict[tuple[str, str, int], list[dict[str, Any]]]) -> None:
    """Of each score: Spearman with test accuracy, and points lost by trusting it."""
    rows: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for (_, kind, _), group in groups.items():
        truth = np.array([line["test"] for line in group])
        for name in (*SCORES, "error on training bags"):
            own = name == "error on training bags"
            score = np.array([line["training error"] if own else line["scores"][name] for line in group])
            lost = 100 * (truth.max() - truth[score.argmax()])
            rows[name][kind].append((float(spearmanr(score, truth).statistic), float(lost)))
    print("| score | random | skewed | by cluster | lowest | lost: random | skewed | by cluster | most |")
    print("| --- |" + " --- |" * 8)
    for name, kinds in rows.items():
        every = np.array([pair for kind in KINDS for pair in kinds[kind]])
        means = [np.mean(kinds[kind], axis=0) if kinds[kind] else [np.nan] * 2 for kind in KINDS]
        cells = [*(f"{m[0]:.2f}" for m in means), f"{every[:, 0].min():.2f}"]
        cells += [*(f"{m[1]:.2f}" for m in means), f"{every[:, 1].max():.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def stopping(found: list[dict[str, Any]]) -> None:
    """Of each score: test accuracy of the epoch it chooses, less that of the last."""
    print("\n| epoch chosen by | gain, mean | most | least | better | worse |\n| --- |" + " --- |" * 5)
    for name in SCORES:
        gains = []
        for line in found:
            best = max(line["trace"], key=lambda each: each[3][name])
            gains.append(100 * (best[2] - line["test"]))
        g = np.array(gains)
        shares = f"{100 * (g > 0).mean():.0f} % | {100 * (g < 0).mean():.0f} %"
        print(f"| {name} | {g.mean():+.2f} | {g.max():+.1f} | {g.min():+.1f} | {shares} |")


def estimates(groups: dict[tuple[str, str, int], list[dict[str, Any]]], found: list[dict[str, Any]]) -> None:
    """How far estimated accuracy is off, in points, and how often its interval holds."""
    print("\n| data, bags, seed | models | accuracy | off by | interval, half | holds |")
    print("| --- |" + " --- |" * 5)
    for name, group in [
        *((", ".join(map(str, key)), group) for key, group in groups.items()),
        ("all", found),
    ]:
        truth = np.array([line["true"] for line in group])
        value, low, high = np.array([line["estimate"] for line in group]).T
        off, half = 100 * np.abs(value - truth).mean(), 50 * (high - low).mean()
        holds = 100 * ((low - 1e-9 <= truth) & (truth <= high + 1e-9)).mean()
        spread = f"{100 * truth.min():.0f} to {100 * truth.max():.0f}"
        print(f"| {name} | {len(group)} | {spread} | {off:.2f} | {half:.1f} | {holds:.0f} % |")


def temperatures(found: list[dict[str, Any]]) -> None:
    """Expected calibration error before and after, in points."""
    print("\n| data, bags | before | after | better in | models above 80 %: before | after |")
    print("| --- |" + " --- |" * 5)
    keys = list(dict.fromkeys((line["data"], line["bags"]) for line in found))
    for key in [*keys, None]:
        group = [line for line in found if key is None or (line["data"], line["bags"]) == key]
        pairs = 100 * np.array([line["calibration"] for line in group])
        good = pairs[[line["true"] > 0.8 for line in group]]
        cells = [f"{v:.1f}" for v in pairs.mean(0)] + [f"{100 * (pairs[:, 1] < pairs[:, 0]).mean():.0f} %"]
        cells += [f"{v:.1f}" for v in good.mean(0)] if len(good) else ["–", "–"]
        print(f"| {'all' if key is None else ', '.join(key)} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=["train", "report"])
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--models", type=int, default=MODELS, help="the first so many of each 36")
    parser.add_argument("--keep", type=Path, help="a folder for the predictions of held-out bags")
    asked = parser.parse_args()
    if asked.do == "train":
        train(asked.file[0], asked.data, asked.seeds, asked.keep, asked.only, asked.models)
    else:
        report(asked.file, asked.keep)


if __name__ == "__main__":
    main()
