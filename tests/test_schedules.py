"""Schedules: shares of the peak rate, from zero to one, that end where they should."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.optim import SCHEDULES, cosine, flat, halving, one_cycle
from apportion.recipes import First
from apportion.recipes.building import build_schedule

progress = st.floats(0.0, 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
@given(at=progress, epochs=st.integers(1, 500))
def test_a_share_lies_between_zero_and_one(name, at, epochs):
    rate = build_schedule(First(epochs=epochs, schedule=name))
    assert 0.0 <= rate(at) <= 1.0


@pytest.mark.parametrize("name", ["flat", "cosine", "one-cycle"])
@given(at=st.floats(0.0, 0.999))
def test_the_share_changes_without_jumps_and_ends_at_zero(name, at):
    schedule = SCHEDULES[name]
    assert abs(schedule(at + 1e-6) - schedule(at)) < 1e-4
    assert schedule(1.0) == pytest.approx(0.0, abs=1e-12)


def test_flat_is_constant_for_seventy_per_cent_and_then_linear():
    assert [flat(p) for p in (0.0, 0.35, 0.7)] == [1.0, 1.0, pytest.approx(1.0)]
    assert flat(0.85) == pytest.approx(0.5)


def test_one_cycle_rises_from_a_twenty_fifth_to_its_peak_at_thirty_per_cent():
    assert one_cycle(0.0) == pytest.approx(1 / 25)
    assert one_cycle(0.3) == 1.0
    assert max(one_cycle(i / 1000) for i in range(1001)) == 1.0


def test_one_cycle_is_torchs_own():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=1001, cycle_momentum=False)
    for step in range(1001):
        # theirs counts its steps from another end and ends at 1/250,000 of the peak
        assert one_cycle(step / 1000) == pytest.approx(theirs.get_last_lr()[0], abs=0.005)
        optimizer.step()
        if step < 1000:
            theirs.step()


def test_cosine_is_half_way_down_in_the_middle():
    assert cosine(0.0) == 1.0
    assert cosine(0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("epochs", [1, 7, 100, 161, 289, 1000])
def test_halving_halves_after_every_hundred_epochs_exactly(epochs):
    for number in range(1, epochs + 1):
        start = halving((number - 1) / epochs, epochs)
        assert start == 0.5 ** ((number - 1) // 100), number
    assert math.log2(halving(1.0, 1000)) == -10
