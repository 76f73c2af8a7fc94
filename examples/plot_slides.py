"""Sixty slides and the tumour share of each: which of their patches are tumour?

Made-up tissue: 32 small pictures a slide, pink with dark nuclei. In tumour the nuclei are larger and crowded.
Every slide has a stain of its own, and a pathologist has noted its tumour share, rounded to 5 %. The network
learns single patches from that alone, and is then shown slides of other stains. The picture has a new slide's
patches from the least to the most suspicious, mistakes framed.

    python examples/plot_slides.py [FOLDER]     one to three minutes on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion import ProportionClassifier, Proportions

PATCHES, SIZE = 32, 20


def make_slides(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patches (n * PATCHES, 3, SIZE, SIZE) as bytes, the slide of each, and whether it is tumour."""
    share = random.beta(1, 1.5, n)
    tumour = random.random((n, PATCHES)) < share[:, None]
    tissue = np.array([225, 170, 200]) + random.normal(0, 22, (n, 3))  # the slide's own stain
    nuclei = np.array([110, 70, 140]) + random.normal(0, 22, (n, 3))
    across = np.arange(SIZE)
    patches = np.empty((n, PATCHES, 3, SIZE, SIZE))
    for i in range(n):
        for j in range(PATCHES):
            count, radius = (random.poisson(9), 2.3) if tumour[i, j] else (random.poisson(6), 1.6)
            at = random.uniform(0, SIZE, (count + 1, 2, 1, 1))
            wide = random.normal(radius, 0.3, (count + 1, 1, 1)).clip(0.8)
            away = (across[:, None] - at[:, 0]) ** 2 + (across - at[:, 1]) ** 2
            inside = (away < wide**2).any(0)
            patches[i, j] = np.where(inside, nuclei[i, :, None, None], tissue[i, :, None, None])
    patches += random.normal(0, 12, patches.shape)
    pixels = patches.clip(0, 255).astype(np.uint8).reshape(-1, 3, SIZE, SIZE)
    return pixels, np.repeat(np.arange(n), PATCHES), tumour.flatten()


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x, slide, secret = make_slides(8 if small else 60, random)
    new, new_slide, truth = make_slides(4 if small else 30, random)
    noted = {i: round(20 * secret[slide == i].mean()) / 20 for i in np.unique(slide).tolist()}
    shares = {i: {"healthy": 1 - share, "tumour": share} for i, share in noted.items()}
    table = Proportions(shares, std=0.05 / 12**0.5)  # rounded to 5 %

    for name, stages in {
        "DLLP and PLOT": {"method": "dllp", "pseudo_labels": "hard"},
        "two views, which images get of themselves": {},
    }.items():
        model = ProportionClassifier(
            **stages, random_state=0, device="cpu",
            epochs=2 if small else 60, student_epochs=2 if small else 30,
        )  # fmt: skip
        model.fit(x, bags=slide, proportions=table)
        right = ((model.predict(new) == "tumour") == truth).mean()
        print(f"{name}: {right:.3f} of the patches of new slides right")

    shown = np.argmin([abs(truth[new_slide == i].mean() - 0.5) for i in np.unique(new_slide)])
    mine = np.flatnonzero(new_slide == shown)
    suspicion = model.predict_proba(new[mine])[:, 1]
    figure = Figure(figsize=(9, 5), layout="constrained")
    for panel, i in zip(figure.subplots(4, 8).flat, np.argsort(suspicion), strict=True):
        panel.imshow(new[mine[i]].transpose(1, 2, 0))
        panel.set_title(f"{suspicion[i]:.2f}", fontsize=7)
        wrong = (suspicion[i] > 0.5) != truth[mine[i]]
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(color="red" if wrong else "white", linewidth=3)
    figure.suptitle("A new slide, from the least to the most suspicious patch; mistakes framed", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "slides.png", dpi=120)
    print(f"figure: {folder / 'slides.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
