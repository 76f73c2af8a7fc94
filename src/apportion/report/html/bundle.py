"""Vega, Vega-Lite and Vega-Embed as one script, from the package that brings them; made once, then cached."""

from contextlib import suppress
from importlib.metadata import version

from apportion.datasets import default_folder
from apportion.errors import RunError
from apportion.runs.files import whole_file


def bundle() -> str:
    """The script, which defines `vegaEmbed`. It takes seconds to make, so that it is kept by its version."""
    try:
        import vl_convert
    except ImportError:
        raise RunError("the page's charts need vl-convert; pip install 'apportion[report]'") from None
    path = default_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):
        if path.stat().st_size:
            return path.read_text("utf-8")
    script = vl_convert.javascript_bundle()  # type: ignore[missing-argument]  # its stub lacks the default
    with suppress(RunError), whole_file(path) as beside:  # a cache that cannot be written only costs time
        beside.write_text(script, "utf-8")
    return script
