"""What the figures of a diagnosis mean: whether bags support an answer, and why, in plain words."""

import math
from typing import Any

LEAST_BAGS = 6  # fewer have too few orders for a permutation to be rare
RARE = 0.002  # a correlation that shuffled shares reach more often than this proves nothing


def words_for(values: dict[str, Any], m: int) -> tuple[bool, tuple[str, ...]]:
    """Whether the data supports an answer, and the reasons in plain words."""
    rest = "; nothing shows that the predictions of single rows are better than guesses"
    if values["spread"] < 1e-6:
        what = f"all bags have the same proportions. Nothing tells the classes apart{rest}"
        return False, (f"No answer: {what}.",)
    if m < LEAST_BAGS:
        return False, (f"No answer: {m} bags are too few to tell anything; {LEAST_BAGS} are the least.",)
    if values["p_value"] > RARE:
        found = f"correlation {values['correlation']:.2f}, shuffled shares reach {values['shuffled']:.2f}"
        what = "the shares of bags that the network has not seen are foretold no better than shuffled ones"
        why = "either rows say nothing of these proportions, or there are too few bags to show it, or the "
        why += "network has learned too little (more epochs, or more bags in a batch) or its own "
        why += (
            "bags by heart (if it foretells those far better: fewer epochs, or held-out bags that choose one)"
        )
        return False, (f"No answer: {what} ({found}). {why.capitalize()}{rest}.",)
    if math.isnan(values["accuracy"]):
        what = "more rows would be right than there are, so that accuracy cannot be told from these bags"
        why = "the rows of a bag seem to be alike, and to tell their bag's shares more than their own class"
        noise = ", or the noise of the shares is not what was said" if values["noisy"] else ""
        return False, (f"No answer: {what}. {why.capitalize()}{noise}.",)
    words = ["The bags tell the classes apart: the shares of unseen bags are foretold better than by chance."]
    if values["noisy"]:
        words.append("The shares are noisy: how much bags differ, and how sure the accuracy is, is not told.")
    elif values["spread"] < 1 - values["chance"]:
        words.append("The bags are more alike than random ones would be; more bags, or other ones, say more.")
    if values["spread"] > 1 + values["chance"]:
        words.append("They differ for a reason: if rows of a bag are alike, accuracy is overestimated.")
    if values["low"] <= values["largest"]:
        words.append("It is not shown that single rows are told better than by naming the largest class.")
    return True, tuple(words)
