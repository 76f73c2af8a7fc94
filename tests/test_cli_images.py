"""Images by the command line: a table that names a file a row, learned from and scored as tables are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ragged
from typer.testing import CliRunner

pl = pytest.importorskip("polars")
from PIL import Image, ImageOps  # noqa: E402

from apportion import ProportionClassifier  # noqa: E402
from apportion.cli import app  # noqa: E402
from apportion.errors import DataError, ModelError  # noqa: E402
from apportion.evaluate import predict_log_proba_on  # noqa: E402
from apportion.models import load_model  # noqa: E402
from apportion.tables import pictures  # noqa: E402
from apportion.tables.columns import Column, from_values, to_values  # noqa: E402
from apportion.tables.picture_files import look  # noqa: E402
from apportion.tables.pictures import instances_of  # noqa: E402
from apportion.tabular.diagnose import _left_out, _place  # noqa: E402
from apportion.tabular.fit import settled  # noqa: E402
from apportion.tabular.seen import _means  # noqa: E402
from apportion.tabular.told import settings_of  # noqa: E402

BAGS, EACH, SIDE = 16, 8, 12
WORDS = ("slides/patches.csv", "--bag", "slide", "--image", "file")
SHARES = ("--proportions", "slides/shares.csv")


def run(*words: str) -> Any:
    try:
        return CliRunner().invoke(app, list(words), catch_exceptions=False)
    except (DataError, ModelError) as problem:
        return SimpleNamespace(exit_code=2, output=str(problem))


def opened(path: str | Path) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image)


def picture(random: np.random.Generator, dark: bool) -> np.ndarray:
    """Noise in color, with a dark disc or without one."""
    image = random.integers(120, 256, (SIDE, SIDE, 3))
    row, column = random.integers(3, SIDE - 3, 2)
    away = (np.arange(SIDE)[:, None] - row) ** 2 + (np.arange(SIDE) - column) ** 2
    return np.where((away < 8)[..., None] & dark, 20, image).astype(np.uint8)


@pytest.fixture
def truth(tmp_path, monkeypatch):
    """The hidden classes of the patches of slides, whose files are written to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    (tmp_path / "slides" / "png").mkdir(parents=True)
    dark = random.random((BAGS, EACH)) < random.random((BAGS, 1))
    rows = []
    for i, hidden in enumerate(dark.flatten()):
        Image.fromarray(picture(random, hidden)).save(f"slides/png/{i:03d}.png")
        rows.append({"slide": f"s{i // EACH}", "file": f"png/{i:03d}.png", "stain": i % 3})
    pl.DataFrame(rows).write_csv("slides/patches.csv")
    shares = {"slide": [f"s{i}" for i in range(BAGS)], "clear": 1 - dark.mean(1), "dark": dark.mean(1)}
    pl.DataFrame(shares).write_csv("slides/shares.csv")
    return dark.flatten()


def replaced(row: int, name: str | None) -> None:
    """The table with another file in a row."""
    frame = pl.read_csv("slides/patches.csv")
    names = [*frame["file"][:row], name, *frame["file"][row + 1 :]]
    frame.with_columns(file=pl.Series(names)).write_csv("slides/patches.csv")


def test_patches_are_learnt_from_the_shares_of_their_slides_and_new_ones_are_scored(truth):
    result = run("check", *WORDS, *SHARES)
    assert result.exit_code == 0
    assert "images of 12 × 12 pixels, in color, 0.1 MB in memory" in result.output
    assert "no other column: stain is left out" in result.output
    assert "nothing is wrong: file (image) -> clear, dark" in result.output
    assert run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "40").exit_code == 0
    result = run("predict", "model", "slides/patches.csv", "--out", "scored.parquet")
    assert result.output.split() == ["scored.parquet"]  # no name of a file is unlike those of training
    scored = pl.read_parquet("scored.parquet")
    assert scored.columns == ["slide", "file", "stain", "predicted", "p(clear)", "p(dark)"]
    assert ((scored["predicted"] == "dark").to_numpy() == truth).mean() > 0.9
    known = ("--bag", "slide", *SHARES)
    assert run("predict", "model", "slides/patches.csv", "--out", "met.csv", *known).exit_code == 0
    met = pl.read_csv("met.csv").group_by("slide").agg(pl.mean("p(dark)"))
    expected = dict(pl.read_csv("slides/shares.csv").select("slide", "dark").rows())
    assert dict(met.rows()) == pytest.approx(expected, abs=1e-4)


