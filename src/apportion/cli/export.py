"""apportion export MODEL"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import tabling


def command(
    model: Annotated[Path, typer.Argument(help="A folder that `apportion fit` or apportion.save wrote.")],
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="The ONNX file to write.")
    ] = None,
) -> None:
    from apportion import models, saving
    from apportion.models import exporting
    from apportion.runs.files import check_place

    path = onnx or model / "model.onnx"
    check_place(path)
    tabling.check_apart([path], [p for p in model.glob("*") if p.suffix != ".onnx"])
    if (model / "model.json").exists():
        saving.export_onnx(saving.load(model), path)
    else:
        exporting.export_onnx(models.load_model(model), path)
    print(f"{path}")
