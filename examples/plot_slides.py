"""Which patches of a slide are tumor, if only the tumor percentage of every slide is known?

The tissue is simulated: 32 small pictures per slide, pink with dark nuclei. In tumor, the nuclei are larger
and more numerous. Every slide has a stain of its own, and a pathologist has estimated its tumor proportion
to the nearest 5 %. The classifier learns single patches from that and is tested on slides with other
stains. The picture shows the patches of a new slide by predicted probability, with errors framed.

    python examples/plot_slides.py [FOLDER]     one to three minutes on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from apportion import ProportionClassifier, Proportions

PATCHES = 32  # per slide
SIZE = 20  # pixels


def simulate_slides(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patches (n * PATCHES, 3, SIZE, SIZE) of bytes, the slide of each, and whether it is tumor."""
    proportion = random.beta(1, 1.5, n)
    tumor = random.random((n, PATCHES)) < proportion[:, None]
    tissue = np.array([225, 170, 200]) + random.normal(0, 22, (n, 3))  # the stain of the slide
    nuclei = np.array([110, 70, 140]) + random.normal(0, 22, (n, 3))
    pixel = np.arange(SIZE)
    patches = np.empty((n, PATCHES, 3, SIZE, SIZE))
    for i in range(n):
        for j in range(PATCHES):
            count = random.poisson(9 if tumor[i, j] else 6)
            mean_radius = 2.3 if tumor[i, j] else 1.6
            center = random.uniform(0, SIZE, (count + 1, 2, 1, 1))
            radius = random.normal(mean_radius, 0.3, (count + 1, 1, 1)).clip(0.8)
            distance2 = (pixel[:, None] - center[:, 0]) ** 2 + (pixel - center[:, 1]) ** 2
            inside = (distance2 < radius**2).any(0)
            patches[i, j] = np.where(inside, nuclei[i, :, None, None], tissue[i, :, None, None])
    patches += random.normal(0, 12, patches.shape)
    pixels = patches.clip(0, 255).astype(np.uint8).reshape(-1, 3, SIZE, SIZE)
    return pixels, np.repeat(np.arange(n), PATCHES), tumor.flatten()


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x, slide, hidden = simulate_slides(8 if small else 60, random)
    test_x, test_slide, test_tumor = simulate_slides(4 if small else 30, random)
    noted = {i: round(20 * hidden[slide == i].mean()) / 20 for i in np.unique(slide).tolist()}
    table = {i: {"healthy": 1 - share, "tumor": share} for i, share in noted.items()}
    proportions = Proportions(table, std=0.05 / 12**0.5)  # rounding to 5 %

    for name, settings in {
        "DLLP and PLOT": {"method": "dllp", "pseudo_labels": "hard"},
        "two views (default for images)": {},
    }.items():
        model = ProportionClassifier(
            **settings,
            epochs=2 if small else 60,
            student_epochs=2 if small else 30,
            device="cpu",
            random_state=0,
        )
        model.fit(x, bags=slide, proportions=proportions)
        accuracy = ((model.predict(test_x) == "tumor") == test_tumor).mean()
        print(f"{name}: accuracy {accuracy:.3f} on patches of new slides")

    # the new slide that is closest to half tumor
    shown = np.argmin([abs(test_tumor[test_slide == i].mean() - 0.5) for i in np.unique(test_slide)])
    patches = np.flatnonzero(test_slide == shown)
    probability = model.predict_proba(test_x[patches])[:, 1]
    figure = Figure(figsize=(9, 5), layout="constrained")
    for panel, i in zip(figure.subplots(4, 8).flat, np.argsort(probability), strict=True):
        wrong = (probability[i] > 0.5) != test_tumor[patches[i]]
        panel.imshow(test_x[patches[i]].transpose(1, 2, 0))
        panel.set_title(f"{probability[i]:.2f}", fontsize=7)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(color="red" if wrong else "white", linewidth=3)
    figure.suptitle("A new slide: patches by predicted probability of tumor; errors framed", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "slides.png", dpi=120)
    print(f"figure: {folder / 'slides.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
