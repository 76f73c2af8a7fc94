"""What is told of a training while it goes on."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from apportion.pipeline import Moment

LONG = 600.0  # seconds of a stage without a word


def line_of(moment: Moment) -> dict[str, Any]:
    """A line of history: stage, epoch, the mean of every term, seconds."""
    epoch = moment.epoch
    return {"stage": moment.stage, "epoch": epoch.number, **epoch.terms, "seconds": round(epoch.seconds, 3)}


def words_of(moment: Moment, said: Mapping[str, float]) -> str:
    """The same for people, with what else is `said` of it and the time that is left of its stage."""
    epoch, left = moment.epoch, seconds_left(moment)
    terms = ", ".join(f"{name} {value:.4g}" for name, value in (epoch.terms | dict(said)).items())
    wait = f"; {round(left / 60)} minutes left" if left > 90 else f"; {left:.0f} s left" if left > 9 else ""
    return f"{moment.stage} stage, epoch {epoch.number} of {epoch.of}: {terms}{wait}"


def seconds_left(moment: Moment) -> float:
    """Of its stage, if later epochs take as long as this one; of a stage that `last` ends early, none."""
    taken, left = moment.epoch.seconds + moment.label_seconds, moment.epoch.of - moment.epoch.number
    return 0.0 if moment.last else taken * left


def tell_of_wait(moment: Moment) -> None:
    """A long training that says nothing looks like one that hangs. The first epoch may have compiled.

    By the log, at a level that is shown unless silenced: a warning would read as if something were wrong.
    """
    if moment.epoch.number == 2 and (left := seconds_left(moment)) > LONG:
        logging.getLogger("apportion").warning(
            "the %s stage has %d epochs of %.0f s, %.0f minutes more; verbose=True shows how far it is, and "
            "fewer epochs, smaller instances or a GPU (device) make it shorter",
            moment.stage, moment.epoch.of, moment.epoch.seconds, left / 60,
        )  # fmt: skip


def tell(moment: Moment, said: Mapping[str, float], verbose: bool) -> None:
    """A line an epoch, or else a word of a long wait."""
    if verbose:
        sys.stdout.write(f"{words_of(moment, said)}\n")
    else:
        tell_of_wait(moment)
