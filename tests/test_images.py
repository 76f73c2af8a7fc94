"""Images that a table names: what their files say, their bytes, and files that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pl = pytest.importorskip("polars")
Image = pytest.importorskip("PIL.Image")
from PIL import ImageOps  # noqa: E402

from apportion.errors import DataError  # noqa: E402
from apportion.tables import images  # noqa: E402
from apportion.tables.images import ImageColumn, check_images, read_header, read_images  # noqa: E402
from apportion.tables.spec import BagColumn, CheckReport, TableSpec  # noqa: E402

COLORS = np.random.default_rng(1).integers(0, 256, (9, 14, 3), np.uint8)


def upright(path: str | Path) -> Any:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image)


def read(folder: Path, name: str, shape: tuple[int, int, int], resize: bool = False) -> np.ndarray:
    column = ImageColumn("file", shape, resize)
    return read_images(column, folder / "table.csv", [name])[0]


def check(folder: Path, names: list[str | None], **changes: Any) -> tuple[ImageColumn | None, CheckReport]:
    frame = pl.LazyFrame({"slide": ["s"] * len(names), "file": names, "stain": range(len(names))})
    spec = TableSpec(folder / "table.csv", (BagColumn("slide"),), image="file", **changes)
    report = CheckReport()
    return check_images(spec, frame, report), report


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGB", "png"), ("L", "png"), ("1", "png"), ("P", "gif"), ("RGBA", "png"), ("LA", "png"),
     ("CMYK", "tif"), ("RGB", "bmp"), ("RGB", "webp"), ("RGB", "ppm"), ("RGB", "jpg")],
)  # fmt: skip
def test_bytes_are_those_that_pillow_reads(tmp_path, mode, suffix):
    image = Image.fromarray(COLORS).convert(mode)
    image.save(tmp_path / f"x.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    for channels, as_mode in ((3, "RGB"), (1, "L")):
        expected = np.asarray(upright(tmp_path / f"x.{suffix}").convert(as_mode)).reshape(9, 14, channels)
        found = read(tmp_path, f"x.{suffix}", (channels, 9, 14))
        np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))


def test_the_header_says_whether_an_image_is_gray(tmp_path):
    for mode, gray in {"1": True, "L": True, "LA": True, "P": False, "RGB": False, "RGBA": False}.items():
        Image.fromarray(COLORS).convert(mode).save(tmp_path / f"{mode}.png")
        assert read_header(tmp_path, f"{mode}.png") == (gray, 9, 14)


@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
@pytest.mark.parametrize(
    ("orientation", "turns", "mirrored"),
    [(1, 0, False), (2, 0, True), (3, 2, False), (4, 2, True),
     (5, 3, True), (6, 3, False), (7, 1, True), (8, 1, False)],
)  # fmt: skip
def test_photographs_are_read_upright(tmp_path, suffix, orientation, turns, mirrored):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if suffix == "webp" else {}
    Image.fromarray(COLORS).save(tmp_path / f"x.{suffix}", exif=exif, **options)
    expected = np.rot90(COLORS, turns)[:, :: -1 if mirrored else 1].transpose(2, 0, 1)
    np.testing.assert_array_equal(read(tmp_path, f"x.{suffix}", expected.shape), expected)
    assert read_header(tmp_path, f"x.{suffix}")[1:] == expected.shape[1:]


def test_a_preview_in_the_file_of_a_camera_is_not_a_second_image(tmp_path):
    image = Image.fromarray(np.zeros((16, 16, 3), np.uint8))
    image.save(tmp_path / "x.jpg", format="MPO", save_all=True, append_images=[image.resize((8, 8))])
    assert read(tmp_path, "x.jpg", (3, 16, 16)).max() == 0


def test_smaller_images_are_means_of_their_pixels(tmp_path):
    stripes = np.tile(np.array([0, 254], np.uint8), (20, 10))
    Image.fromarray(stripes).save(tmp_path / "x.png")
    found = read(tmp_path, "x.png", (1, 10, 10), resize=True)
    assert abs(found[:, :, 1:-1].astype(int) - 127).max() <= 32


def test_transparency_is_left_out(tmp_path):
    image = Image.fromarray(COLORS).convert("P")
    image.save(tmp_path / "x.png", transparency=bytes(range(256)))  # Pillow warns, and warnings are errors
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(read(tmp_path, "x.png", (3, 9, 14)), expected)


def test_the_shape_is_that_of_all_images(tmp_path):
    color, gray = Image.fromarray(COLORS), Image.fromarray(COLORS[..., 0])
    color.save(tmp_path / "color.png")
    gray.save(tmp_path / "gray.png")
    color.resize((20, 30)).save(tmp_path / "other.png")
    column, report = check(tmp_path, ["gray.png", "color.png"])
    assert (column, report.problems) == (ImageColumn("file", (3, 9, 14)), [])
    assert any("1 of 2 images are gray" in note for note in report.notes)
    assert any("'stain'" in note for note in report.notes)  # not learned from
    assert check(tmp_path, ["gray.png"])[0] == ImageColumn("file", (1, 9, 14))
    assert check(tmp_path, ["gray.png", "other.png"], pixels=8)[0] == ImageColumn("file", (3, 8, 8), True)


def test_all_files_that_cannot_be_used_are_reported_at_once(tmp_path):
    Image.fromarray(COLORS).save(tmp_path / "good.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "drawing.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n")
    Image.fromarray(np.zeros((12, 20, 3), np.uint8)).save(tmp_path / "wide.png")
    Image.fromarray(np.zeros((9, 14), np.uint16)).save(tmp_path / "deep.png")
    pages = [Image.new("L", (14, 9), shade) for shade in (0, 99)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    bad = [
        "gone.png",
        None,
        "text.png",
        "drawing.eps",
        "wide.png",
        "deep.png",
        "stack.tif",
        "x" * 300 + ".png",
    ]
    _, report = check(tmp_path, ["good.png", *bad])
    assert len(report.problems) == len(bad)
    assert {problem.rule for problem in report.problems} == {"image"}
    for row in range(2, 2 + len(bad)):
        assert any(f"row {row}, " in problem.message for problem in report.problems)


def test_files_that_end_too_soon_are_found_when_they_are_read(tmp_path):
    Image.fromarray(COLORS).save(tmp_path / "x.bmp")
    (tmp_path / "x.bmp").write_bytes((tmp_path / "x.bmp").read_bytes()[:200])  # its header is whole
    column, report = check(tmp_path, ["x.bmp"])
    assert report.problems == []
    with pytest.raises(DataError, match=r"row 101, .*x\.bmp"):
        read_images(column, tmp_path / "table.csv", ["x.bmp"], first_row=100)


def test_images_with_too_many_pixels_are_refused(tmp_path, monkeypatch):
    Image.fromarray(COLORS).save(tmp_path / "x.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    assert len(check(tmp_path, ["x.png"])[1].problems) == 1
    monkeypatch.setattr(images, "MAX_PIXELS", 10_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own guard
    assert len(check(tmp_path, ["x.png"])[1].problems) == 1


def test_images_that_are_too_small_for_the_networks_are_reported(tmp_path):
    Image.fromarray(COLORS).resize((7, 9)).save(tmp_path / "x.png")
    assert [problem.rule for problem in check(tmp_path, ["x.png"])[1].problems] == ["image size"]
    assert check(tmp_path, ["x.png"], pixels=8)[1].problems == []