def test_a_model_of_images_is_that_of_two_views_on_this_device_and_says_so(truth):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1", "--no-mirror")
    values = json.loads(Path("model/config.json").read_text())
    told = {name: values["settings"][name] for name in ("first_stage", "second_stage", "rate", "mirror")}
    assert told == {"first_stage": "two_views", "second_stage": None, "rate": None, "mirror": False}
    assert values["settings"]["backbone"] == "resnet9"
    assert (values["backbone"], values["options"], values["shape"]) == ("resnet9", {"width": 8}, [3, 12, 12])
    assert values["facts"]["bytes"]
    assert "| file | image | a file, 12 × 12 pixels, in color |" in Path("model/README.md").read_text()
    settings = settings_of(load_model(Path("model")))  # by which networks are trained alike
    assert settings["backbone"].keywords == {"width": 8}
    assert settings["mirror"] is False


@pytest.mark.parametrize(
    "words", [("--no-mirror",), ("--second-stage", "plot", "--second-epochs", "2"), ("--first-stage", "dllp")]
)
def test_weights_are_those_of_the_estimator_for_the_same_images_to_the_bit(truth, words):
    assert run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "2", *words).exit_code == 0
    table, shares = pl.read_csv("slides/patches.csv"), pl.read_csv("slides/shares.csv")
    x = np.stack([np.asarray(opened(Path("slides") / file)).transpose(2, 0, 1) for file in table["file"]])
    told = {} if words[0] == "--no-mirror" else {words[0][2:].replace("-", "_"): words[1]}
    classifier = ProportionClassifier(
        first_epochs=2, second_epochs=2, mirror=words[0] != "--no-mirror", random_state=0, **told
    ).fit(x, bags=table["slide"].to_list(), proportions={row[0]: row[1:] for row in shares.rows()})
    found, expected = load_model(Path("model")).network.state_dict(), classifier.classifier_.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_network_is_that_of_the_device(monkeypatch):
    assert settled({}, True, "cpu")["backbone"].keywords == {"width": 8}
    assert settled({}, True, "auto")["backbone"].keywords == {"width": 8}
    monkeypatch.setattr("apportion._device.cuda_works", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert settled({}, True, "auto")["backbone"] == "resnet9"
    assert settled({}, True, "cuda")["backbone"] == "resnet9"
    assert settled({}, False, "cuda")["backbone"] == "mlp"


def test_a_device_that_is_named_is_that_of_every_part(truth, monkeypatch):
    asked, used = [], []

    def chosen(name, x):
        asked.append(name)
        return torch.device("cpu:0")

    def watched(device, *given):
        used.append(str(device))
        return predict_log_proba_on(device, *given)

    for module in ("fit", "diagnose", "score", "known"):
        monkeypatch.setattr(f"apportion.tabular.{module}.resolve_device", chosen)

    def moved(bags, device):
        used.append(f"bags to {device}")
        return bags

    for module in ("cards", "diagnose", "score", "known"):
        monkeypatch.setattr(f"apportion.tabular.{module}.predict_log_proba_on", watched)
    monkeypatch.setattr("apportion.bags.bags.Bags.to", moved)
    shared = ("slides/patches.csv", "--bag", "slide", *SHARES)
    for words, parts in (
        (("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1"), ["bags to cpu:0", "cpu:0"]),
        (("predict", "model", "slides/patches.csv", "--out", "scored.csv"), ["cpu:0"]),
        (("predict", "model", *shared, "--out", "met.csv"), ["cpu:0"]),
        (("diagnose", "model", *shared), ["bags to cpu:0"]),
    ):
        run(*words, "--device", "cpu")
        assert set(asked) == {"cpu"}, words
        assert used == parts, words
        asked.clear()
        used.clear()


def test_networks_that_judge_are_trained_where_the_model_was_or_it_is_said(truth, monkeypatch):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1", "--device", "cpu")
    model = load_model(Path("model"))
    assert model.facts.device == "cpu"
    monkeypatch.setattr("apportion._device.cuda_works", lambda: True)
    bags = ragged((4, 4), k=2, shape=model.shape)
    assert _place(model, bags, "auto").type == "cpu"
    assert _left_out(model, bags, torch.device("cpu")) == ""
    assert "the settings of its device, cpu: the model" in _left_out(model, bags, torch.device("cuda"))
    elsewhere = replace(model, facts=replace(model.facts, device="cuda"))
    assert _place(elsewhere, bags, "auto").type == "cuda"
    assert "its device, cuda:" in _left_out(elsewhere, bags, torch.device("cpu"))
    older = replace(model, facts=replace(model.facts, device=""))
    assert _left_out(older, bags, torch.device("cuda")) == ""


def test_what_is_told_takes_the_place_of_what_goes_with_images(truth):
    words = ("--first-stage", "dllp", "--second-stage", "plot", "--rate", "0.01", "--labels", "soft")
    epochs = ("--first-epochs", "1", "--second-epochs", "1")
    assert run("fit", *WORDS, *SHARES, "--out", "model", *words, *epochs).exit_code == 0
    settings = json.loads(Path("model/config.json").read_text())["settings"]
    assert [settings[name] for name in ("first_stage", "second_stage", "labels", "rate")] == [
        "dllp", "plot", "soft", 0.01,
    ]  # fmt: skip


def test_probabilities_are_those_of_the_network_on_the_bytes_of_the_files(truth):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1")
    run("predict", "model", "slides/patches.csv", "--out", "scored.parquet")
    files = [Path("slides") / name for name in pl.read_csv("slides/patches.csv")["file"]]
    x = np.stack([np.asarray(opened(file)).transpose(2, 0, 1) for file in files])
    pixels = torch.from_numpy(x).float().sub(127.5).div(63.75)
    expected = load_model(Path("model")).network(pixels).softmax(1)[:, 1].detach().numpy()
    np.testing.assert_allclose(pl.read_parquet("scored.parquet")["p(dark)"], expected, atol=1e-5)


def test_diagnose_judges_images_by_new_bags_and_by_networks_trained_alike(truth):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "2")
    words = ("slides/patches.csv", "--bag", "slide", *SHARES)
    assert "these are the bags that the model learned from" in _settings_error("model", words)
    result = run("diagnose", "model", *words, "--folds", "2", "--rows-out", "rows.csv")
    assert "each by one of 2 networks trained alike on other bags" in result.output
    assert pl.read_csv("rows.csv").height == BAGS * EACH


