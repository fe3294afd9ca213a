"""The tutorial, followed to the letter, and what it leaves behind."""

from __future__ import annotations

import json

import datasets
import jsonschema_rs
import numpy as np
import polars
import pytest

from synthspec.dflash.checkpoint import load
from synthspec.samples.schema import read_rows
from tests.journeys.conftest import ROOT

pytestmark = pytest.mark.slow


def test_every_promised_file_is_there(tutorial):
    for name in (
        "manifest.json",
        "ledger.json",
        "grammars/travel_desk.yaml",
        "prompts/prompts.parquet",
        "matches/matches.parquet",
        "requests/requests.parquet",
        "samples/samples.parquet",
        "trainset/train.parquet",
        "trainset/README.md",
        "sets/heldout_prompts.parquet",
        "sets/grammar_money_desk.parquet",
        "sets/general_chat.parquet",
        "sets/maths.parquet",
        "checkpoints/final/model.safetensors",
        "acceptance.json",
        "report.html",
        "export/config.json",
        "export/model.safetensors",
        "export/manifest.json",
    ):
        assert (tutorial.run / name).is_file(), name
    assert list((tutorial.run / "completions").glob("*.parquet"))
    assert not list(tutorial.run.rglob("*.part"))


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("manifest.json", "manifest"),
        ("ledger.json", "ledger"),
        ("acceptance.json", "acceptance"),
        ("export/manifest.json", "export-manifest"),
    ],
)
def test_json_files_follow_their_schemas(tutorial, file, schema):
    rules = json.loads((ROOT / "schemas" / f"{schema}.schema.json").read_text())
    jsonschema_rs.validate(rules, json.loads((tutorial.run / file).read_text()))


def test_the_ledger_adds_up_and_stages_hand_on_what_they_kept(tutorial):
    stages = json.loads((tutorial.run / "ledger.json").read_text())["stages"]
    for name, line in stages.items():
        assert line["kept"] + sum(line["dropped"].values()) == line["requested"], name
    for before, after in (
        ("pull", "match"),
        ("match", "render"),
        ("render", "generate"),
        ("generate", "conform"),
        ("conform", "assemble"),
    ):
        assert stages[before]["kept"] == stages[after]["requested"], (before, after)


def test_rows_can_be_followed_back_to_their_prompt(tutorial):
    prompts = {row["id"]: row for row in read_rows(tutorial.run / "prompts" / "prompts.parquet")}
    completions = {row["id"]: row for row in read_rows(tutorial.run / "completions")}
    for sample in read_rows(tutorial.run / "trainset" / "train.parquet"):
        lineage = sample["lineage"]
        prompt = prompts[lineage["prompt_id"]]
        assert (lineage["dataset"], lineage["row"]) == (prompt["dataset"], prompt["row"])
        assert lineage["licence"]
        written = completions[lineage["completion_id"]]["ids"]
        assert sample["input_ids"][sample["prompt_tokens"] :] == written
        assert sum(sample["loss_mask"]) == len(written)
        covered = [at for span in sample["spans"] for at in range(span["start"], span["end"])]
        assert covered == list(range(sample["prompt_tokens"], len(sample["input_ids"])))


def test_the_training_set_loads_as_people_load_sets(tutorial):
    folder = tutorial.run / "trainset"
    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "cache"))
    assert len(loaded) == polars.scan_parquet(folder / "train.parquet").collect().height
    purposes = set(loaded["purpose"])
    assert purposes == {"grammar", "replay"}
    assert "money_desk" not in set(loaded["grammar"])


def test_nothing_measured_was_trained_on(tutorial):
    trained = read_rows(tutorial.run / "trainset" / "train.parquet")
    prompts = {row["lineage"]["prompt_id"] for row in trained}
    answers = {tuple(row["input_ids"][row["prompt_tokens"] :]) for row in trained}
    for path in (tutorial.run / "sets").glob("*.parquet"):
        rows = read_rows(path)
        assert rows, path.name
        for row in rows:
            assert row["lineage"]["prompt_id"] not in prompts
            assert tuple(row["input_ids"][row["prompt_tokens"] :]) not in answers


def test_training_helped_on_the_trained_grammars(tutorial):
    acceptance = json.loads((tutorial.run / "acceptance.json").read_text())
    by_name = {entry["name"]: entry for entry in acceptance["sets"]}
    trained = by_name["heldout_prompts"]["trained"]
    assert trained["accept_len"] > by_name["heldout_prompts"]["start"]["accept_len"] + 0.3
    for entry in acceptance["sets"]:
        for which in ("start", "trained"):
            positions = entry[which]["by_position"]
            assert len(positions) == 7
            assert positions == sorted(positions, reverse=True)
            assert np.isclose(1 + sum(positions), entry[which]["accept_len"])


def test_the_export_is_the_chosen_drafter_and_says_that_the_gate_was_overruled_if_so(tutorial):
    gate = json.loads((tutorial.run / "acceptance.json").read_text())["gate"]
    manifest = json.loads((tutorial.run / "export" / "manifest.json").read_text())
    assert manifest["gate"] == {"passed": gate["passed"], "overridden": gate["overridden"]}
    assert gate["passed"] or gate["overridden"]
    ours, final = load(tutorial.run / "export"), load(tutorial.run / "checkpoints" / "final")
    for name, tensor in ours.state_dict().items():
        assert tensor.equal(final.state_dict()[name])


def test_the_report_shows_the_numbers(tutorial):
    page = (tutorial.run / "report.html").read_text()
    acceptance = json.loads((tutorial.run / "acceptance.json").read_text())
    for entry in acceptance["sets"]:
        assert f"{entry['trained']['accept_len']:.2f}" in page


def test_the_changed_grammar_was_refused_with_the_difference(tutorial):
    refused = [out for command, out in tutorial.outputs.items() if out.returncode == 2]
    assert len(refused) == 1
    told = refused[0].stderr
    assert "travel_desk.yaml" in told
    assert "--fresh" in told


def test_no_prompt_reaches_prefect(tutorial):
    """Its database keeps parameters and logs; rows must not be among them."""
    stored = b"".join(path.read_bytes() for path in tutorial.shell.prefect_home.rglob("*") if path.is_file())
    assert b"generate" in stored
    for row in read_rows(tutorial.run / "prompts" / "prompts.parquet"):
        if len(row["text"]) > 20:
            assert row["text"].encode() not in stored


def test_a_finished_run_has_nothing_left_to_do(tutorial):
    spec = tutorial.shell.folder / "my-desk" / "synthspec.yaml"
    before = {path: path.stat().st_mtime_ns for path in tutorial.run.rglob("*.parquet")}
    tutorial.shell.run(f"synthspec run {spec} --json", 0, 3)
    assert before == {path: path.stat().st_mtime_ns for path in before}
