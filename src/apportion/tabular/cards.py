"""What the card of a table's model tells: the data that it learned from, and how well it meets the shares."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags, exact_bag_means
from apportion.evaluate import bag_correlation, predict_log_proba_on, proportion_error
from apportion.selection.diagnosis import MIN_BAGS
from apportion.tables.asking import Asked, Found


def data_of(bags: Bags, held: Bags | None, questions: Sequence[Asked], found: Found) -> dict[str, Any]:
    """What it learned from, for people."""
    asked, files = questions[0], [(each.proportions or each.counts or each.table).name for each in questions]
    shares = zip(found.classes, bags.known().overall.tolist(), strict=True)
    data = {
        "table": asked.table.name,
        "rows": len(bags.source.unique()),
        "bags": len(bags.sizes),
        "bags by": ", ".join(each.bag for each in questions),
        "held-out bags": 0 if held is None else len(held.sizes),
        "smallest and largest bag": f"{int(bags.sizes.min())}, {int(bags.sizes.max())}",
        "shares from": ", ".join(files),
        "overall shares": ", ".join(f"{name} {share:.4f}" for name, share in shares),
    }
    unknown = len(bags.sizes) - len(bags.known().sizes)
    data |= {"bags without shares": unknown} if unknown else {}
    taken = {f"noise of {each.bag}": each.noise for each in questions if each.noise}
    taken |= {name: "yes" for name in ("normalize", "fill") if getattr(asked, name)}
    return data | taken | ({"given labels": f"column {asked.given}"} if asked.given else {})


def quality_of(network: nn.Module, bags: Bags, which: str, device: torch.device) -> dict[str, Any]:
    """How well the predictions of these bags meet their shares."""
    bags = bags.known()
    known = bags.proportions.cpu()
    log_probs = predict_log_proba_on(device, network, bags.x, as_floats)
    found: Any = f"– ({len(known)} bags are too few to tell it)"  # of two and two classes it is 1 or -1
    if len(known) >= MIN_BAGS:
        found = bag_correlation(exact_bag_means(log_probs.exp(), bags.sizes), known)  # None: all are alike
    error = proportion_error(log_probs, bags.sizes, known)
    return {f"share of a bag that is misplaced, {which}": error, f"bag correlation, {which}": found}
