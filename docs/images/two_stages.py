"""Draws two-stages.svg, the README's picture of the paper's figure 1: python docs/images/two_stages.py"""

import random
from pathlib import Path

RED, GREEN, GREY, INK, LINE = "#c0392b", "#1e8449", "#9aa0a6", "#202124", "#5f6368"
FIRST = (
    "First stage",
    "a teacher learns until its",
    "mean prediction of a bag",
    "meets the bag’s shares:",
    "DLLP, LLP-VAT,",
    "LLP-GAN or ROT",
)
SECOND = (
    "Second stage: PLOT",
    "a student learns the mean",
    "of the last five rounds of",
    "labels, by cross-entropy",
    "or symmetric cross-entropy,",
    "with or without mixup",
)
PANEL = 'rx="10" fill="#f6f8fa" stroke="#d0d7de"'


def text(x: float, y: float, words: str, size: int = 13, *, bold: bool = False, color: str = INK) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}"{weight}>{words}</text>'


def arrow(path: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.8"{dash} marker-end="url(#tip)"/>'


def bag(x: float, y: float, reds: int, known: bool) -> str:
    """Ten instances and the bar of their proportions; colors only where labels are known."""
    places = random.Random(f"{reds}").sample([(c, r) for r in range(2) for c in range(5)], 10)  # noqa: S311
    parts = [f'<rect x="{x}" y="{y}" width="104" height="62" {PANEL}/>']
    for i, (column, row) in enumerate(places):
        cx, cy = x + 14 + 19 * column, y + 15 + 17 * row
        color = GREY if not known else RED if i < reds else GREEN
        if known and i >= reds:  # the shape differs too
            parts.append(f'<path d="M{cx} {cy - 6}l6 11h-12z" fill="{color}"/>')
        else:
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="5.5" fill="{color}"/>')
    share = 88 * reds / 10
    parts.append(f'<rect x="{x + 8}" y="{y + 46}" width="{share}" height="8" fill="{RED}"/>')
    parts.append(f'<rect x="{x + 8 + share}" y="{y + 46}" width="{88 - share}" height="8" fill="{GREEN}"/>')
    return "".join(parts)


def box(x: float, y: float, height: float, lines: tuple[str, ...]) -> str:
    head, *rest = lines
    words = [text(x + 12, y + 24, head, 14, bold=True)]
    words += [text(x + 12, y + 46 + 18 * i, line) for i, line in enumerate(rest)]
    return f'<rect x="{x}" y="{y}" width="206" height="{height}" {PANEL}/>' + "".join(words)


def drawing() -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 420" width="960" height="420" role="img" '
        'font-family="Helvetica, Arial, sans-serif">',
        "<title>The two stages: a teacher learns from proportions, transport turns its predictions into "
        "labels that meet them, a student learns the labels</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
        '<rect width="960" height="420" rx="12" fill="#ffffff"/>',  # a card: readable on light and dark pages
        text(24, 34, "Bags", 15, bold=True),
        text(24, 54, "instances, and the", color=LINE),
        text(24, 70, "shares of each bag", color=LINE),
        *(bag(24, 86 + 78 * i, reds, known=False) for i, reds in enumerate((3, 6, 8))),
        box(190, 86, 148, FIRST),
        arrow("M134 150H184"),
        arrow("M396 150H446"),
        text(190, 256, "log-probabilities, or any", color=LINE),
        text(190, 272, "predictions from elsewhere", color=LINE),
        text(452, 34, "Labels by transport", 15, bold=True),
        text(452, 54, "the likeliest labels that meet", color=LINE),
        text(452, 70, "every bag’s shares exactly", color=LINE),
        *(bag(476, 86 + 78 * i, reds, known=True) for i, reds in enumerate((3, 6, 8))),
        arrow("M590 150H692"),
        box(698, 86, 148, SECOND),
        arrow("M760 240V284H588"),
        text(604, 304, "relabel after every epoch", color=LINE),
        arrow("M860 240V350"),
        text(700, 374, "a classifier of instances", 14, bold=True),
        arrow("M76 330V352H528V326"),
        text(190, 374, "the shares bind the labels of every round", color=LINE),
        text(24, 404, "True labels, where an experiment has them, are seen by evaluation alone.", 12),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("two-stages.svg").write_text(drawing())
