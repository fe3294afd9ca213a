"""What plan says about sets and disk."""

from types import SimpleNamespace

import pytest
import yaml

from synthspec.grammar.slots import Asked
from synthspec.plan import _disk, _shortfalls, _sizes, _unshown_tools, _whole_conversations, _with_later_turns
from synthspec.run import open_run

SPEC = {
    "name": "small",
    "prompts": [{"name": name, "files": ["p.jsonl"], "licence": "MIT"} for name in ("p", "q")],
    "match": ["p"],
    "grammars": ["*.yaml"],
    "holdout": {"grammars": ["c"], "prompts": 0.2, "requests": 15},
    "ood": [{"name": "sums", "source": "q"}],
    "gate": {"min_requests": 20},
    "train": {"steps": 100, "checkpoint_every": 30},
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump(SPEC))
    return open_run(tmp_path)


def rows(**numbers):
    named = [(name, None) for name in numbers if name != "sums"]
    return [
        {"grammar": name, "set": which}
        for name, which in [*named, (None, "sums")]
        for _ in range(numbers[which or name])
    ]


def test_sets_that_are_too_small_for_the_gate_are_told(run):
    assert _shortfalls(run, rows(a=200, b=21, c=15, sums=20), ["a", "b", "c"]) == [
        "the gate wants 20 requests of a set (gate.min_requests); smaller are grammar_c (15)"
    ]
    notes = _shortfalls(run, rows(a=70, b=10, c=40, sums=20), ["a", "b", "c"])
    assert notes[0].endswith("smaller are heldout_prompts (16), grammar_c (15)")


def test_a_grammar_that_no_prompt_goes_to_is_told(run):
    notes = _shortfalls(run, rows(a=200, b=0, c=40, sums=3), ["a", "b", "c"])
    assert notes[0].startswith("no prompt goes to the grammar b,")
    assert notes[1].endswith("smaller are heldout_prompts (15), grammar_c (15), sums (3)")


def test_tools_that_no_example_calls_are_told():
    grammar = SimpleNamespace(
        name="desk",
        kind="tool_call",
        catalogue=None,
        tools=[SimpleNamespace(name=name) for name in ("find", "book", "cancel")],
        examples=[{"name": "book", "arguments": {}}],
    )
    assert _unshown_tools([grammar]) == ["no example of the grammar desk calls find, cancel"]
    grammar.examples += [{"name": name, "arguments": {}} for name in ("find", "cancel")]
    assert _unshown_tools([grammar]) == []


def test_disk_holds_every_checkpoint(run):
    drafter = SimpleNamespace(
        hidden_size=10,
        intermediate_size=20,
        num_hidden_layers=1,
        target_layer_ids=[0, 1],
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=4,
    )
    sizes = {"prompt": 0, "completion": 0, "trained": 50, "trained_free": 10}
    queries_and_out, keys_and_values = 2 * 10 * 3 * 4, 2 * 10 * 1 * 4
    parameters = queries_and_out + keys_and_values + 3 * 10 * 20 + 2 * 10 * 10
    features = 2 * 50 * 2 * 10 + 2 * 10 * 10  # of the free ones what the target foresaw too
    assert _disk(run, drafter, sizes) == features + parameters * (2 * 12 + 8 + 4 * 2)


def test_what_the_target_writes_for_slots_counts(run):
    ask = Asked(type="asked", ask="Name a bird.", values=20, max_new_tokens=12)
    assert _sizes(run, [], [])["completion"] == 0
    assert _sizes(run, [], [(None, "bird", ask), (None, "more", ask)])["completion"] == 2 * 20 * 12


def test_later_turns_of_the_target_count_and_read_what_came_before():
    talk, other = SimpleNamespace(name="talk", played=[1, 2]), SimpleNamespace(name="other", played=[])
    row = {"grammar": "talk", "prompt_ids": [0] * 100, "max_new_tokens": 20}
    sizes = [len(one["prompt_ids"]) for one in _with_later_turns(row, [talk, other])]
    assert sizes[0] == 100 < sizes[1] < sizes[2]
    assert len([*_with_later_turns({**row, "grammar": "other"}, [talk, other])]) == 1
    assert len([*_with_later_turns({**row, "grammar": None}, [talk, other])]) == 1


def test_conversations_that_are_too_long_to_be_held_out_are_told(run):
    grammars = [
        SimpleNamespace(name=name, played=[None] * turns) for name, turns in (("a", 15), ("b", 14), ("c", 20))
    ]
    (note,) = _whole_conversations(run.spec, grammars)
    assert "none is held out of a: raise it" in note
    assert _whole_conversations(run.spec, grammars[1:]) == []
