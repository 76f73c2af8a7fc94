"""Thumbnails and points of the sampled instances, drawn from the data set where it is at hand."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

from apportion.datasets import DATASETS, Instances, load_dataset
from apportion.errors import DataError
from apportion.experiment.sample.packing import bits_for, unpack

COLUMNS = 24  # tiles in a row of a sprite
TILES = 16  # of each bag
SPRITES = 3_000_000  # bytes of thumbnails in a page, of which the first runs get theirs


class Pictures:
    """Runs of the same bags share their pictures, and each data set is read once."""

    def __init__(self, folder: Path | None, thumbnails: bool) -> None:
        self.folder, self.thumbnails = folder, thumbnails
        self.sprites: dict[str, dict[str, Any]] = {}
        self.points: dict[str, list[list[float]]] = {}
        self.read: dict[tuple[object, ...], Instances | None] = {}
        self.room = SPRITES

    def of(self, recipe: dict[str, Any], kept: dict[str, Any]) -> str | None:
        """The key of a run's pictures among sprites or points, None where there are none."""
        told, seed = recipe.get("data"), recipe.get("seed")
        name = told.get("name") if isinstance(told, dict) else None
        if (
            not isinstance(name, str)
            or name not in DATASETS
            or type(seed) is not int
            or not 0 <= seed < 1 << 32
        ):
            return None
        if not self.thumbnails and "grid" not in kept:  # no data set is read in vain
            return None
        key = f"{name} {kept['source']}"[:200]
        if key not in self.sprites and key not in self.points:
            data = self._data(name, seed)
            if data is None or len(data.x) != kept["instances"]:
                return None
            source = unpack(kept["source"], bits_for(kept["instances"]), sum(kept["shown"]))
            if not len(source) or source.max() >= len(data.x):  # not what a run writes there
                return None
            self._draw(key, data, source, kept["shown"])
        return key if key in self.sprites or key in self.points else None

    def _draw(self, key: str, data: Instances, source: np.ndarray, shown: list[int]) -> None:
        if data.x.shape[1:] == (2,):
            self.points[key] = [[round(v, 3) for v in pair] for pair in data.x[source].tolist()]
        elif self.thumbnails and (images := as_images(data)) is not None:
            starts = np.cumsum([0, *shown[:-1]])
            tiles = np.concatenate(
                [source[a : a + min(n, TILES)] for a, n in zip(starts, shown, strict=True)]
            )
            sprite = sprite_of(images[tiles])
            if len(sprite["url"]) <= self.room:
                self.sprites[key] = sprite | {"each": TILES}
                self.room -= len(sprite["url"])

    def _data(self, name: str, seed: int) -> Instances | None:
        key = (name, seed) if name in ("moons", "blobs", "digits") else (name,)
        if key not in self.read:
            try:
                self.read[key] = load_dataset(name, self.folder, seed)
            except DataError:  # not at hand
                self.read[key] = None
        return self.read[key]


def as_images(data: Instances) -> np.ndarray | None:
    """The training instances as images (N, height, width, channels) of bytes, None where they are none."""
    if data.x.ndim == 4:
        return data.x.permute(0, 2, 3, 1).numpy()
    if data.name == "digits":
        return (255 * (1 - data.x.view(-1, 8, 8, 1))).byte().numpy()
    return None


def sprite_of(images: np.ndarray) -> dict[str, Any]:
    """All thumbnails as one picture, since a page of hundreds of pictures is slow and large."""
    from PIL import Image

    n, height, width, channels = images.shape
    rows = -(-n // COLUMNS)
    whole = np.full((rows * height, COLUMNS * width, channels), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = i // COLUMNS * height, i % COLUMNS * width
        whole[top : top + height, left : left + width] = image
    picture, file = Image.fromarray(whole[..., 0] if channels == 1 else whole), io.BytesIO()
    kind = "png" if channels == 1 else "jpeg"
    picture.save(file, kind, **({"quality": 80} if kind == "jpeg" else {"optimize": True}))
    url = f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
    return {"url": url, "columns": COLUMNS, "rows": rows, "width": width, "height": height}