def _settings_error(model: str, words: tuple[str, ...]) -> str:
    from apportion.errors import SettingsError

    with pytest.raises(SettingsError) as caught:
        run("diagnose", model, *words, "--new")
    return str(caught.value)


def test_all_that_is_wrong_with_files_is_told_at_once_and_nothing_is_written(truth):
    Path("slides/text.png").write_text("no image")
    Path("slides/drawing.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n")
    Image.fromarray(np.zeros((12, 20, 3), np.uint8)).save("slides/wide.png")
    Image.fromarray(np.zeros((12, 12), np.uint16)).save("slides/deep.png")
    pages = [Image.new("L", (12, 12), shade) for shade in (0, 99)]
    pages[0].save("slides/stack.tif", save_all=True, append_images=pages[1:])
    strange = ["gone.png", None, "text.png", "drawing.eps", "wide.png", "deep.png", "stack.tif"]
    for row, name in enumerate(strange, 1):
        replaced(row, name)
    for command in ("check", "fit"):
        result = run(command, *WORDS, *SHARES, *(("--out", "model") if command == "fit" else ()))
        assert result.exit_code == 2
        for told in (
            "row 2, names 'gone.png', which is no file: names are looked for from the table's folder, ",
            "row 3, names no file: name one, or leave the row out",
            "row 4, names 'text.png', which cannot be read: ",
            "row 5, names 'drawing.eps', which cannot be read: ",
            "row 6, names an image of 12 × 20 pixels, others of 12 × 12: give all one size, or pass --pix",
            "row 7, names 'deep.png', whose pixels are of type I;16: write images with 8 bits a channel",
            "row 8, names 'stack.tif', which has 2 pictures in it: give every picture a file and a row",
        ):
            assert told in result.output
    assert not Path("model").exists()


