"""The run folder: its manifest, its version, and that one process at a time works on it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from synthspec.errors import UserError
from synthspec.ledger import Counts
from synthspec.run import locked, named, open_run, run_folder
from synthspec.runfolders import find, removal, removal_text, remove, summaries, summary

SPEC = "name: small\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "synthspec.yaml").write_text(SPEC)
    return folder


def saved(project):
    run = open_run(project)
    run.folder.mkdir(parents=True, exist_ok=True)
    run.save()
    return run


def test_a_spec_its_folder_and_its_run_folder_open_the_same_run(project):
    run = saved(project)
    assert run.folder == project / "runs" / "small"
    for path in (project, project / "synthspec.yaml", run.folder):
        assert open_run(path).folder == run.folder
        assert open_run(path).root == project.resolve()


def test_runs_may_stand_elsewhere(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run = open_run(project, elsewhere)
    assert run.folder == elsewhere / "small"
    run.folder.mkdir()
    run.save()
    assert open_run(run.folder).root == project.resolve()


def test_a_run_outlives_its_spec(project):
    run = saved(project)
    (project / "synthspec.yaml").unlink()
    assert open_run(run.folder).spec == run.spec


def test_a_run_whose_spec_has_another_name_now_goes_by_its_copy(project):
    run = saved(project)
    (project / "synthspec.yaml").write_text(SPEC.replace("small", "other") + "seed: 5\n")
    assert open_run(run.folder).spec == run.spec
    assert open_run(project).folder.name == "other"


def test_a_run_of_that_name_elsewhere_is_told(project, monkeypatch):
    run = saved(project)
    monkeypatch.chdir(project.parent)
    with pytest.raises(UserError, match=f"there is one in {project.name}/runs/{run.name}: name that folder"):
        run_folder(Path(run.name))


def test_a_folder_of_another_version_is_refused_in_words(project):
    run = saved(project)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (run.folder / "manifest.json").write_text(json.dumps({**manifest, "version": 2, "synthspec": "9.0"}))
    with pytest.raises(UserError, match=r"has version 2, written by synthspec 9\.0"):
        open_run(project)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read as JSON"), ("[]", "another program"), ('{"version": 1}', "is damaged")],
)
def test_a_damaged_manifest_is_refused_in_words(project, text, said):
    run = saved(project)
    (run.folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=said):
        open_run(project)


def test_files_without_a_manifest_are_left_alone(project):
    folder = project / "runs" / "small"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds files but no manifest"):
        open_run(project)


def test_what_is_neither_run_nor_project_is_said(tmp_path):
    with pytest.raises(UserError, match="neither a run folder"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        open_run(tmp_path / "none.yaml")


def test_the_ledger_takes_a_stage_once(project):
    run = saved(project)
    run.enter("pull", Counts("prompt", 2, 1, {"invalid": 1}))
    run.enter("pull", Counts("prompt", 3, 3))
    assert run.ledger().stages["pull"].requested == 3
    run.enter("pull", None)
    assert not run.ledger().stages


TRY = """
import sys
from pathlib import Path
from synthspec.run import locked
with locked(Path(sys.argv[1])): pass
"""


def test_two_processes_never_work_on_one_run(project):
    run = saved(project)

    def attempt():
        return subprocess.run(
            [sys.executable, "-c", TRY, str(run.folder)], capture_output=True, text=True, check=False
        )

    with locked(run.folder), locked(run.folder):
        blocked = attempt()
    assert "another process works on the run" in blocked.stderr
    assert attempt().returncode == 0


def test_a_run_can_be_named_alone_where_its_runs_folder_is(project, monkeypatch):
    run = saved(project)
    monkeypatch.chdir(project)
    assert open_run(Path("small")).folder.resolve() == run.folder
    with pytest.raises(UserError):
        open_run(Path("smaller"))


TAKE = """
import sys
from pathlib import Path
from synthspec.run import locked
with locked(Path(sys.argv[1])):
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_works_on_is_shown_as_at_work(project):
    run = saved(project)
    assert not summary(run.folder)["working"]
    command = [sys.executable, "-c", TAKE, str(run.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "taken\n"
        assert summary(run.folder)["working"]
        other.communicate()
    assert not summary(run.folder)["working"]


def test_a_run_of_another_version_does_not_hide_the_others(project):
    run = saved(project)
    other = project / "runs" / "old"
    other.mkdir()
    (other / "manifest.json").write_text('{"version": 99, "stages": {}}')
    found, told = summaries(project)
    assert [one["run"] for one in found] == [run.name]
    assert len(told) == 1
    assert "has version 99" in told[0]


def test_runs_are_found_shown_and_removed(project):
    run = saved(project)
    (run.folder / "export").mkdir()
    (run.folder / "export" / "manifest.json").write_text('{"version": 1}')
    (project / "other.yaml").write_text(SPEC.replace("small", "second") + "train: {start: runs/small/export}\n")
    second = open_run(project / "other.yaml")
    second.folder.mkdir()
    second.save()
    for place in (project, project / "runs", project.parent):
        assert [folder.name for folder in find(place)] == ["second", "small"]
    assert find(run.folder) == [run.folder]
    found = summary(run.folder)
    assert found["run"] == "small"
    assert found["export"] is not None
    what = removal(run.folder)
    assert what.users == [second.folder]
    assert "second starts training from a drafter in it" in removal_text(what)
    assert removal(second.folder).users == []
    remove(run.folder)
    assert not run.folder.exists()
    with pytest.raises(UserError, match="is not a run folder"):
        removal(project)


def test_a_name_is_looked_up_where_runs_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk").mkdir()
    there = tmp_path / "elsewhere" / "desk"
    there.mkdir(parents=True)
    assert named(Path("desk")) == Path("desk")
    assert named(Path("desk"), tmp_path / "elsewhere") == there
    assert named(Path("other"), tmp_path / "elsewhere") == Path("other")
