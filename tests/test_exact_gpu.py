"""On a GPU: exact runs are the same to the bit, interrupted or not."""

from dataclasses import replace

import pytest
import torch

from apportion import runs
from apportion._random import stream
from apportion.datasets import Instances
from apportion.experiment.run import run
from apportion.recipes import Data, First, Network, Recipe, Second

IMAGES = Recipe(
    data=Data("cifar10", 16),
    network=Network("conv13"),
    first=First("llp_vat", epochs=3, optimizer="sgd", rate=0.01),
    batch_size=128,
    augment="crop+flip",
)
SECOND = replace(IMAGES, second=Second(epochs=3, hold=1, labels="soft", mixup=1.0))


def images(folder, seed) -> Instances:
    generator = stream(0, "images")
    x = torch.randint(0, 256, (1280, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (1280,), generator=generator)
    names = tuple("0123456789")
    return Instances("cifar10", x[:1024], y[:1024], x[1024:], y[1024:], names, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.gpu
def test_exact_runs_on_a_gpu_are_the_same_to_the_bit_interrupted_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "apportion.experiment.task.load_dataset", lambda name, folder, seed: images(folder, seed)
    )
    for recipe, teacher in ((IMAGES, None), (SECOND, tmp_path / "first-one")):
        name = "first" if teacher is None else "second"
        for way in ("one", "two", "parts"):
            folder = tmp_path / f"{name}-{way}"
            if way == "parts":
                part = run(recipe, folder, teacher=teacher, device="cuda", exact=True)
                next(part)
                part.close()
            list(run(recipe, folder, teacher=teacher, device="cuda", exact=True))
        found = [runs.read_weights(tmp_path / f"{name}-{way}") for way in ("one", "two", "parts")]
        for other in found[1:]:
            assert all(torch.equal(found[0][key], other[key]) for key in found[0])
