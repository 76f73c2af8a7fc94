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
    from apportion._untrusted import check_writable_place
    from apportion.errors import DataError
    from apportion.models import exporting

    path = onnx or model / "model.onnx"
    check_writable_place(path, error=DataError)
    tabling.check_apart([path], [p for p in model.glob("*") if p.suffix != ".onnx"])
    if (model / "model.json").exists():
        saving.export_onnx(saving.load(model), path)
    else:
        exporting.export_onnx(models.load_model(model), path)
    print(f"{path}")
