"""Grammars looked at by themselves."""

import json
from pathlib import Path

import pytest

from synthspec import grammar_verbs as verbs
from synthspec.errors import UserError

DESK = Path(__file__).parents[1] / "examples" / "desk" / "grammars"


def test_right_grammars_are_counted_with_what_engines_cannot_honour():
    rows = verbs.check([DESK])
    assert [row["name"] for row in rows] == ["intake_ticket", "leisure_desk", "money_desk", "travel_desk"]
    assert [row["tools"] for row in rows] == [0, 4, 3, 4]
    assert all("llguidance" not in row["unsupported"] for row in rows)


def test_every_mistake_of_every_file_is_told(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nkind: tool_call\nwire_format: hermess\nexamples: []\n"
        )
    with pytest.raises(UserError) as told:
        verbs.check([tmp_path])
    lines = str(told.value).splitlines()
    assert len(lines) == 4
    assert sum("did you mean hermes?" in line for line in lines) == 2
    for missing in (tmp_path / "three.yaml", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=r"no such file|holds no grammar"):
            verbs.check([missing])


def test_the_same_name_in_two_files_is_a_mistake(tmp_path):
    text = (DESK / "leisure_desk.yaml").read_text()
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(UserError, match="is already the name of"):
        verbs.check([tmp_path])


@pytest.mark.parametrize("name", ["leisure_desk", "intake_ticket"])
def test_what_is_shown_of_a_grammar_fits_together(smollm2_tokenizer, name):
    found = verbs.show(DESK / f"{name}.yaml", smollm2_tokenizer, seed=3)
    assert verbs.PROMPT in found["conversation"]
    assert "start:" in found["constraint"]["llguidance"]
    assert found["constraint"]["sglang"]
    for value in found["slots"].values():
        assert str(value) in found["conversation"]
    for example in found["examples"]:
        assert example["state"] == "kept", example["reason"]
        text = "".join(span["text"] for span in example["spans"])
        assert text == example["text"] + smollm2_tokenizer.eos_token
        assert {"forced", "value"} <= {span["kind"] for span in example["spans"]}
    again = verbs.show(DESK / f"{name}.yaml", smollm2_tokenizer, seed=3)
    assert again == found
    assert verbs.show(DESK / f"{name}.yaml", smollm2_tokenizer, seed=4)["examples"] != found["examples"]


CALL = {"name": "queue_music", "arguments": {"artist": "a", "style": "rock", "device": "car", "shuffle": True}}


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


def test_completions_are_judged_line_by_line(tmp_path, smollm2_tokenizer):
    tokenizer = smollm2_tokenizer
    text = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
    wrong = text.replace("rock", "polka")
    file = lines(tmp_path / "c.jsonl", {"completion": text}, {"text": wrong}, {"output": text[:-4]})
    with file.open("a") as more:
        more.write('{"text": "\\ud800"}\n')
    verdicts = list(verbs.conform(DESK / "leisure_desk.yaml", file))
    assert [row["state"] for row in verdicts] == ["kept", "invalid", "invalid", "invalid"]
    assert verdicts[3]["reason"] == "it holds half of a character (a lone surrogate)"
    assert verdicts[1]["reason"] == "queue_music.arguments.style breaks the keyword enum"
    assert "polka" not in json.dumps(verdicts)

    ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    file = lines(tmp_path / "c.jsonl", {"ids": ids}, {"completion": text})
    first, second = verbs.conform(DESK / "leisure_desk.yaml", file, tokenizer)
    assert first["spans"] == second["spans"]
    assert sum(first["spans"].values()) == len(ids)
    assert set(first["spans"]) <= {"forced", "structure", "value", "free"}
    with pytest.raises(UserError, match=r"c\.jsonl:1: holds token ids; say whose they are with --target"):
        list(verbs.conform(DESK / "leisure_desk.yaml", file))


@pytest.mark.parametrize(
    ("line", "told"),
    [("{", "is not JSON"), ("[]", "holds no completion"), ('{"completion": 3}', "holds no completion")],
)
def test_a_line_that_is_no_completion_is_told(tmp_path, line, told):
    (tmp_path / "c.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=rf"c\.jsonl:2: {told}"):
        list(verbs.conform(DESK / "leisure_desk.yaml", tmp_path / "c.jsonl"))


def test_a_grammar_made_of_a_document_is_right_and_never_written_over(tmp_path):
    tool = {
        "name": "find_train",
        "description": "Find a train.",
        "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    }
    (tmp_path / "rail.json").write_text(json.dumps({"tools": [tool]}))
    file, _ = verbs.import_grammar(tmp_path / "rail.json", tmp_path / "grammars", "qwen_xml")
    (row,) = verbs.check([file])
    assert (row["wire_format"], row["tools"]) == ("qwen_xml", 1)
    with pytest.raises(UserError, match="exists already"):
        verbs.import_grammar(tmp_path / "rail.json", tmp_path / "grammars", "qwen_xml")
    with pytest.raises(UserError, match="there is no 'xml'"):
        verbs.import_grammar(tmp_path / "rail.json", tmp_path, "xml")