def test_a_name_too_long_for_a_file_or_in_a_folder_that_is_shut_is_told_of(truth, monkeypatch):
    replaced(4, "x" * 300 + ".png")
    assert "row 5, names 'xxx" in run("check", *WORDS, *SHARES).output
    replaced(4, "shut/x.png")
    plain = Path.is_file

    def shut(self: Path) -> bool:
        if self.parent.name == "shut":
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self)

    monkeypatch.setattr(Path, "is_file", shut)  # whoever runs this may be root, to whom nothing is shut
    told = "row 5, names 'shut/x.png', which cannot be read: [Errno 13] Permission denied: 'the file'"
    assert told in run("check", *WORDS, *SHARES).output


def test_a_file_that_ends_too_soon_is_found_by_check_and_by_fit_before_it_trains(truth):
    whole = Path("slides/png/005.png").read_bytes()
    Path("slides/png/005.png").write_bytes(whole[: len(whole) // 2])
    for command in ("check", "fit"):
        result = run(command, *WORDS, *SHARES, *(("--out", "model") if command == "fit" else ()))
        assert result.exit_code == 2
        assert "patches.csv, row 6, names 'png/005.png', which cannot be read: " in result.output
        assert "epoch" not in result.output


def test_an_image_of_more_pixels_than_any_should_have_is_refused(truth, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    result = run("check", *WORDS, *SHARES)
    assert (
        "row 1, names 'png/000.png', which cannot be read: Image size (144 pixels) exceeds" in result.output
    )
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("apportion.tables.picture_files.LARGEST", 100)
    told = "row 3, names 'png/002.png', of 12 × 12 pixels; and 125 more: make it smaller; 100 are the most"
    assert told in run("check", *WORDS, *SHARES).output


def test_images_of_several_sizes_are_resized_where_that_is_asked_for_and_new_ones_too(truth):
    opened("slides/png/003.png").resize((30, 20)).save("slides/png/003.png")
    sized = ("--pixels", "10", "--out", "model", "--first-epochs", "1")
    assert run("fit", *WORDS, *SHARES, *sized).exit_code == 0
    model = load_model(Path("model"))
    assert (model.shape, model.columns[0].flag) == ((3, 10, 10), True)
    assert "a file, resized to 10 × 10 pixels, in color" in Path("model/README.md").read_text()
    assert run("predict", "model", "slides/patches.csv", "--out", "scored.csv").exit_code == 0
    assert run("diagnose", "model", *WORDS[:3], *SHARES, "--folds", "2").exit_code in (0, 1)
    opened("slides/png/003.png").resize((12, 12)).save("slides/png/003.png")
    assert run("fit", *WORDS, *SHARES, "--out", "plain", "--first-epochs", "1").exit_code == 0
    opened("slides/png/004.png").resize((30, 20)).save("slides/png/004.png")
    result = run("predict", "plain", "slides/patches.csv", "--out", "other.csv")
    assert (
        "row 5, names 'png/004.png', of 20 × 30 pixels, not 12 × 12: give images of the size" in result.output
    )
    assert not Path("other.csv").exists()


def test_images_too_small_for_the_network_are_told_of_before_it_is_made(truth):
    for file in Path("slides/png").iterdir():
        opened(file).resize((7, 9)).save(file)
    for command in ("check", "fit"):
        result = run(command, *WORDS, *SHARES, *(("--out", "model") if command == "fit" else ()))
        assert result.exit_code == 2
        assert "images of 9 × 7 pixels are too small to be learned from: pass --pixels 8" in result.output
    opened("slides/png/003.png").resize((30, 20)).save("slides/png/003.png")
    assert "give all one size, or pass --pixels 8 to resize them" in run("check", *WORDS, *SHARES).output
    words = (*WORDS, *SHARES, "--pixels", "8", "--out", "model", "--first-epochs", "1")
    assert run("fit", *words).exit_code == 0
    assert load_model(Path("model")).shape == (3, 8, 8)


def rows_of(*names: str | None) -> Any:
    return pl.DataFrame({"file": names})


def read(tmp_path: Path, name: str, shape: tuple[int, ...], flag: bool = False) -> np.ndarray:
    problems: list[str] = []
    column = Column("file", "image", flag=flag, shape=shape)
    (image,) = instances_of([column], rows_of(name), tmp_path / "table.csv", 0, problems)
    assert problems == []
    return image


@pytest.mark.parametrize(
    ("mode", "ending"),
    [("RGB", "png"), ("L", "png"), ("1", "png"), ("P", "gif"), ("RGBA", "png"), ("LA", "png"),
     ("CMYK", "tif"), ("RGB", "bmp"), ("RGB", "webp"), ("RGB", "ppm")],
)  # fmt: skip
def test_images_of_every_usual_kind_become_bytes_as_pil_has_them(tmp_path, mode, ending):
    random = np.random.default_rng(1)
    image = Image.fromarray(random.integers(0, 256, (9, 14, 3), np.uint8)).convert(mode)
    image.save(tmp_path / f"x.{ending}", **({"lossless": True} if ending == "webp" else {}))
    for channels, as_mode in ((3, "RGB"), (1, "L")):
        expected = np.asarray(opened(tmp_path / f"x.{ending}").convert(as_mode)).reshape(9, 14, channels)
        found = read(tmp_path, f"x.{ending}", (channels, 9, 14))
        np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))


def test_what_is_grey_is_told_by_the_head(tmp_path):
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (9, 14, 3), np.uint8))
    for mode, gray in {"1": True, "L": True, "LA": True, "P": False, "RGB": False, "RGBA": False}.items():
        image.convert(mode).save(tmp_path / f"{mode}.png")
        assert look(tmp_path, f"{mode}.png") == (gray, 9, 14)


