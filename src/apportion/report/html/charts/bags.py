"""Charts of bags: their shares, their labels by epoch, their points, and the regions of the plane."""

from apportion.report.html.charts.parts import Chart, field, tips


def shares() -> Chart:
    """A bag's classes: known, predicted, and counted from the transport labels, side by side."""
    order = ["known", "transport labels", "predicted"]
    return {
        "mark": {"type": "bar", "stroke": "#888", "strokeWidth": 0.5},
        "height": {"step": 9},
        "description": "Known, predicted and transported shares of the bag's classes in per cent.",
        "encoding": {
            "y": field("class", "nominal", title=None, sort=None),
            "yOffset": field("kind", "nominal", sort=order),
            "x": field("share", "quantitative", title="share of the bag, %"),
            "color": field("kind", "nominal", title=None, sort=order, legend={"orient": "bottom"}),
            "tooltip": tips("class", "kind", "share"),
        },
    }


def history() -> Chart:
    """An instance a row, an epoch a column, its label's class as text and color."""
    x = field("epoch", "ordinal", title="epoch", axis={"labelOverlap": True, "labelAngle": 0})
    y = field("instance", "ordinal", title="instance")
    told = tips("instance", "epoch", "predicted", "label", "truth")
    text = {"fontSize": 9, "limit": 24}
    return {
        "height": {"step": 13},
        "description": "Each shown instance's label by epoch.",
        "encoding": {"x": x, "y": y, "tooltip": told},
        "layer": [
            {
                "mark": {"type": "rect", "opacity": 0.45},
                "encoding": {"color": field("class", "nominal", legend=None)},
            },
            {"mark": {"type": "text", **text}, "encoding": {"text": field("short", "nominal")}},
        ],
    }


def points() -> Chart:
    """The points of a bag: the shape is the label, a ring marks what the labels get wrong."""
    place = {
        "x": field("x", "quantitative", title=None, scale={"zero": False}),
        "y": field("y", "quantitative", title=None, scale={"zero": False}),
    }
    marks = {
        "shape": field("label", "nominal", title="label"),
        "color": field("label", "nominal", title="label", legend={"orient": "bottom"}),
        "tooltip": tips("instance", "predicted", "label", "truth"),
    }
    ring = {"type": "point", "size": 180, "strokeWidth": 1.6, "filled": False, "color": "#888"}
    wrong = {"mark": ring, "transform": [{"filter": "datum.wrong"}]}
    dots = {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": marks}
    description = "The bag's points; wrong labels are ringed."
    return {"height": 260, "encoding": place, "layer": [dots, wrong], "description": description}


def moons(slider: bool) -> Chart:
    """Regions and points of one run by step of its training, which a slider moves.

    Rows of regions have x, y and x2, y2; rows of points have x, y, a bag, its known share and a label.
    """
    step = {"name": "step", "value": 1}
    if slider:
        step |= {"bind": {"input": "range", "min": 1, "max": 20, "step": 1, "name": "step of the training"}}
    here = {"filter": "datum.step == step"}
    axis = {"axis": None, "scale": {"zero": False, "nice": False}}
    ring = {
        "transform": [here, {"filter": "datum.kind == 'point' && datum.wrong"}],
        "mark": {"type": "point", "size": 130, "filled": False, "strokeWidth": 1.8, "color": "#d00"},
    }
    place = {"x": field("x", "quantitative", **axis), "y": field("y", "quantitative", **axis)}
    legend = {"legend": {"orient": "bottom", "gradientLength": 120}}
    description = "Decision regions and points of the sampled bags at one step; wrong labels are ringed."
    layers = [_regions(here), _dots(here), ring]
    made = {"height": 300, "params": [step], "encoding": place, "layer": layers}
    apart = {"resolve": {"scale": {"color": "independent"}}}
    return made | apart | {"config": legend, "description": description}


def _regions(here: Chart) -> Chart:
    return {
        "transform": [here, {"filter": "datum.kind == 'region'"}],
        "mark": {"type": "rect", "clip": True, "opacity": 0.55},
        "encoding": {
            "x2": {"field": "x2"},
            "y2": {"field": "y2"},
            "color": field(
                "share",
                "quantitative",
                scale={"scheme": "blueorange", "domain": [0, 100]},
                title="predicted, %",
            ),
        },
    }


def _dots(here: Chart) -> Chart:
    return {
        "transform": [here, {"filter": "datum.kind == 'point'"}],
        "mark": {
            "type": "point",
            "filled": True,
            "size": 42,
            "opacity": 1,
            "stroke": "#222",
            "strokeWidth": 0.5,
        },
        "encoding": {
            "color": field(
                "known", "quantitative", scale={"scheme": "viridis"}, title="of the point's bag, %"
            ),
            "shape": field("label", "nominal", title="label", legend={"orient": "bottom"}),
            "tooltip": tips("bag", "known", "label", "predicted", "truth"),
        },
    }
