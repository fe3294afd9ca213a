"""When a stage is skipped, done, done again or refused; with stages that only copy files."""

import dataclasses
import json

import pytest

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import write_json, write_text
from synthspec.ledger import Counts
from synthspec.run import open_run
from synthspec.runfolders import summary
from synthspec.stages import facts, produce, table
from synthspec.stages.execute import discard, execute, renew, require

SPEC = "name: small\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"
FILES = {
    "pull": ("prompts/prompts.parquet", "grammars/g.yaml"),
    "match": ("matches/matches.parquet",),
    "render": ("requests/requests.parquet",),
    "generate": ("completions/0.parquet", "completions/1.parquet"),
    "conform": ("samples/samples.parquet",),
    "assemble": ("trainset/train.parquet", "sets/heldout_prompts.parquet"),
    "train": ("checkpoints/log.json", "checkpoints/final/config.json"),
    "measure": ("acceptance.json",),
    "check": ("export/config.json",),
    "report": ("report.html",),
}

MEASURED = {
    "version": 1,
    "drafter": {"layers": 1, "block_size": 8, "taps": [0], "start": "x", "steps": 1, "chosen_step": 1},
    "sets": [],
    "training": [],
}
GATE = {"passed": True, "reasons": [], "rules": {}}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose stages write their own name and the spec's seed, and whose work is counted."""
    (tmp_path / "synthspec.yaml").write_text(SPEC)
    (tmp_path / "p.jsonl").write_text("{}\n")
    (tmp_path / "g.yaml").write_text("name: g\n")
    worked: list[str] = []

    def work_of(name):
        def work(run):
            worked.append(name)
            for file in FILES[name]:
                value = {"stage": name, "seed": run.spec.seed}
                if name == "measure":
                    value = {**MEASURED, "block_size": run.spec.seed, "gate": None}
                write_json(run.path(file), value)
            if name == "check":
                measured = json.loads(run.path("acceptance.json").read_text())
                write_json(run.path("acceptance.json"), {**measured, "gate": GATE})
            return Counts("file", 2, 1, {"surplus": 1})

        return work

    settings = {
        "render": lambda run: {"seed": run.spec.seed},
        "train": lambda run: {"train": {"steps": run.spec.train.steps}},
        "generate": lambda run: {},
        "conform": lambda run: {},
        "measure": lambda run: {},
    }
    plain = tuple(
        dataclasses.replace(
            stage,
            work=work_of(stage.name),
            settings=settings.get(stage.name, stage.settings),
            outside=table._no_files if stage.name in ("render", "train", "measure") else stage.outside,
        )
        for stage in table.STAGES
    )
    monkeypatch.setattr(table, "STAGES", plain)
    progress.be_quiet()
    yield tmp_path, worked
    progress.be_quiet(False)


def everything(project, first=None, last=None):
    run = open_run(project)
    if first:
        require(run, first)
    for name in table.span(first, last):
        execute(run, name)
    return run


def change(project, line):
    (project / "synthspec.yaml").write_text(SPEC + line + "\n")