def test_a_camera_s_preview_is_no_second_picture(tmp_path):
    image = Image.fromarray(np.zeros((16, 16, 3), np.uint8))
    image.save(tmp_path / "camera.jpg", format="MPO", save_all=True, append_images=[image.resize((8, 8))])
    with Image.open(tmp_path / "camera.jpg") as file:
        assert file.n_frames == 2
    assert read(tmp_path, "camera.jpg", (3, 16, 16)).max() == 0


def test_images_that_are_made_smaller_are_means_of_their_pixels(tmp_path):
    stripes = np.tile(np.array([0, 254], np.uint8), (20, 10))
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    found = read(tmp_path, "stripes.png", (1, 10, 10), flag=True)
    assert abs(found[:, :, 1:-1].astype(int) - 127).max() <= 32  # each of some pixels, none of one alone


def test_transparency_is_left_out_without_a_word(tmp_path):
    colors = Image.fromarray(np.random.default_rng(3).integers(0, 256, (9, 14, 3), np.uint8)).convert("P")
    colors.save(tmp_path / "some.png", transparency=bytes(range(256)))  # PIL warns, and warnings are errors
    expected = np.asarray(colors.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(read(tmp_path, "some.png", (3, 9, 14)), expected)


@pytest.mark.parametrize("ending", ["png", "tif", "webp"])
@pytest.mark.parametrize(
    ("orientation", "turns", "mirrored"),
    [(1, 0, False), (2, 0, True), (3, 2, False), (4, 2, True),
     (5, 3, True), (6, 3, False), (7, 1, True), (8, 1, False)],
)  # fmt: skip
def test_photographs_are_read_upright(tmp_path, ending, orientation, turns, mirrored):
    pixels = np.random.default_rng(2).integers(0, 256, (9, 14, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation  # how the camera was turned
    Image.fromarray(pixels).save(
        tmp_path / f"turned.{ending}", exif=exif, **({"lossless": True} if ending == "webp" else {})
    )
    upright = np.rot90(pixels, turns)[:, :: -1 if mirrored else 1].transpose(2, 0, 1)
    found = read(tmp_path, f"turned.{ending}", upright.shape)
    np.testing.assert_array_equal(found, upright)
    assert look(tmp_path, f"turned.{ending}")[1:] == upright.shape[1:]


def test_the_size_of_a_photograph_is_that_which_it_has_upright(truth):
    exif = Image.Exif()
    exif[0x0112] = 6
    opened("slides/png/000.png").resize((14, 9)).save("slides/png/000.png", exif=exif)
    result = run("check", *WORDS, *SHARES)
    assert "names an image of 12 × 12 pixels, others of 14 × 9" in result.output


def test_grey_images_have_one_channel_unless_others_are_in_color(truth):
    opened("slides/png/000.png").convert("L").save("slides/png/000.png")
    said = run("check", *WORDS, *SHARES).output
    assert "1 of 128 images are gray; they are taken in color" in said
    assert "images of 12 × 12 pixels, in color" in said
    for file in Path("slides/png").iterdir():
        opened(file).convert("L").save(file)
    said = run("check", *WORDS, *SHARES).output
    assert "12 × 12 pixels, gray, 0.0 MB" in said
    assert "they are taken in color" not in said
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1")
    assert load_model(Path("model")).shape == (1, 12, 12)


def test_files_lie_beside_the_table_wherever_the_command_is_run_or_have_whole_names(
    truth, monkeypatch, tmp_path
):
    frame = pl.read_csv("slides/patches.csv")
    whole = frame.with_columns(file=pl.lit(str(tmp_path / "slides")) + "/" + pl.col("file"))
    (tmp_path / "elsewhere").mkdir()
    whole.write_parquet("elsewhere/patches.parquet")
    monkeypatch.chdir(tmp_path / "elsewhere")
    shares = ("--proportions", "../slides/shares.csv")
    for table in ("../slides/patches.csv", "patches.parquet"):
        assert run("check", table, *WORDS[1:], *shares).exit_code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--image", "fil"), "has no column 'fil' (--image); it has 'slide', 'file', 'stain'"),
        (("--image", "slide"), "a column is named twice among bag, image, shares and classes"),
        (("--image", "file", "--categorical", "stain"), "leave --categorical and --keep out beside --image"),
        (("--image", "file", "--drop", "file"), "column 'file' (--image) is dropped, too: leave it out"),
        (("--image", "file", "--pixels", "7"), "Invalid value for '--pixels'"),
        (("--pixels", "8"), "--pixels is of images: name the column of their files with --image"),
    ],
)
def test_options_of_images_that_cannot_be_are_refused(truth, words, told):
    result = run("check", *WORDS[:3], *SHARES, *words)
    assert result.exit_code == 2
    assert told in result.output


def test_mirrors_are_of_images(truth):
    result = run("fit", *WORDS[:3], *SHARES, "--drop", "file", "--out", "model", "--no-mirror")
    assert result.exit_code == 2
    assert "--no-mirror is of images" in result.output


def test_a_column_that_names_images_is_pointed_out_where_it_is_taken_for_texts(truth):
    assert "--image file learns from the images that it names" in run("check", *WORDS[:3], *SHARES).output
    frame = pl.read_csv("slides/patches.csv")
    frame.with_columns(pl.col("file").str.to_uppercase()).write_csv("slides/patches.csv")
    assert "--image file learns from the images that it names" in run("check", *WORDS[:3], *SHARES).output
    one = pl.when(pl.int_range(pl.len()) > 0).then(pl.col("file").str.replace("png$", "dat"))
    frame.with_columns(file=one.otherwise("file")).write_csv("slides/patches.csv")
    assert "--drop file if it names the rows" in run("check", *WORDS[:3], *SHARES).output


def test_what_a_file_says_of_a_column_of_images_is_checked():
    column = Column("file", "image", flag=True, shape=(3, 8, 8))
    (values,) = to_values([column])
    assert from_values([values]) == (column,)
    for change in ({"shape": [3, 8]}, {"shape": [2, 8, 8]}, {"shape": []}, {"shape": [3, 8, 1 << 17]},
                   {"shape": "3"}, {"kind": "number"}, {"shape": [3, 8, 8.0]}, {"shape": [3, 8, 9]},
                   {"shape": [3, 7, 7]}, {"shape": [3, 1 << 13, 1 << 13]}, {"shape": [0, 8, 8]},
                   {"shape": [3, 8, 8, 8]}, {"flag": False, "shape": [3, 8, 0]},
                   {"kind": "number", "shape": [8]}):  # fmt: skip
        with pytest.raises(DataError, match="'file'"):
            from_values([values | change])
    for shape in ((1, 8, 8), (3, 4096, 4096)):
        assert from_values([values | {"shape": list(shape)}])[0].shape == shape
    assert from_values([values | {"flag": False, "shape": [3, 8, 9]}])[0].shape == (3, 8, 9)
    (other,) = to_values([Column("age", "number")])
    assert "shape" not in other  # as it was before there were images
    assert from_values([other]) == (Column("age", "number"),)


def test_a_model_whose_files_disagree_about_its_images_is_refused(truth):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1")
    path = Path("model/config.json")
    good = json.loads(path.read_text())
    number = to_values([Column("age", "number")])
    for change, told in (
        ({"columns": [good["columns"][0] | {"shape": [3, 12, 13]}]}, "columns that do not make instances"),
        ({"columns": [*good["columns"], *number]}, "columns that do not make instances"),
        ({"facts": good["facts"] | {"bytes": False}}, "whether they are images"),
        ({"options": {"width": 8, "slope": "a"}}, "the slope 'a'; it is a number"),
        ({"options": {"width": 8, "slope": float("nan")}}, "the slope nan; it is a number"),
        ({"options": {"width": 8, "slope": 10**400}}, "it is a number"),
        ({"backbone": "conv13", "options": {"last_padding": 1 << 20}}, "a last padding of 1048576"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ModelError, match=told):
            load_model(Path("model"))


def test_a_model_of_rows_has_no_column_of_images(truth):
    words = ("--drop", "file", "--out", "model", "--first-epochs", "1", "--second-epochs", "1")
    assert run("fit", *WORDS[:3], *SHARES, *words).exit_code == 0
    path = Path("model/config.json")
    good = json.loads(path.read_text())
    image = to_values([Column("file", "image", shape=(3, 12, 12))])
    for change, told in (
        ({"columns": [*good["columns"], *image]}, "columns that do not make instances"),
        ({"facts": good["facts"] | {"bytes": True}}, "whether they are images"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ModelError, match=told):
            load_model(Path("model"))


def test_means_of_bytes_by_parts_are_those_of_the_whole(monkeypatch):
    parts, split = [], torch.Tensor.split
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), np.uint8))

    def spied(self: torch.Tensor, size: int) -> Any:
        parts.extend(found := split(self, size))
        return found

    monkeypatch.setattr("apportion.tabular.seen.PART", 150)  # bytes: three images
    monkeypatch.setattr(torch.Tensor, "split", spied)
    assert torch.equal(_means(x), x.double().mean(0))
    assert torch.equal(_means(x[:3], x[3:]), x.double().mean(0))
    assert max(part.numel() for part in parts) <= 150


