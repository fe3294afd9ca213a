"""The flows' own part: which run they work on, and what Prefect gets to see of a failure."""

import traceback
from contextlib import contextmanager

import pytest

from synthspec.errors import UserError
from synthspec.failures import exit_code_of
from synthspec.flows import tasks
from synthspec.run import StageRecord, locked, open_run

SPEC = "name: small\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "synthspec.yaml").write_text(SPEC)
    return tmp_path


def test_what_another_process_did_until_the_lock_was_free_counts(project, monkeypatch):
    @contextmanager
    def waited(folder):
        with locked(folder):
            other = open_run(project)
            other.manifest.stages["pull"] = StageRecord(
                fingerprint="", code=1, settings={}, inputs={}, outputs={}, started="", finished=None
            )
            other.save()
            yield

    monkeypatch.setattr(tasks, "locked", waited)
    with tasks.opened(str(project), None) as run:
        assert list(run.manifest.stages) == ["pull"]
        with tasks.opened(str(run.folder), None) as inner:
            assert inner is run


def test_a_task_hides_the_texts_of_unknown_failures_and_of_no_others(project, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(run, name):
        raise KeyError("4111 1111") if name == "pull" else UserError("match is wrong")

    monkeypatch.setattr("synthspec.flows.tasks.execute", fails)
    with tasks.opened(str(project), None) as run:
        with pytest.raises(UserError, match="match is wrong"):
            tasks.TASKS["match"].fn(str(run.folder))
        with pytest.raises(Exception, match=r"^KeyError$") as caught:
            tasks.TASKS["pull"].fn(str(run.folder))
    assert "4111" not in "".join(traceback.format_exception(caught.value))
    assert exit_code_of(caught.value, as_json=False) == 1
    assert "went wrong (KeyError)" in capsys.readouterr().err
    (file,) = tmp_path.glob("synthspec-crash-*.txt")
    assert file.read_text().startswith("KeyError\n")
    assert "in fails" in file.read_text()
