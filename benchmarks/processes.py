"""Two processes for one training, beside one process.

    python benchmarks/processes.py steps     the losses of 50 steps beside one process that replays the order
    python benchmarks/processes.py kill      one of torchrun's processes killed: the restart ends as if not

`steps` is in float64. The replaying process is the plain one: it gets the bags of both processes as one
batch, and draws for each of them what that process drew. Processes are forked, which needs a POSIX system.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cluster import is_open
from kill import contents
from torch import Tensor, nn

from apportion import distributed, pipeline
from apportion._random import derive_seed, reseed, stream
from apportion.bags.bags import BagBatch, Bags
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import digits, moons
from apportion.distributed import WeightedLearner
from apportion.experiments.run_folder import all_runs, read_where
from apportion.losses import cross_entropy
from apportion.methods import METHODS
from apportion.methods import plot as second_stage
from apportion.methods.plot import PLOT, bag_weights
from apportion.networks import mlp
from apportion.optim import make_optimizer
from apportion.pseudo_labels import SoftLabels, hard_labels

PROCESSES, STEPS, SEED = 2, 50, 1
# Not two_views, which contrasts the instances of a batch, nor mixbag, which mixes its bags: their losses
# depend on which bags share a process.
FIRST_STAGES = ("dllp", "count_likelihood", "llp_vat", "llp_gan", "rot", "llp_mm")
KINDS = (
    *FIRST_STAGES,
    "hard",
    "mixup",
    "soft",
    "bag weights",
    "running mean",
)
Losses = list[dict[str, float]]


# --- what is trained


def data(name: str) -> tuple[Bags, int]:
    """Bags in float64 and the instances of a step; `ragged` has bags of 1 to 40 points."""
    source = digits(SEED) if name == "digits" else moons(SEED)
    if name == "ragged":
        sizes = torch.randint(1, 41, (60,), generator=stream(SEED, "ragged"))
        n = int(sizes.sum())
        y = nn.functional.one_hot(source.y[:n], 2).float()
        shares = torch.stack([part.mean(0) for part in y.split(sizes.tolist())])
        bags, batch = Bags(source.x[:n], sizes, shares, torch.arange(n), range(60)), 80
    else:
        size, batch = (16, 128) if name == "digits" else (50, 200)
        bags, _ = make_bags(source.x, source.y, size, source.n_classes, stream(SEED, "bags"))
    return Bags(bags.x.double(), bags.sizes, bags.proportions.double(), bags.source, bags.ids), batch


def network(bags: Bags, norm: bool) -> nn.Sequential:
    reseed(SEED, "weights")
    body, head = mlp(bags.x.shape[1:], bags.n_classes, (32, 32))
    return nn.Sequential(nn.Sequential(body, nn.BatchNorm1d(32)) if norm else body, head).double()


def trained(stages: Any, kind: str, bags: Any, batch: int, norm: bool, epochs: int) -> Iterator[Any]:
    """A few epochs of a method, or of the second stage with some kind of labels, by these stages."""
    classifier = network(bags, norm)
    given: dict[str, Any] = {"epochs": epochs, "schedule": lambda progress: 1 - progress / 2, "seed": SEED,
                             "batch_size": batch, "resume": None}  # fmt: skip
    if kind in METHODS:
        options: dict[str, Any] = {}
        if kind == "llp_gan":
            features = bags.x[0].numel()
            made = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, features)).double()
            options = {"noise": 8, "generator": made}
        learner = METHODS[kind](classifier, **options)
        optimizers = [make_optimizer(player, "adam", 1e-2) for player in learner.networks()]
        return stages.first_stage(learner, bags, optimizers, **given)
    reseed(SEED, "guess")
    guess = torch.randn(len(bags.x), bags.n_classes).log_softmax(1)
    weights = bag_weights(bags.sizes, batch).double() if kind == "bag weights" else None
    label = SoftLabels(0.1) if kind == "soft" else hard_labels
    return stages.second_stage(
        guess, classifier, bags, [make_optimizer(classifier, "adam", 1e-2)], label=label, loss=cross_entropy,
        mixup=0.4 if kind == "mixup" else 0.0, weights=weights, warmup_epochs=1,
        ema=0.9 if kind == "running mean" else 0.0, **given,
    )  # fmt: skip


@contextmanager
def recorded(kinds: tuple[type, ...]) -> Iterator[Losses]:
    """The terms of every step of learners of these kinds."""
    losses: Losses = []

    def recording(plain: Callable[..., Any]) -> Callable[..., Any]:
        def recorded_losses(self: Any, batch: BagBatch, progress: float) -> Iterator[Any]:
            losses.append({})
            now = losses[-1]
            for terms in plain(self, batch, progress):
                now |= {name: term.item() for name, term in terms.items()}
                yield terms

        return recorded_losses

    before = [kind.losses for kind in kinds]
    for kind in kinds:
        kind.losses = recording(kind.losses)
    try:
        yield losses
    finally:
        for kind, steps in zip(kinds, before, strict=True):
            kind.losses = steps


# --- one process that replays two


class Replay:
    """All bags, in batches of what each process would take; draws are made as each process makes them."""

    def __init__(self, bags: Bags, stage: str) -> None:
        self.x, self.sizes, self.proportions, self.stage = bags.x, bags.sizes, bags.proportions, stage
        self.n_classes, self.precision, self.number = bags.n_classes, bags.precision, 0
        self.weight = bags.weight
        order = bags.sizes.argsort(descending=True, stable=True)
        self.which = [order[rank::PROCESSES].sort().values for rank in range(PROCESSES)]
        self.shares = [bags.select(which) for which in self.which]
        self.rows = [bags.take(which).row for which in self.which]
        self.states: list[Tensor] = []
        self.parts: list[int] = []

    def batches(self, batch_size: int, generator: torch.Generator, by: str = "bag") -> Iterator[BagBatch]:
        self.number += 1
        seeds = [distributed.process_seed(SEED, rank) for rank in range(PROCESSES)]
        self.states = [stream_state(derive_seed(seed, self.stage, self.number)) for seed in seeds]
        orders = [stream(seed, self.stage, self.number, "order") for seed in seeds]
        own = [
            iter(share.batches(batch_size // PROCESSES, order))
            for share, order in zip(self.shares, orders, strict=True)
        ]
        while any(batches := [next(each, None) for each in own]):
            there = [
                (batch, rows) for batch, rows in zip(batches, self.rows, strict=True) if batch is not None
            ]
            self.parts = [0 if batch is None else len(batch.x) for batch in batches]
            yield BagBatch(
                torch.cat([batch.x for batch, _ in there]),
                torch.cat([batch.sizes for batch, _ in there]),
                torch.cat([batch.proportions for batch, _ in there]),
                torch.cat([rows[batch.row] for batch, rows in there]),
            )

    def drawn(self, draw: Callable[[int, int], Any]) -> list[Any]:
        """What `draw(begin, end)` gives for the rows of each process, from that process's generator."""
        found, begin, outside = [], 0, torch.get_rng_state()
        for rank, n in enumerate(self.parts):
            if n:
                torch.set_rng_state(self.states[rank])
                found.append(draw(begin, begin + n))
                self.states[rank], begin = torch.get_rng_state(), begin + n
        torch.set_rng_state(outside)
        return found


