"""A real run of the real small target over every wire format, and over slots that it fills itself."""

from __future__ import annotations

import json

import polars
import pytest
import yaml

from synthspec.grammar import wire
from synthspec.grammar.model import load_grammar
from synthspec.grammar.wire.answer import Answer
from synthspec.spec import Target
from synthspec.targets.load import load_tokenizer
from tests.journeys.conftest import Shell

pytestmark = pytest.mark.slow

# One subject a format, so that each grammar gets prompts of its own.
SUBJECTS = {
    "hermes": ("weather", "forecast", "town"),
    "qwen_xml": ("train", "railway", "station"),
    "llama3_json": ("invoice", "billing", "customer"),
    "pythonic": ("recipe", "cooking", "dish"),
    "mistral": ("hotel", "lodging", "guest"),
    "deepseek_v3": ("parcel", "delivery", "address"),
    "kimi_k2": ("museum", "exhibition", "artist"),
    "glm": ("garden", "planting", "flower"),
    "harmony": ("orchestra", "concert", "composer"),
    "json": ("bicycle", "repair", "wheel"),
}


def grammar(name: str, subject: str, field: str, about: str) -> dict:
    tool = {
        "name": f"look_up_{subject}",
        "description": f"Look up a {subject}: {about}.",
        "parameters": {
            "type": "object",
            "properties": {field: {"type": "string", "maxLength": 16}, "count": {"type": "integer"}},
            "required": [field],
        },
    }
    return {
        "name": name,
        "kind": "tool_call",
        "wire_format": name,
        "system": "The caller says: {{ caller }}",
        "slots": {
            "caller": {
                "type": "asked",
                "ask": f"Write one short sentence in which somebody asks about a {subject}.",
                "values": 3,
                "max_new_tokens": 30,
            }
        },
        "tools": [tool],
        "examples": [{"name": tool["name"], "arguments": {field: "<redacted>", "count": "<redacted>"}}],
        "max_new_tokens": 96,
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, prefect_url: str):
    shell = Shell(tmp_path_factory.mktemp("formats"), tmp_path_factory.mktemp("prefect"), prefect_url)
    desk = shell.folder / "desk"
    (desk / "grammars").mkdir(parents=True)
    prompts = []
    for name, (subject, about, field) in SUBJECTS.items():
        text = yaml.safe_dump(grammar(name, subject, field, about), sort_keys=False)
        (desk / "grammars" / f"{name}.yaml").write_text(text)
        prompts += [f"Look up the {subject} for {field} number {n}, please." for n in (3, 8, 12)]
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    (desk / "prompts.jsonl").write_text(lines)
    spec = {
        "version": 1,
        "name": "formats",
        "prompts": [{"name": "own", "files": ["prompts.jsonl"], "column": "prompt", "licence": "CC0-1.0"}],
        "match": ["own"],
        "grammars": ["grammars/*.yaml"],
        "rows_per_grammar": 4,
    }
    (desk / "synthspec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    shell.run("synthspec grammar check desk/grammars")
    shell.run("synthspec run desk/synthspec.yaml --until conform --json")
    return desk / "runs" / "formats"


def test_the_target_writes_every_format_and_we_read_it_back(ran):
    tokenizer = load_tokenizer(Target())
    samples = polars.read_parquet(ran / "samples" / "samples.parquet")
    assert set(samples["grammar"]) == set(SUBJECTS) == set(wire.FORMATS)
    for row in samples.iter_rows(named=True):
        found = load_grammar(ran / "grammars" / f"{row['grammar']}.yaml", ran / "grammars")
        text = tokenizer.decode(row["input_ids"][row["prompt_tokens"] :], skip_special_tokens=True)
        answer = wire.parse(found, text)
        assert isinstance(answer, Answer)
        assert {call.name for call in answer.calls} == {found.tools[0].name}, text
        kinds = {span["kind"] for span in row["spans"]}
        assert {"forced", "value"} <= kinds


def test_every_completion_has_a_counted_state(ran):
    ledger = json.loads((ran / "ledger.json").read_text())["stages"]["conform"]
    assert ledger["requested"] == 30 == ledger["kept"] + sum(ledger["dropped"].values())
    assert ledger["kept"] >= 22  # the others ran out of tokens


def test_requests_hold_what_the_target_wrote_for_their_slots(ran):
    written = polars.read_parquet(ran / "requests" / "slots.parquet")
    assert len(written) == 3 * len(SUBJECTS)
    kept = written.filter(polars.col("state") == "kept")
    texts = {(row["grammar"], row["text"]) for row in kept.iter_rows(named=True)}
    for row in polars.read_parquet(ran / "requests" / "requests.parquet").iter_rows(named=True):
        caller = json.loads(row["slots"])["caller"]
        assert (row["grammar"], caller) in texts
        assert f"The caller says: {caller}" in json.loads(row["messages"])[0]["content"]
