"""The command line: one short file a command; heavy imports happen inside them, so that --help is quick."""

import signal
import sys
from typing import Annotated

import typer

import apportion
from apportion.cli import check, diagnose, experiments, export, fit, predict
from apportion.cli.stopping import Stopped, stop

OK, REFUSED = 0, 2  # a refusal names its reason
STOPPED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # 130 and 143, as shells count


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Learn to label individuals when only the shares of whole groups are known.",
)


@app.callback()
def about(
    version: Annotated[bool, typer.Option("--version", help="The version, and nothing else.")] = False,
) -> None:
    if version:
        print(apportion.__version__)
        raise typer.Exit


app.command("list")(experiments.list_recipes)
app.command()(experiments.show)
app.command()(experiments.run)
app.command()(experiments.report)
app.command()(experiments.figure)
app.command()(experiments.demo)
app.command("check", help="What is wrong with a table and the shares of its bags, all of it at once.")(
    check.command
)
app.command("fit", help="A model of single rows from a table and the shares of its bags.")(fit.command)
app.command("predict", help="A table with the predictions of a model; with --bag, given the shares of bags.")(
    predict.command
)
app.command("diagnose", help="Is a model's answer any good? Figures and plain words, without labels.")(
    diagnose.command
)
app.command("export", help="A model as one file for programs without torch.")(export.command)
app.add_typer(experiments.data_app, name="data")


def after_stop(words: list[str]) -> str:
    """What the same command does when it is given again: only runs have checkpoints."""
    name = next((word for word in words if not word.startswith("-")), "")
    kept = {
        "run": "the same command goes on from the last checkpoint",
        "data": "files that are whole are kept, and the same command fetches the others",
    }
    return kept.get(name, "nothing unfinished is kept, and the same command starts from the beginning")


def main() -> None:
    """Run the command line; errors that a user can mend are one line and exit code 2, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        app()
    except Stopped as stopped:
        print(f"apportion: stopped; {after_stop(sys.argv[1:])}", file=sys.stderr)
        sys.exit(stopped.args[0])
    except (ValueError, RuntimeError, ArithmeticError, OSError) as problem:
        if type(problem).__module__.split(".")[0] != "apportion":
            raise
        print(f"apportion: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