def stream_state(seed: int) -> Tensor:
    return torch.Generator().manual_seed(seed).get_state()


@contextmanager
def replaying(replay: Replay) -> Iterator[None]:
    """What learners draw is drawn process by process."""
    normal, uniform, mixup = torch.randn_like, torch.rand, second_stage.mixup

    def mixed_apart(alpha: float, *values: Tensor) -> list[Tensor]:
        parts = replay.drawn(lambda a, b: mixup(alpha, *(value[a:b] for value in values)))
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    torch.randn_like = lambda x: torch.cat(replay.drawn(lambda a, b: normal(x[a:b])))
    torch.rand = lambda n, *more, **kw: torch.cat(replay.drawn(lambda a, b: uniform(b - a, *more, **kw)))
    second_stage.mixup = mixed_apart
    try:
        yield
    finally:
        torch.randn_like, torch.rand, second_stage.mixup = normal, uniform, mixup


def replayed(kind: str, name: str, norm: bool) -> Losses:
    bags, batch = data(name)
    replay: Any = Replay(bags, "first" if kind in METHODS else "second")
    with replaying(replay), recorded((*METHODS.values(), PLOT)) as losses:
        for _ in trained(pipeline, kind, replay, batch, norm, epochs=6):
            if len(losses) >= STEPS:
                return losses[:STEPS]
    raise AssertionError


# --- two processes


def forked(work: Callable[[int, Path], None], folder: Path) -> None:
    """Do the work in two processes of one group."""
    pids = []
    for rank in range(PROCESSES):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=PROCESSES)
                work(rank, folder)
                code = 0
            except BaseException:  # noqa: BLE001
                sys.excepthook(*sys.exc_info())
            os._exit(code)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit("a process has failed")


