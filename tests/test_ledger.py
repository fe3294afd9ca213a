"""The ledger: every row leaves a stage in exactly one state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from synthspec.ledger import STATES, Counts, Ledger, StageCounts, count, largest, tallied


@given(st.lists(st.sampled_from(STATES)))
def test_counts_add_up_whatever_the_states(states):
    counts = count("prompt", states)
    assert counts.requested == len(states)
    assert counts.kept == states.count("kept")
    assert counts.dropped == {state: states.count(state) for state in STATES[1:] if state in states}
    assert StageCounts(**counts.as_json())


def test_a_generator_of_states_is_counted_too():
    assert count("sample", (state for state in ("kept", "kept", "duplicate"))).requested == 3


@pytest.mark.parametrize(
    ("requested", "kept", "dropped"),
    [(3, 1, {"invalid": 1}), (1, 1, {"lost": 0}), (1, 2, {"invalid": -1}), (1, 0, {"kept": 1})],
)
def test_counts_that_are_wrong_are_refused(requested, kept, dropped):
    with pytest.raises(AssertionError):
        Counts("prompt", requested, kept, dropped)


def test_a_state_that_does_not_exist_is_refused():
    with pytest.raises(AssertionError, match="vanished"):
        count("prompt", ["kept", "vanished"])


def test_a_ledger_file_that_does_not_add_up_is_refused():
    line = {"unit": "prompt", "requested": 3, "kept": 1, "dropped": {"invalid": 1}}
    with pytest.raises(ValidationError):
        Ledger.model_validate({"version": 1, "stages": {"pull": line}})


def test_the_largest_counts_are_named_and_the_others_summed():
    counts = {"a": 1, "b": 5, "c": 5, "d": 0, "e": 2}
    assert list(largest(counts, 3).items()) == [("b", 5), ("c", 5), ("e", 2), ("(others)", 1)]
    assert largest(counts, 4) == {"b": 5, "c": 5, "e": 2, "a": 1}


def test_pairs_are_tallied_by_their_first():
    pairs = [("a", "x"), ("b", "x"), ("a", "y"), ("a", "x"), ("b", None)]
    assert tallied(pairs) == {"a": {"x": 2, "y": 1}, "b": {"x": 1}}
