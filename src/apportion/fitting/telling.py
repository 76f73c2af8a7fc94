"""What is told of a training while it goes on."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from apportion.pipeline import EpochState

LONG = 600.0  # seconds of a stage without a word


def line_of(epoch_state: EpochState) -> dict[str, Any]:
    """A line of history: stage, epoch, the mean of every term, seconds."""
    epoch = epoch_state.epoch
    return {
        "stage": epoch_state.stage,
        "epoch": epoch.number,
        **epoch.terms,
        "seconds": round(epoch.seconds, 3),
    }


def words_of(epoch_state: EpochState, said: Mapping[str, float]) -> str:
    """The same for people, with what else is `said` of it and the time that is left of its stage."""
    epoch, left = epoch_state.epoch, seconds_left(epoch_state)
    terms = ", ".join(f"{name} {value:.4g}" for name, value in (epoch.terms | dict(said)).items())
    wait = f"; {round(left / 60)} minutes left" if left > 90 else f"; {left:.0f} s left" if left > 9 else ""
    return f"{epoch_state.stage} stage, epoch {epoch.number} of {epoch.total}: {terms}{wait}"


def seconds_left(epoch_state: EpochState) -> float:
    """Of its stage, if later epochs take as long as this one; of a stage that `last` ends early, none."""
    taken, left = (
        epoch_state.epoch.seconds + epoch_state.label_seconds,
        epoch_state.epoch.total - epoch_state.epoch.number,
    )
    return 0.0 if epoch_state.last else taken * left


def tell_of_wait(epoch_state: EpochState) -> None:
    """A long training that says nothing looks like one that hangs. The first epoch may have compiled.

    By the log, at a level that is shown unless silenced: a warning would read as if something were wrong.
    """
    if epoch_state.epoch.number == 2 and (left := seconds_left(epoch_state)) > LONG:
        logging.getLogger("apportion").warning(
            "the %s stage has %d epochs of %.0f s, %.0f minutes more; verbose=True shows how far it is, and "
            "fewer epochs, smaller instances or a GPU (device) make it shorter",
            epoch_state.stage, epoch_state.epoch.total, epoch_state.epoch.seconds, left / 60,
        )  # fmt: skip


def tell(epoch_state: EpochState, said: Mapping[str, float], verbose: bool) -> None:
    """A line an epoch, or else a word of a long wait."""
    if verbose:
        sys.stdout.write(f"{words_of(epoch_state, said)}\n")
    else:
        tell_of_wait(epoch_state)
