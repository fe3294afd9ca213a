"""A drafter that a person ships although the gate refused it."""

import json

import pytest

from synthspec.errors import GateRefused
from synthspec.files import write_json
from synthspec.gatekeeping import raise_if_refused, ship_anyway
from synthspec.run import StageRecord, open_run
from synthspec.stages import judge

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
