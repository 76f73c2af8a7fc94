"""The command line: its commands and signals.

An error that the user can correct is one line on standard error; exit codes are in `exit_codes`. The commands
import what is slow to load inside their bodies, so that --help is quick.
"""

import signal
import sys
import warnings
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer

import apportion
from apportion.cli import experiments, report, tables
from apportion.cli.exit_codes import USER_ERROR
from apportion.errors import ApportionError, ApportionWarning

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Learn to label individuals when only the class proportions of whole groups are known.",
)


@app.callback()
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(apportion.__version__)
        raise typer.Exit


TABLES = "Tables"
app.command(rich_help_panel=TABLES)(tables.check)
app.command(rich_help_panel=TABLES)(tables.fit)
app.command(rich_help_panel=TABLES)(tables.predict)
app.command(rich_help_panel=TABLES)(tables.diagnose)
app.command(rich_help_panel=TABLES)(tables.tabulate)
app.command(rich_help_panel=TABLES)(tables.export)
app.command(rich_help_panel=TABLES)(report.report)

EXPERIMENTS = "Experiments"
app.command("list", rich_help_panel=EXPERIMENTS)(experiments.list_recipes)
app.command(rich_help_panel=EXPERIMENTS)(experiments.show)
app.command(rich_help_panel=EXPERIMENTS)(experiments.run)
app.command(rich_help_panel=EXPERIMENTS)(experiments.figure)
app.command(rich_help_panel=EXPERIMENTS)(experiments.demo)
app.add_typer(experiments.data_app, name="data", rich_help_panel=EXPERIMENTS)


class Stopped(BaseException):
    """Raised by a signal. Not a KeyboardInterrupt, which typer would catch."""


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(128 + number)  # exit codes as shells count


def what_is_kept(arguments: list[str]) -> str:
    """What a stopped command leaves behind: runs have checkpoints, and fits if they are told to."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    kept = {
        "run": "the same command continues from the last checkpoint",
        "data": "complete files are kept, and the same command downloads the others",
    }
    if command == "fit" and any(word.split("=")[0] == "--checkpoint" for word in arguments):
        return "the same command continues from the checkpoint"
    return kept.get(command, "nothing was written")


def print_error(text: Any) -> None:
    """Print a line for people on standard error, without control characters that may be in names."""
    from apportion._untrusted import printable_lines

    print(f"apportion: {printable_lines(text)}", file=sys.stderr)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our warnings are for people; where they were raised in the code is of no use to them."""
    if issubclass(category, ApportionWarning):
        print_error(f"warning: {message}")
    else:
        _show_other_warning(message, category, filename, lineno, file, line)


_show_other_warning = warnings.showwarning


def main() -> None:
    """Run the command line. Errors that a user can correct are short and have exit code 2, no traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    warnings.showwarning = show_warning
    try:
        app()
    except Stopped as stopped:
        print_error(f"stopped; {what_is_kept(sys.argv[1:])}")
        sys.exit(stopped.args[0])
    except ApportionError as problem:
        print_error(problem)
        sys.exit(USER_ERROR)
