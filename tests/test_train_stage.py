"""Where the train stage takes its features from."""

from __future__ import annotations

from types import SimpleNamespace

import yaml

from synthspec.run import open_run
from synthspec.stages import train

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
