"""A run is a folder: what is there says how far it is, and a crash leaves nothing half-written."""

import json

import pytest
import torch

from apportion import runs
from apportion.randomness import stream

RECIPE = json.dumps({"seed": 1, "first": {"epochs": 3, "rate": 0.1}})


def state(epoch: int) -> dict:
    return {"epoch": epoch, "players": [{"w": torch.ones(2) * epoch}]}


def test_a_new_run_starts_with_its_recipe_and_where_it_ran(tmp_path):
    assert runs.start(tmp_path / "a" / "b", RECIPE, {"torch": "x"}) is None
    assert (tmp_path / "a" / "b" / "recipe.json").read_text() == RECIPE
    assert json.loads((tmp_path / "a" / "b" / "where.json").read_text()) == {"torch": "x"}
    assert not runs.finished(tmp_path / "a" / "b")


def test_a_run_goes_on_from_its_checkpoint_and_forgets_the_lines_of_later_epochs(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    for epoch in (1, 2, 3):
        runs.append(tmp_path, {"epoch": epoch})
        if epoch == 2:
            runs.checkpoint(tmp_path, state(2))
    found = runs.start(tmp_path, RECIPE, {})
    assert found is not None
    assert found["epoch"] == 2
    assert torch.equal(found["players"][0]["w"], torch.full((2,), 2.0))
    assert runs.read_log(tmp_path) == [{"epoch": 1}, {"epoch": 2}]


def test_a_run_without_a_checkpoint_starts_its_log_anew(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, {"epoch": 1})
    assert runs.start(tmp_path, RECIPE, {}) is None
    runs.append(tmp_path, {"epoch": 1})
    assert len(runs.read_log(tmp_path)) == 1


def test_a_line_cut_short_by_a_crash_is_of_an_epoch_that_runs_again(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, {"epoch": 1})
    runs.checkpoint(tmp_path, state(1))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"epoch": 2, "ter')
    runs.start(tmp_path, RECIPE, {})
    assert runs.read_log(tmp_path) == [{"epoch": 1}]


def test_a_crash_while_a_checkpoint_is_written_leaves_the_old_one(tmp_path, monkeypatch):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, {"epoch": 1})
    runs.checkpoint(tmp_path, state(1))

    def cut_short(_: object, file) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(KeyboardInterrupt):
        runs.checkpoint(tmp_path, state(2))
    assert runs.start(tmp_path, RECIPE, {})["epoch"] == 1


def test_a_folder_of_another_recipe_is_refused_with_the_settings_that_differ(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    other = json.dumps({"seed": 1, "first": {"epochs": 5, "rate": 0.1}, "second": {"mixup": 1.0}})
    with pytest.raises(runs.RunError) as refusal:
        runs.start(tmp_path, other, {})
    text = str(refusal.value)
    assert text.startswith(f"{tmp_path} holds a run of another recipe; use another folder:")
    assert "first.epochs: 3 there, 5 asked for" in text
    assert "second.mixup: None there, 1.0 asked for" in text
    assert "rate" not in text
    assert (tmp_path / "recipe.json").read_text() == RECIPE


def test_the_same_recipe_written_otherwise_is_the_same(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    assert runs.start(tmp_path, json.dumps(json.loads(RECIPE), indent=4), {}) is None


def test_the_result_is_written_last_and_the_checkpoint_is_then_gone(tmp_path, monkeypatch):
    runs.start(tmp_path, RECIPE, {})
    runs.checkpoint(tmp_path, state(1))
    log_probs = torch.randn(5, 3, generator=stream(0)).log_softmax(1)
    there = []
    plain = runs.write
    monkeypatch.setattr(
        runs,
        "write",
        lambda path, text: (there.extend(p.name for p in tmp_path.iterdir()), plain(path, text)),
    )
    weights = {"w": torch.arange(6.0).view(2, 3).T}
    runs.finish(tmp_path, {"accuracy": 1.0}, weights, log_probs)
    assert {"model.safetensors", "log_probs.npy", "last.pt"} <= set(there)
    assert runs.finished(tmp_path)
    assert not (tmp_path / "last.pt").exists()
    assert runs.read_result(tmp_path) == {"accuracy": 1.0}
    assert torch.equal(runs.read_weights(tmp_path)["w"], weights["w"])
    torch.testing.assert_close(runs.read_log_probs(tmp_path), log_probs, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(runs.read_log_probs(tmp_path).exp().sum(1), torch.ones(5))


def test_predictions_that_underflow_are_kept_as_usable_numbers(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    sure = torch.tensor([[0.0, -1e9], [-200.0, -1e-9]])
    runs.finish(tmp_path, {}, {"w": torch.zeros(1)}, sure)
    assert torch.equal(runs.read_log_probs(tmp_path).argmax(1), torch.tensor([0, 1]))
    assert not runs.read_log_probs(tmp_path).isnan().any()


def test_what_is_missing_is_said_with_the_remedy(tmp_path):
    with pytest.raises(runs.RunError, match=r"log_probs.npy is missing; run the first stage of .* again"):
        runs.read_log_probs(tmp_path)
    with pytest.raises(runs.RunError, match=r"model.safetensors is missing.*run the first stage again"):
        runs.read_weights(tmp_path)


def test_all_runs_are_found_in_a_fixed_order(tmp_path):
    for name in ("b/x/seed=2", "a/y/seed=1", "b/x/seed=1"):
        runs.start(tmp_path / name, RECIPE, {})
    found = [str(path.relative_to(tmp_path)) for path in runs.all_runs(tmp_path)]
    assert found == ["a/y/seed=1", "b/x/seed=1", "b/x/seed=2"]