def test_images_are_read_a_few_at_a_time_where_they_are_large(truth, monkeypatch):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1")
    run("predict", "model", "slides/patches.csv", "--out", "whole.parquet")
    read, lengths = pictures.each, []

    def spied(work: Any, items: Any) -> Any:
        lengths.extend([len(items)] * isinstance(items, range))
        return read(work, items)

    monkeypatch.setattr(pictures, "each", spied)
    monkeypatch.setattr(pictures, "HELD", 7 * 3 * 12 * 12)
    for words in (
        ("check", *WORDS, *SHARES),
        ("fit", *WORDS, *SHARES, "--out", "again", "--first-epochs", "1"),
        ("predict", "model", "slides/patches.csv", "--out", "parts.parquet"),
    ):
        lengths.clear()
        assert run(*words).exit_code == 0
        assert (sum(lengths), max(lengths)) == (BAGS * EACH, 7)
    assert Path("again/model.safetensors").read_bytes() == Path("model/model.safetensors").read_bytes()
    whole, parts = pl.read_parquet("whole.parquet"), pl.read_parquet("parts.parquet")
    np.testing.assert_allclose(parts["p(dark)"], whole["p(dark)"], atol=1e-6)
    Path("slides/png/100.png").write_text("no image")
    for words in (
        ("check", *WORDS, *SHARES),
        ("predict", "model", "slides/patches.csv", "--out", "none.csv"),
    ):
        assert "row 101, names 'png/100.png', which cannot be read" in run(*words).output


