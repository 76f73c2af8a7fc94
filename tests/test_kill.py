"""Killed, or out of room: a training goes on to the same bits. `benchmarks/kill.py` does this more often."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from conftest import same_bits
from torch.optim.optimizer import register_optimizer_step_pre_hook

from apportion import runs
from apportion.experiment.run import run
from apportion.recipes import Data, First, Network, Recipe
from apportion.runs.checkpoints import unpack

KILL = Path(__file__).parents[1] / "benchmarks/kill.py"
TINY = Recipe(Data("digits", 64), Network("mlp", {"widths": (16,)}), First(epochs=5), None, 256)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trainings are forked")
@pytest.mark.parametrize("how", [("moments", "--times", "2", "--epochs", "3"), ("writes", "--step", "29")])
def test_a_training_killed_at_any_moment_goes_on_to_the_same_bits(how):
    done = subprocess.run([sys.executable, KILL, *how], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all the same\n")


def test_a_run_that_is_stopped_within_an_epoch_keeps_the_one_before_and_goes_on_to_the_same_bits(tmp_path):
    """The weights at that epoch_state are half an epoch further than those that are to be kept."""
    list(run(TINY, tmp_path / "whole", device="cpu"))
    steps = []

    def stop_at_last(*_: object) -> None:
        steps.append(None)
        if len(steps) == 15:  # six an epoch
            raise KeyboardInterrupt

    hook = register_optimizer_step_pre_hook(stop_at_last)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(run(TINY, tmp_path / "cut", device="cpu"))
    finally:
        hook.remove()
    assert unpack((tmp_path / "cut/last.safetensors").read_bytes(), "it")["epoch"] == 2
    assert [line["epoch"] for line in run(TINY, tmp_path / "cut", device="cpu")] == [3, 4, 5]
    whole, again = (runs.read_weights(tmp_path / name) for name in ("whole", "cut"))
    assert same_bits(whole.values(), again.values())


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder, mount = tmp_path / "disk", shutil.which("mount")
    folder.mkdir()
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "small", folder], stderr=-3).returncode
    ):
        pytest.skip("a small tmpfs can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run([shutil.which("umount") or "umount", folder], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_stops_the_run_says_so_and_leaves_the_last_good_checkpoint(
    small_disk, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    list(run(TINY, tmp_path / "whole", device="cpu"))
    folder, filler = small_disk / "run", small_disk / "filler"
    lines = run(TINY, folder, device="cpu")
    next(lines), next(lines)
    fill(filler)
    with pytest.raises(runs.RunError, match="cannot be written: the disk is full; make room, and the same"):
        list(lines)
    assert unpack((folder / "last.safetensors").read_bytes(), "it")["epoch"] == 2
    assert not list(folder.glob("*.new"))
    filler.unlink()
    assert [line["epoch"] for line in run(TINY, folder, device="cpu")] == [3, 4, 5]
    whole, again = runs.read_weights(tmp_path / "whole"), runs.read_weights(folder)
    assert same_bits(whole.values(), again.values())
    assert torch.equal(runs.read_log_probs(tmp_path / "whole"), runs.read_log_probs(folder))
