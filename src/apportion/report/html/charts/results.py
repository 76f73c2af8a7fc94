"""Charts of results: curves, the test part by class and by confidence, where the time went."""

from apportion.report.html.charts.parts import DASHES, Chart, field, tips


def curves() -> Chart:
    """A line a run; a click in the legend picks cells, the pointer shows the nearest epoch's numbers."""
    x = field("epoch", "quantitative", title="epoch", axis={"tickMinStep": 1})
    y = field("value", "quantitative", title=None, scale={"zero": False})
    picked = {"param": "picked", "value": 1}
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 1.8},
        "params": [{"name": "picked", "select": {"type": "point", "fields": ["cell"]}, "bind": "legend"}],
        "encoding": {
            "x": x,
            "y": y,
            "color": field("cell", "nominal", title="recipe"),
            "strokeDash": field("cell", "nominal", title="recipe", scale={"range": DASHES}),
            "detail": field("run", "nominal"),
            "opacity": {"condition": picked, "value": 0.08},
        },
    }
    near = {"type": "point", "nearest": True, "on": "pointermove", "clear": "pointerout"}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 70, "color": "#888"},
        "params": [{"name": "near", "select": near}],
        "encoding": {
            "x": x,
            "y": y,
            "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0},
            "tooltip": tips("run", "epoch", "value"),
        },
    }
    legend = {"legend": {"orient": "bottom", "columns": 2, "labelLimit": 260, "symbolSize": 300}}
    description = "Lines of the chosen quantity by epoch, one a run; the table above has their last values."
    return {"layer": [line, dots], "height": 320, "config": legend, "description": description}


def confusion() -> Chart:
    """Rows are true classes, columns predicted ones; the share of a row is written into its cell."""
    axis = {"labelLimit": 90}
    row_share = field("share", "quantitative", title="share of the row, %", legend=None)
    color = row_share | {"scale": {"scheme": "blues", "domain": [0, 100]}}
    dark = {"condition": {"test": "datum.share > 55", "value": "white"}, "value": "black"}
    return {
        "height": {"step": 24},
        "description": "Confusion matrix of the test part: rows are true classes, columns predicted ones.",
        "encoding": {
            "x": field("predicted", "nominal", sort=None, axis=axis | {"orient": "top", "labelAngle": -45}),
            "y": field("true", "nominal", sort=None, axis=axis),
            "tooltip": tips("true", "predicted", "count", "share"),
        },
        "layer": [
            {"mark": {"type": "rect", "stroke": "#888", "strokeWidth": 0.3}, "encoding": {"color": color}},
            {
                "transform": [{"filter": "datum.count > 0"}],
                "mark": {"type": "text", "fontSize": 10},
                "encoding": {"text": field("count", "quantitative"), "color": dark},
            },
        ],
    }


def classes() -> Chart:
    bar = {"mark": {"type": "bar"}}
    text = {
        "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 10},
        "encoding": {"text": field("accuracy", "quantitative", format=".1f")},
    }
    return {
        "height": {"step": 18},
        "description": "Test accuracy of each class in per cent.",
        "encoding": {
            "y": field("class", "nominal", title=None, sort=None, axis={"labelLimit": 110}),
            "x": field("accuracy", "quantitative", title="right, %", scale={"domain": [0, 108]}),
            "tooltip": tips("class", "accuracy", "of"),
        },
        "layer": [bar, text],
    }


def calibration() -> Chart:
    """Right by confidence; on the dashed line a classifier is as sure as it is right."""
    scale = {"domain": [0, 100]}
    dots = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": field("confidence", "quantitative", title="confidence, %", scale=scale),
            "y": field("right", "quantitative", title="right, %", scale=scale),
            "tooltip": tips("confidence", "right", "instances"),
        },
    }
    ends = {"values": [{"c": 0}, {"c": 100}]}
    even = {
        "data": ends,
        "mark": {"type": "line", "strokeDash": [5, 4], "color": "#888"},
        "encoding": {"x": field("c", "quantitative"), "y": field("c", "quantitative")},
    }
    description = "Share of right predictions by confidence, on the test part."
    return {"height": 240, "layer": [even, dots], "description": description}


def time() -> Chart:
    """Seconds of every run, one part after the other; hovering and a table tell the parts too."""
    return {
        "height": {"step": 20},
        "mark": {"type": "bar", "stroke": "#888", "strokeWidth": 0.5},
        "description": "Seconds of each run by part.",
        "encoding": {
            "y": field("run", "nominal", title=None, axis={"labelLimit": 220}),
            "x": field("seconds", "quantitative", title="seconds"),
            "color": field(
                "part", "nominal", title=None, sort=None, legend={"orient": "bottom", "columns": 3}
            ),
            "order": field("order", "quantitative"),
            "tooltip": tips("run", "part", "seconds"),
        },
    }
