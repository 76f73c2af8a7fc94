"""Where a run was made."""

import json

import torch

from apportion.experiment.where import where


def test_where_names_version_commit_and_device(monkeypatch):
    monkeypatch.setenv("APPORTION_COMMIT", "abc")
    made = where(torch.device("cpu"), exact=True)
    assert made["commit"] == "abc"
    assert made["exact"] is True
    assert made["device"].startswith("cpu: ")
    assert {"apportion", "torch", "python", "started"} <= set(made)
    json.dumps(made)
