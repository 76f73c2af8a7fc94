"""Judging without labels: what held-out bags say of an answer, an epoch or a temperature."""
