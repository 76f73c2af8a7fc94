"""The command line: one short file a command; heavy imports happen inside them, so that --help is quick."""

import sys

import typer

from apportion.cli import data, demo, list_recipes, report, run, show

OK, REFUSED, STOPPED = 0, 2, 130  # a refusal names its reason; 130 is what shells give for Ctrl-C

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Learn to label individuals when only the shares of whole groups are known.",
)
app.command("list", help="The names of all recipes, with what each trains.")(list_recipes.command)
app.command("show", help="A recipe, its defaults written out.")(show.command)
app.command("run", help="Run recipes: finished runs are skipped, interrupted ones go on.")(run.command)
app.command("report", help="Tables and figures from run folders.")(report.command)
app.command("demo", help="The paper's two-moons study: a table and a figure, in under two minutes.")(
    demo.command
)
app.add_typer(data.app, name="data", help="Fetch, import and list data sets.")


def main() -> None:
    """Run the command line; errors that a user can mend are one line and exit code 2, never a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        print("apportion: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(STOPPED)
    except (ValueError, RuntimeError, ArithmeticError, OSError) as problem:
        if type(problem).__module__.split(".")[0] != "apportion":
            raise
        print(f"apportion: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
