"""What of a target's answers becomes the value of a slot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from synthspec.errors import UserError
from synthspec.grammar.model import load_grammars
from synthspec.grammar.slots import fill
from synthspec.targets import asked
from synthspec.targets.asked import by_slot, write_values
from synthspec.targets.fleet import Answered


@pytest.mark.parametrize(
    ("answer", "finish_reason", "found"),
    [
        (" Where is my parcel?\n", "stop", ("Where is my parcel?", "kept")),
        ("“Where is it?”", "stop", ("Where is it?", "kept")),
        ("Where is it?\n\nHere is another one:", "stop", ("Where is it?", "kept")),
        ("It costs 3.50. I think that", "length", ("It costs 3.50.", "kept")),
        ("It costs 3.50 and more", "length", ("", "truncated")),
        ("一つです。二つ", "length", ("一つです。", "kept")),
        ("<think>\nThe user wants", "length", ("", "truncated")),
        ("<think>\nA sentence.\n</think>\n\nWhere is it?", "stop", ("Where is it?", "kept")),
        ("", "stop", ("", "degenerate")),
        ("''", "stop", ("", "degenerate")),
        ("Where", "abort", ("", "error")),
    ],
)
def test_a_value_is_the_first_paragraph_whole_and_without_quotes(answer, finish_reason, found):
    assert asked._value(answer, finish_reason) == found


@pytest.fixture
def grammar(tmp_path):
    content = {
        "name": "parcels",
        "kind": "text",
        "user": "{{ complaint }} {{ prompt }}",
        "slots": {
            "complaint": {"type": "asked", "ask": "Complain.", "values": 4, "temperature": 0.5},
            "town": {"type": "city"},
        },
        "examples": ["Sorry, <redacted:complaint>"],
    }
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(content))
    return load_grammars(tmp_path, ["g.yaml"])[0]


@pytest.fixture
def answers(smollm2_tokenizer):
    """What the target answers, one text after the other; and what it was asked."""
    texts, seen = [], []

    def ask(requests, tick):
        seen.extend(requests)
        ids = smollm2_tokenizer(texts[: len(requests)])["input_ids"]
        return [Answered(one, "stop") for one in ids]

    target = SimpleNamespace(tokenizer=smollm2_tokenizer)
    return SimpleNamespace(texts=texts, seen=seen, target=target, ask=ask)


def test_each_answer_is_asked_for_with_a_seed_of_its_own_and_has_one_state(grammar, answers):
    answers.texts += ["It is late.", "It is late.", "", "It broke."]
    rows = write_values([grammar], answers.target, answers.ask, 3)
    assert [row["state"] for row in rows] == ["kept", "duplicate", "degenerate", "kept"]
    assert by_slot(rows) == {"parcels": {"complaint": ["It is late.", "It broke."]}}
    assert len({request["seed"] for request in answers.seen}) == 4
    assert {request["temperature"] for request in answers.seen} == {0.5}
    assert "Complain." in answers.target.tokenizer.decode(answers.seen[0]["prompt_ids"])
    again = answers.seen.copy()
    answers.seen.clear()
    write_values([grammar], answers.target, answers.ask, 3, most=2)
    assert answers.seen == again[:2]


def test_a_slot_takes_one_of_its_values_and_leaves_the_others_as_they_are(grammar):
    drawn = [fill(grammar, seed, {"complaint": ["one", "two"]}) for seed in range(40)]
    assert {values["complaint"] for values in drawn} == {"one", "two"}
    assert [values["town"] for values in drawn] == [fill(grammar, seed)["town"] for seed in range(40)]


def test_a_target_that_writes_nothing_usable_is_told(grammar, answers):
    answers.texts += ["", "", "", ""]
    with pytest.raises(UserError, match=r"grammar parcels: slots\.complaint: .*\(4 degenerate\): ask for"):
        write_values([grammar], answers.target, answers.ask, 0)
