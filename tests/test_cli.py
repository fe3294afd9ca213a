"""The command line: what a person sees, and the exit codes."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml

from synthspec import __version__
from synthspec.errors import GateRefused, Stopped, UserError
from synthspec.failures import exit_code_of

SPEC = {
    "name": "small",
    "prompts": [{"name": "p", "files": ["p.jsonl"], "licence": "MIT"}],
    "match": ["p"],
    "grammars": ["g.yaml"],
}
GRAMMAR = {
    "name": "weather",
    "kind": "tool_call",
    "wire_format": "hermes",
    "system": "Answer with one call.",
    "tools": [
        {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        }
    ],
    "examples": [{"name": "get_weather", "arguments": {"city": "<redacted>"}}],
}


def synthspec(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "synthspec", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        check=False,
        stdin=subprocess.DEVNULL,
    )


def fails(code, *arguments, cwd=None):
    done = synthspec(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("synthspec: error: ")
    return done.stderr


@pytest.fixture
def project(tmp_path):
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(GRAMMAR))
    lines = [json.dumps({"prompt": f"What is the weather like in town {n}?"}) for n in range(30)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_help_answers_in_half_a_second():
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        done = synthspec("--help")
        seconds.append(time.perf_counter() - begun)
    assert done.returncode == 0
    verbs = "init plan preview run produce train measure check report runs"
    assert all(verb in done.stdout for verb in verbs.split())
    assert min(seconds) < 0.5


def test_help_imports_nothing_heavy():
    code = (
        "import sys, synthspec.cli\n"
        "heavy = {'torch', 'transformers', 'prefect', 'datasets', 'llguidance', 'polars', 'pyarrow', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_printed():
    assert synthspec("--version").stdout == f"synthspec {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "No such command"),
        (["run"], "Missing argument"),
        (["run", "none.yaml"], "none.yaml: there is no such file"),
        (["run", ".", "--until", "trian"], "there is no stage 'trian'"),
        (["run", ".", "--from", "train", "--until", "pull"], "the stage pull comes before train"),
        (["train", "."], "neither a run folder"),
        (["runs", "show", "."], "manifest.json does not exist"),
        (["runs", "rm", ".", "--yes"], "is not a run folder"),
        (["runs", "ls", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_told_in_words(tmp_path, arguments, said):
    assert said in fails(2, *arguments, cwd=tmp_path)


def test_several_mistakes_are_told_at_once(project):
    text = (project / "synthspec.yaml").read_text().replace("match:", "mach:") + "target: {modle: x}\n"
    (project / "synthspec.yaml").write_text(text)
    said = fails(2, "plan", project)
    assert "did you mean match?" in said
    assert "did you mean model?" in said


def test_mistakes_are_json_on_stderr_when_asked(project):
    done = synthspec("run", project / "none.yaml", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    told = json.loads(done.stderr)
    assert told["exit_code"] == 2
    assert "there is no such file" in told["error"]


def test_init_copies_a_project_and_leaves_a_full_folder_alone(tmp_path):
    done = synthspec("init", tmp_path / "desk", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"] == str(tmp_path / "desk" / "synthspec.yaml")
    assert (tmp_path / "desk" / "synthspec.yaml").is_file()
    assert list((tmp_path / "desk" / "grammars").glob("*.yaml"))
    assert "is not empty" in fails(2, "init", tmp_path / "desk")


def test_runs_of_a_project_without_any(project):
    assert synthspec("runs", "ls", project).stdout.startswith("no runs in")
    assert json.loads(synthspec("runs", "ls", project, "--json").stdout) == {"runs": [], "unreadable": []}


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("wrong"), 2, "synthspec: error: wrong\n"),
        (GateRefused("no"), 3, "synthspec: error: no\n"),
        (Stopped("later"), 4, "synthspec: error: later\n"),
        (OSError(28, "No space left on device", "/x"), 4, "the disk is full while writing /x"),
        (KeyboardInterrupt(), 130, "the same command goes on"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(capsys, error, code, said):
    assert exit_code_of(error, as_json=False) == code
    assert said in capsys.readouterr().err


def test_a_failure_inside_another_is_told_as_itself(capsys):
    def wrapped():
        try:
            raise UserError("the real reason")
        except UserError as inner:
            raise RuntimeError("wrapped") from inner

    with pytest.raises(RuntimeError) as caught:
        wrapped()
    assert exit_code_of(caught.value, as_json=False) == 2
    assert "the real reason" in capsys.readouterr().err


def test_the_unexpected_goes_into_a_file_without_values(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def explode(secret):
        try:
            {}[secret]
        finally:
            raise ZeroDivisionError(secret)

    with pytest.raises(ZeroDivisionError) as caught:
        explode(" ".join(["4111"] + ["1111"] * 3))
    assert exit_code_of(caught.value, as_json=False) == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    (file,) = tmp_path.glob("synthspec-crash-*.txt")
    assert str(file) in told
    for said in ("explode", "ZeroDivisionError", "KeyError"):
        assert said in file.read_text()
    assert "4111 1111" not in file.read_text()
    assert "4111 1111" not in told


@pytest.mark.slow
def test_a_flow_runs_resumes_and_refuses(project, tmp_path_factory, prefect_url):
    at_home = {"PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")), "PREFECT_API_URL": prefect_url}
    first = synthspec("run", project, "--until", "match", "--json", **at_home)
    assert first.returncode == 0, first.stderr
    stages = json.loads(first.stdout)["stages"]
    assert list(stages) == ["pull", "match"]
    assert stages["match"]["requested"] == 30
    ledger = (project / "runs" / "small" / "ledger.json").read_bytes()
    again = synthspec("run", project, "--until", "match", **at_home)
    assert again.returncode == 0
    assert "done already" in again.stderr
    assert (project / "runs" / "small" / "ledger.json").read_bytes() == ledger
    (project / "synthspec.yaml").write_text(yaml.safe_dump({**SPEC, "rows_per_grammar": 5}))
    refused = synthspec("run", project, "--until", "match", **at_home)
    assert refused.returncode == 2
    assert "rows_per_grammar 160, and now it is 5" in refused.stderr
    assert "Traceback" not in refused.stderr
    planned = synthspec("plan", project, **at_home)
    assert planned.returncode == 2
    assert "rows_per_grammar 160, and now it is 5" in planned.stderr
    fresh = synthspec("run", project, "--until", "match", "--fresh", "match", "--json", **at_home)
    assert json.loads(fresh.stdout)["stages"]["match"]["kept"] == 5
    asked = synthspec("runs", "rm", project / "runs" / "small")
    assert asked.returncode == 2
    assert "add --yes" in asked.stderr
    assert synthspec("runs", "rm", project / "runs" / "small", "--yes").returncode == 0
    assert not (project / "runs" / "small").exists()


def test_nothing_asked_is_answered_in_words():
    assert "say what to do" in fails(2)


def test_the_working_folder_may_have_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone}; rmdir {gone}; {sys.executable} -m synthspec runs ls nowhere"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_a_project_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be" in fails(2, "init", tmp_path / "file" / "x")
    assert "cannot be" in fails(2, "init", tmp_path / ("x" * 300))


def test_runs_cannot_be_inside_a_file(project):
    (project / "f").write_text("")
    assert "is a file" in fails(2, "plan", project, "--runs", project / "f")


@pytest.mark.parametrize(
    ("option", "value"), [("--concurrency", "1.5"), ("--lengths", "0.5"), ("--lengths", "a")]
)
def test_numbers_to_simulate_are_of_the_right_kind(option, value):
    told = fails(2, "speedup", "simulate", "--model", "smollm2", "--drafter", ".", option, value)
    assert f"{option}: write " in told
