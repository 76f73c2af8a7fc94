"""The command `apportion`, also as python -m apportion, the form that torchrun takes.

The library needs fewer packages than the command line: a missing one is a line that says what to install.
"""

import sys

from apportion.cli.exit_codes import USER_ERROR

EXTRAS = {
    "cli": ("filelock", "matplotlib", "PIL", "polars", "pooch", "rich", "typer"),
    "report": ("jinja2", "vl_convert"),
    "onnx": ("onnx", "onnxscript"),
    "tensorboard": ("tensorboardX",),
    "dask": ("dask", "distributed"),
    "excel": ("fastexcel", "xlsxwriter"),
}


def main() -> None:
    try:
        from apportion.cli.app import main as run

        run()
    except ModuleNotFoundError as problem:
        missing = str(problem.name).partition(".")[0]
        for extra, modules in EXTRAS.items():
            if missing in modules:
                hint = f"pip install 'apportion[{extra}]'"
                sys.stderr.write(f"apportion: this command needs {missing}; {hint}\n")
                sys.exit(USER_ERROR)
        raise
    except (ImportError, MemoryError) as problem:
        # the loader's words for a library that does not fit into the memory that the process may use
        if isinstance(problem, ImportError) and "failed to map segment" not in str(problem):
            raise
        reason = str(problem).splitlines()[0] if str(problem) else "no memory left"
        sys.stderr.write(
            f"apportion: there is too little memory ({reason}); raise the limit of the process\n"
        )
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
