"""Where the train stage takes its features from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from synthspec.errors import UserError
from synthspec.run import open_run
from synthspec.stages import table, train
from synthspec.start import run_flow

SPEC = {
    "name": "small",
    "prompts": [{"name": "p", "files": ["p.jsonl"], "licence": "MIT"}],
    "match": ["p"],
    "grammars": ["*.yaml"],
    "train": {"features": {"url": "http://gpu-1:30001", "key": {"file": "key.txt"}}},
}


def test_a_server_of_features_shows_that_it_is_the_target_before_it_reads(
    tmp_path, monkeypatch, smollm2_tokenizer
):
    seen = []

    class Captured:
        def __init__(self, *how):
            seen.append(how)

        def prove(self, model, ids):
            seen.append((model, ids))

        def fetch(self, documents):
            return [*documents]

    monkeypatch.setattr("synthspec.targets.captured.Captured", Captured)
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "key.txt").write_text("tell-nobody\n")
    run = open_run(tmp_path)
    target = SimpleNamespace(model="the model", tokenizer=smollm2_tokenizer, description={"hidden_size": 8})
    read = train._captured(run, target)((1, 3))
    (url, taps, hidden, key), (model, ids) = seen
    assert (url, taps, hidden, key, model) == ("http://gpu-1:30001", (1, 3), 8, "tell-nobody", "the model")
    assert len(set(ids)) > 20
    assert read([[1], [2]]) == [[1], [2]]
    assert "tell-nobody" not in run.spec.model_dump_json()


def settings_of(tmp_path, **changes):
    spec = SPEC | {"train": changes}
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump(spec))
    return table._train(open_run(tmp_path))


def test_what_changes_no_result_changes_no_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_model", lambda run: {})
    plain = settings_of(tmp_path)
    assert plain["train"].keys() == {
        "steps",
        "batch_documents",
        "anchors",
        "learning_rate",
        "negatives",
        "warmup",
        "loss_gamma",
        "checkpoint_every",
        "interpolation",
    }
    assert settings_of(tmp_path, shard=True, track="tensorboard", features_limit_gb=3) == plain
    assert settings_of(tmp_path, span_weights={"value": 1}) == plain
    for change in (
        {"optimizer": "muon"},
        {"ema": 0.9},
        {"accumulate": 2},
        {"features_cache": "none"},
        {"objective": "dpace"},
        {"by_length": True},
        {"max_context": 9},
        {"span_weights": {"forced": 1.0, "structure": 1.0, "value": 0.3, "free": 1.0}},
    ):
        assert settings_of(tmp_path, **change)["train"] == plain["train"] | change
    stopped = settings_of(tmp_path, stop_on_drift=2)
    assert stopped["train"] == plain["train"] | {"stop_on_drift": 2}
    assert stopped["ood_drop"] == 0.05  # it decides when


def test_the_bar_says_what_the_last_checkpoint_measured():
    start = {"step": 0, "accept_len": {"in_domain": 1.2, "general": 1.35}}
    assert train._measured([start]) == "τ 1.20, drift +0.00"
    assert (
        train._measured([start, {"accept_len": {"in_domain": 3.414, "general": 1.33}}]) == "τ 3.41, drift −0.02"
    )
    assert train._measured([{"step": 0}, {"step": 5}]) == ""


def test_torchrun_starts_nothing_but_training(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(UserError, match="torchrun starts `train` alone: leave it out"):
        run_flow("run", tmp_path, None, {})