def test_all_stages_run_once_and_then_never_again(project):
    path, worked = project
    run = everything(path)
    assert worked == list(table.NAMES)
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    everything(path)
    assert worked == list(table.NAMES)
    assert before == {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    ledger = run.ledger()
    assert list(ledger.stages) == list(table.NAMES)
    assert all(line.kept + sum(line.dropped.values()) == line.requested for line in ledger.stages.values())


def test_a_changed_setting_is_refused_with_its_name_and_the_ways_out(project):
    path, worked = project
    everything(path)
    change(path, "rows_per_grammar: 200")
    with pytest.raises(UserError) as caught:
        everything(path)
    assert str(caught.value) == (
        "run small: stage match was done with rows_per_grammar 160, and now it is 200: give the spec another "
        "name, or add --fresh match to do this stage and all later ones again"
    )
    assert worked == list(table.NAMES)


def test_a_setting_that_no_finished_stage_depends_on_may_change(project):
    path, worked = project
    everything(path, last="assemble")
    change(path, "train: {steps: 7}")
    everything(path)
    assert worked == list(table.NAMES)


def test_fresh_does_a_stage_and_all_later_ones_again(project):
    path, worked = project
    run = everything(path)
    change(path, "seed: 3")
    run = open_run(path)
    discard(run, "render")
    assert run.path("matches/matches.parquet").exists()
    assert not any(run.path(file).exists() for name in table.NAMES[2:] for file in FILES[name])
    assert list(run.ledger().stages) == ["pull", "match"]
    del worked[:]
    everything(path)
    assert worked == list(table.NAMES[2:])
    assert json.loads(run.path("samples/samples.parquet").read_text())["seed"] == 3


def test_a_file_replaced_by_hand_counts_for_what_follows(project):
    path, worked = project
    run = everything(path, last="assemble")
    write_text(run.path("samples/samples.parquet"), "by hand")
    with pytest.raises(
        UserError,
        match=r"stage assemble was done with other content of samples/samples\.parquet; it has changed",
    ):
        everything(path)
    discard(open_run(path), "assemble")
    everything(path)
    assert run.path("samples/samples.parquet").read_text() == "by hand"
    assert worked.count("conform") == 1


def test_a_changed_project_file_is_named(project):
    path, _ = project
    everything(path)
    (path / "p.jsonl").write_text("{} {}\n")
    with pytest.raises(UserError, match=r"stage pull was done with other content of p\.jsonl"):
        everything(path)
    (path / "p.jsonl").unlink()
    with pytest.raises(UserError, match="which does not exist"):
        everything(path)


def test_a_stage_that_lost_its_files_is_done_again(project):
    path, worked = project
    run = everything(path)
    run.path("matches/matches.parquet").unlink()
    del worked[:]
    everything(path)
    assert worked == ["match"]


def test_a_killed_stage_keeps_what_it_wrote_and_refuses_other_settings(project, monkeypatch):
    path, _ = project
    (real,) = [stage for stage in table.STAGES if stage.name == "train"]

    def dies(run):
        write_text(run.path("checkpoints/state"), "half")
        raise KeyboardInterrupt

    dying = tuple(
        dataclasses.replace(stage, work=dies) if stage.name == "train" else stage for stage in table.STAGES
    )
    with monkeypatch.context() as patch:
        patch.setattr(table, "STAGES", dying)
        with pytest.raises(KeyboardInterrupt):
            everything(path)
    assert open_run(path).manifest.stages["train"].finished is None
    change(path, "train: {steps: 7}")
    with pytest.raises(UserError, match=r"train was done with train\.steps 300, and now it is 7"):
        everything(path)
    change(path, "")
    seen = []

    def resumes(run):
        seen.append(run.path("checkpoints/state").exists())
        return real.work(run)

    resuming = tuple(
        dataclasses.replace(stage, work=resumes) if stage.name == "train" else stage for stage in table.STAGES
    )
    monkeypatch.setattr(table, "STAGES", resuming)
    everything(path)
    assert seen == [True]


def test_files_that_no_manifest_explains_do_not_stay(project):
    path, _ = project
    run = everything(path, last="match")
    write_text(run.path("completions/7.parquet"), "of an older time")
    everything(path)
    assert not run.path("completions/7.parquet").exists()


def test_the_gate_may_decide_again_without_a_new_measurement(project):
    path, worked = project
    everything(path)
    change(path, "gate: {in_domain_gain: 0.5}")
    with pytest.raises(UserError, match=r"check was done with gate\.in_domain_gain 0\.2, and now it is 0\.5"):
        everything(path)
    discard(open_run(path), "check")
    del worked[:]
    everything(path)
    assert worked == ["check", "report"]


def test_a_gate_that_is_to_decide_again_is_not_shown(project):
    path, _ = project
    run = everything(path)
    assert summary(run.folder)["gate"]["passed"]
    discard(run, "check")
    assert summary(run.folder)["gate"] is None


def test_fresh_removes_nothing_where_the_run_would_be_refused(project, monkeypatch):
    path, _ = project
    run = everything(path)
    before = sorted(run.folder.rglob("*"))

    def refused(said, *asked):
        with pytest.raises(UserError, match=said):
            renew(open_run(path), *asked)
        assert sorted(run.folder.rglob("*")) == before
        assert list(open_run(path).manifest.stages) == list(table.NAMES)

    refused("grammars|g.yaml", "pull")  # g.yaml is no grammar
    refused("throws away what --from train starts from", "generate", "train")
    monkeypatch.setattr(facts, "project_grammars", lambda spec, root: [])
    (path / "p.jsonl").rename(path / "q.jsonl")
    refused("which does not exist", "pull")
    (path / "q.jsonl").rename(path / "p.jsonl")
    change(path, "rows_per_grammar: 200")
    refused("stage match was done with rows_per_grammar 160", "train")
    renew(open_run(path), "match")
    assert list(open_run(path).manifest.stages) == ["pull"]


def test_answers_depend_on_versions_and_on_where_they_are_computed(project, monkeypatch):
    path, _ = project
    names = ("model", "revision", "weights_sha256", "tokenizer_sha256", "template_sha256")
    known = {**dict.fromkeys(names, "x"), "dtype": "bfloat16", "device": "cuda"}
    monkeypatch.setattr(facts, "describe", lambda target: known)
    monkeypatch.setattr("synthspec.targets.load.versions", lambda: ["torch 2", "llguidance 1"])
    settings = table._generate(open_run(path))
    assert settings["versions"] == ["torch 2", "llguidance 1"]
    assert (settings["target"]["dtype"], settings["target"]["device"]) == ("bfloat16", "cuda")


def test_a_stage_that_left_nothing_says_what_became_of_its_rows(project):
    states = ["invalid", "invalid", "truncated"]
    reasons = ["it is not UTF-8", "it is not UTF-8", "it was not finished after 9 tokens"]
    with pytest.raises(UserError) as told:
        produce._some([], open_run(project[0]), "conform", "no answer passed", states, reasons)
    assert str(told.value) == (
        "run small: stage conform left nothing: no answer passed (2 invalid, 1 truncated); most often: "
        "it is not UTF-8 (2), it was not finished after 9 tokens (1)"
    )


def test_the_report_is_done_again_unasked(project):
    path, worked = project
    run = everything(path)
    measured = json.loads(run.path("acceptance.json").read_text())
    write_json(run.path("acceptance.json"), {**measured, "gate": {**GATE, "passed": False}})
    del worked[:]
    everything(path)
    assert worked == ["report"]


def test_a_run_starts_only_after_what_it_needs(project):
    path, worked = project
    with pytest.raises(UserError, match="stage train cannot start, because stage pull is not done"):
        everything(path, first="train")
    everything(path, last="assemble")
    everything(path, first="train", last="train")
    assert worked == [*table.NAMES[:7]]
    change(path, "rows_per_grammar: 200")
    with pytest.raises(UserError, match="stage match was done with rows_per_grammar 160"):
        everything(path, first="measure")
    with pytest.raises(UserError, match="stage report cannot start, because stage measure is not done"):
        execute(open_run(path), "report")


def test_names_of_stages_are_checked():
    with pytest.raises(UserError, match="there is no stage 'trian'"):
        table.span("trian", None)
    with pytest.raises(UserError, match="the stage pull comes before train"):
        table.span("train", "pull")
    assert table.span("train", "check") == ("train", "measure", "check")
    assert table.span(None, None) == table.NAMES
