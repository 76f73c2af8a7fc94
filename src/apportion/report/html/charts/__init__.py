"""The page's charts as Vega-Lite, without their rows: the page fills those in by name."""

from apportion.report.html.charts.bags import history, moons, points, shares
from apportion.report.html.charts.parts import Chart
from apportion.report.html.charts.results import calibration, classes, confusion, curves, time


def all_charts() -> dict[str, Chart]:
    made = {
        "curves": curves(),
        "shares": shares(),
        "history": history(),
        "points": points(),
        "confusion": confusion(),
        "classes": classes(),
        "calibration": calibration(),
        "time": time(),
        "moons": moons(slider=True),
        "moons2": moons(slider=False),
    }
    shared = {"data": {"name": "rows"}, "width": "container"}
    return {name: shared | chart for name, chart in made.items()}
