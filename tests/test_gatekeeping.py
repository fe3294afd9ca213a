"""A drafter that a person ships although the gate refused it."""

import json

import pytest

from synthspec.dflash.checkpoint import FORMATS, export, load, save
from synthspec.dflash.model import Drafter
from synthspec.errors import GateRefused, UserError
from synthspec.files import write_json
from synthspec.gatekeeping import export_as, raise_if_refused, ship_anyway
from synthspec.run import StageRecord, open_run
from synthspec.stages import judge
from synthspec.stages.facts import describe, target_of
from tests.dflash.conftest import drafter_config, tiny_llama

SPEC = "name: small\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "synthspec.yaml").write_text(SPEC)
    found = open_run(tmp_path)
    drafter = {"layers": 1, "block_size": 8, "taps": [0], "start": "x", "steps": 1, "chosen_step": 1}
    gate = {"passed": False, "reasons": ["worse"], "failed": ["worse"], "rules": {}, "overridden": False}
    measured = {"version": 1, "drafter": drafter, "block_size": 8, "sets": [], "training": [], "gate": gate}
    write_json(found.path("acceptance.json"), measured)
    record = StageRecord(fingerprint="", code=1, settings={}, inputs={}, outputs={}, started="", finished="now")
    found.manifest.stages["check"] = record
    return found


def test_killed_while_exporting_the_override_is_known_and_the_export_is_made_again(run, monkeypatch):
    made = []

    def killed(run, gate):
        write_json(run.path("export/config.json"), {})
        raise KeyboardInterrupt

    def export(run, gate):
        made.append(gate["overridden"])
        write_json(run.path("export/config.json"), {})
        write_json(run.path("export/manifest.json"), {})

    monkeypatch.setattr(judge, "export", killed)
    with pytest.raises(KeyboardInterrupt):
        ship_anyway(run)
    assert json.loads(run.path("acceptance.json").read_text())["gate"]["overridden"]
    with pytest.raises(GateRefused):  # half an export is none
        raise_if_refused(run)
    monkeypatch.setattr(judge, "export", export)
    ship_anyway(run)
    ship_anyway(run)
    assert made == [True]
    assert list(run.manifest.stages["check"].outputs) == ["export/config.json", "export/manifest.json"]
    raise_if_refused(run)


def _project(folder, tokenizer):
    """A project whose target is a tiny model on disk, and its run."""
    tiny_llama(vocab_size=49_152).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "synthspec.yaml").write_text(SPEC + "target: {model: model}\n")
    return open_run(folder)


def test_an_export_is_written_again_as_another_engine_loads_it(tmp_path, smollm2_tokenizer):
    run = _project(tmp_path, smollm2_tokenizer)
    with pytest.raises(UserError, match="run small has no export"):
        export_as(run, "vllm", tmp_path / "out")
    save(Drafter(drafter_config(vocab_size=49_152, mask_token_id=16)), run.path("checkpoints/final"))
    export(run.path("checkpoints/final"), run.path("export"), describe(target_of(run)), {"run": "small"})
    for kind in FORMATS:
        export_as(run, kind, tmp_path / kind)
        assert load(tmp_path / kind).config == load(run.path("export")).config
    config = json.loads((tmp_path / "vllm" / "config.json").read_text())
    verifier = {"name_or_path": str(tmp_path / "model"), "architectures": ["LlamaForCausalLM"]}
    assert config["speculators_config"]["verifier"] == verifier
    with pytest.raises(UserError, match="is there already"):
        export_as(run, "vllm", tmp_path / "vllm")
    with pytest.raises(UserError, match="there is no format gguf: write sglang, vllm, transformers"):
        export_as(run, "gguf", tmp_path / "gguf")