def test_files_whose_heads_alone_are_whole_are_named_with_the_rows_of_all_parts(truth, monkeypatch):
    run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1")
    monkeypatch.setattr(pictures, "HELD", 7 * 3 * 12 * 12)
    image = np.random.default_rng(4).integers(0, 256, (12, 12, 3), np.uint8)
    Image.fromarray(image).save("slides/short.bmp")
    Path("slides/short.bmp").write_bytes(Path("slides/short.bmp").read_bytes()[:200])  # its head is whole
    replaced(20, "short.bmp")
    replaced(100, "short.bmp")
    for words in (
        ("check", *WORDS, *SHARES),
        ("fit", *WORDS, *SHARES, "--out", "other"),
        ("predict", "model", "slides/patches.csv", "--out", "scored.csv"),
        ("diagnose", "model", *WORDS[:3], *SHARES),
    ):
        result = run(*words)
        assert result.exit_code == 2
        for row in (21, 101):
            assert f"row {row}, names 'short.bmp', which cannot be read" in result.output
    assert not Path("other").exists()


def test_names_that_look_like_numbers_stay_as_they_are(truth):
    frame = pl.read_csv("slides/patches.csv")
    for file in frame["file"]:
        (Path("slides") / file).rename(Path("slides") / Path(file).stem)
    frame.with_columns(pl.col("file").str.extract(r"(\d+)")).write_csv("slides/patches.csv")
    assert "001" in Path("slides/patches.csv").read_text()
    assert run("fit", *WORDS, *SHARES, "--out", "model", "--first-epochs", "1").exit_code == 0
    assert run("predict", "model", "slides/patches.csv", "--out", "scored.parquet").exit_code == 0
    assert pl.read_parquet("scored.parquet")["file"][1] == "001"
    assert run("diagnose", "model", *WORDS[:3], *SHARES, "--folds", "2").exit_code in (0, 1)


def test_columns_that_are_used_or_dropped_are_not_told_of_as_left_out(truth):
    frame = pl.read_csv("slides/patches.csv").with_columns(
        some=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("clear")), at=pl.lit(1)
    )
    frame.write_csv("slides/patches.csv")
    stains = pl.DataFrame({"stain": [0, 1, 2], "clear": [0.5, 0.4, 0.6], "dark": [0.5, 0.6, 0.4]})
    stains.write_csv("slides/stains.csv")
    both = ("--bag", "stain", "--proportions", "slides/stains.csv")
    result = run("check", *WORDS, *SHARES, *both, "--given", "some", "--drop", "at")
    assert result.exit_code == 0
    assert "left out" not in result.output
    assert ": stain, some, at are left out" in run("check", *WORDS, *SHARES).output