def record_all(cases: list[tuple[str, str, bool]], rank: int, folder: Path) -> None:
    found = []
    for kind, name, norm in cases:
        bags, batch = data(name)
        with recorded((WeightedLearner, PLOT)) as losses:
            for _ in trained(
                distributed.DistributedPipeline(distributed.ProcessGroup()), kind, bags, batch, norm, epochs=6
            ):
                if len(losses) >= STEPS:
                    break
        found.append(losses[:STEPS])
    (folder / f"{rank}.json").write_text(json.dumps(found))


def steps(kinds: tuple[str, ...], names: tuple[str, ...]) -> bool:
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # losses are in float32 otherwise
    cases = [(kind, name, False) for name in names for kind in kinds]
    cases += [(kind, names[0], True) for kind in kinds if kind in ("dllp", "hard")]
    with tempfile.TemporaryDirectory() as folder:
        forked(partial(record_all, cases), Path(folder))
        shares = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    fine = True
    for i, (kind, name, norm) in enumerate(cases):
        alone = replayed(kind, name, norm)
        sums = [{n: sum(share[i][s][n] for share in shares) for n in alone[s]} for s in range(STEPS)]
        differences = [abs(sums[s][n] - alone[s][n]) for s in range(STEPS) for n in alone[s]]
        moved = abs(sum(alone[0].values()) - sum(alone[-1].values()))
        what = f"{name}, {kind}{' with batch-norm' if norm else ''}"
        far = f"{max(differences):.1e} at most in {STEPS} steps"
        print(f"{what}: differs by {far}, in which the loss moved by {moved:.2f}")
        fine &= norm or max(differences) <= 1e-9
    print("the same steps" if fine else "OTHER steps")
    return fine


# --- a process that is killed

RUN = ("-m", "apportion", "run", "digits/rot+plot/16", "--device", "cpu")
RUN += ("--set", "first.epochs=30", "--set", "second.epochs=30")
RUN_GROUP = "digits,first.epochs=30,second.epochs=30"


def launched(root: Path, log: Any) -> subprocess.Popen[bytes]:
    words = ("--standalone", "--nproc-per-node", str(PROCESSES), "--max-restarts", "3")
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words, *RUN, "--out", str(root)],
        stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def kill() -> bool:
    """Kill the process that follows, so that the other has time for a checkpoint, and the one that writes."""
    with tempfile.TemporaryDirectory() as name, (Path(name) / "log").open("wb") as log:
        killed, alone = Path(name) / "killed", Path(name) / "alone"
        torchrun = launched(killed, log)
        for stage, writer, after in (("rot", False, 10), ("rot+plot", False, 10), ("rot+plot", True, 20)):
            folder = killed / RUN_GROUP / stage / "16" / "seed=1"
            path = folder / "log.jsonl"
            while not path.exists() or len(path.read_bytes().splitlines()) < after:
                if torchrun.poll() is not None:
                    raise SystemExit((Path(name) / "log").read_text()[-20000:])
                time.sleep(0.01)
            pids = [int(pid) for pid in children(torchrun.pid)]
            owner = next(pid for pid in pids if is_open(folder / "lock", pid))
            others = [pid for pid in pids if pid != owner]
            os.kill(owner if writer else others[0], signal.SIGKILL)
            print(
                f"killed the process that {'writes' if writer else 'follows'} in the stage {stage}",
                flush=True,
            )
        codes = [torchrun.wait(), launched(alone, log).wait()]
        if codes != [0, 0]:
            raise SystemExit((Path(name) / "log").read_text()[-20000:])
        again = [len(read_where(path).get("resumed", [])) for path in all_runs(killed)]
        print(f"resumed {again} times")
        one, other = contents(killed), contents(alone)
        for path in sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path)):
            print(f"  {path} differs")
            if path.endswith("jsonl"):
                pairs = zip(one[path], other[path], strict=False)
                print(next((f"  {a}\n  {b}" for a, b in pairs if a != b), "  in length"))
        same = one == other
    print("all the same" if same else "DIFFERENT")
    return same


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["steps", "kill"])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--data", nargs="+", default=("moons", "digits", "ragged"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "kill":
        return 0 if kill() else 1
    return 0 if steps(tuple(options.kinds), tuple(options.data)) else 1


if __name__ == "__main__":
    sys.exit(main())
