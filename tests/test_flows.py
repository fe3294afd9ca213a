"""The flows' own part: which run they work on, and what Prefect gets to see of a failure."""

import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

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


def test_a_piece_is_a_task_that_is_tried_again_only_where_that_may_help(monkeypatch):
    tries = []

    def work(failure):
        def fail_once():
            tries.append(failure)
            if len(tries) == 1 or isinstance(failure, UserError):
                raise failure

        return fail_once

    monkeypatch.setattr(tasks._piece, "retry_delay_seconds", 0)

    @flow(persist_result=False)
    def around(failure):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(tasks._as_task, copy_context(), "00001-abc", work(failure)).result()

    with prefect_test_harness():
        around(ValueError("4111 1111"))
        assert len(tries) == 2
        tries.clear()
        with pytest.raises(UserError, match="no such server"):
            around(UserError("no such server"))
        assert len(tries) == 1
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs()
        assert {run.name for run in runs} == {"00001-abc"}
        assert "4111" not in str([(run.state, run.task_inputs) for run in runs])
    assert tasks._pieces == {}
