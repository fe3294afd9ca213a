import random

import pytest

from synthspec.files import content_id
from synthspec.ledger import count
from synthspec.prompting.match import match, nearness, words
from tests.prompting.prompting_cases import a_spec, any_grammar, tool_grammar

PLACES = ["Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Perth", "Turin", "Dakar"]


def prompts_of(texts: list[str], source: str = "asks") -> list[dict]:
    return [{"id": content_id("prompt", text), "text": text, "source": source} for text in texts]


@pytest.fixture
def prompts():
    return [
        *prompts_of([f"What will the weather be in {place}?" for place in PLACES]),
        *prompts_of([f"Play some songs from {place}" for place in PLACES]),
        *prompts_of([f"Who founded {place}, and when?" for place in PLACES]),
        *prompts_of([f"Tell me about number {n}" for n in range(30)], "general"),
        *prompts_of([f"Chat with me about {n}" for n in range(9)], "chat"),
    ]


@pytest.fixture
def grammars():
    return [
        tool_grammar("sky", "read_weather", "The weather at a place", match={"min_score": 0.1}),
        tool_grammar("tunes", "playSong", "Plays a song", match={"min_score": 0.1}),
        any_grammar(),
    ]


def by_use(rows, prompts):
    texts = {row["id"]: row["text"] for row in prompts}
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["grammar"] or row["set"] or row["purpose"], []).append(texts[row["prompt_id"]])
    return found


def test_a_prompt_goes_to_the_nearest_tool_and_the_rest_to_the_grammar_that_takes_any(prompts, grammars):
    rows, states = match(prompts, grammars, a_spec(holdout={"prompts": 0.5}))
    found = by_use(rows, prompts)
    assert set(found) == {"sky", "tunes", "ticket"}
    assert all("weather" in text for text in found["sky"])
    assert all("songs" in text for text in found["tunes"])
    assert all("founded" in text for text in found["ticket"])
    assert states == ["kept"] * 24 + ["unmatched"] * 39


def test_quotas_make_surplus_and_a_held_out_grammar_has_its_own(prompts, grammars):
    spec = a_spec(rows_per_grammar=5, holdout={"grammars": ["sky"], "requests": 3})
    rows, states = match(prompts, grammars, spec)
    assert {name: len(texts) for name, texts in by_use(rows, prompts).items()} == {
        "sky": 3,
        "tunes": 5,
        "ticket": 5,
    }
    counts = count("prompt", states)
    assert (counts.requested, counts.kept) == (63, 13)
    assert counts.dropped == {"surplus": 11, "unmatched": 39}


def test_what_is_near_no_tool_is_unmatched(prompts, grammars):
    _, states = match(prompts, grammars[:2], a_spec())
    assert states == ["kept"] * 16 + ["unmatched"] * 47


def test_every_tool_gets_its_turn(prompts, grammars):
    two = grammars[0].model_copy(update={"tools": [*grammars[0].tools, *grammars[1].tools]})
    rows, _ = match(prompts, [two], a_spec(rows_per_grammar=6))
    texts = by_use(rows, prompts)["sky"]
    assert sum("songs" in text for text in texts) == 3


def test_replay_has_its_share_of_what_is_trained_on_and_sets_their_number(prompts, grammars):
    spec = a_spec(
        rows_per_grammar=8,
        holdout={"prompts": 0.25, "grammars": ["tunes"]},
        replay={"source": "general", "share": 0.5},
        ood=[{"name": "talk", "source": "chat", "requests": 4}],
    )
    rows, states = match(prompts, grammars, spec)
    found = by_use(rows, prompts)
    assert len(found["replay"]) == 13  # as many as the 12 trained samples, and 5% more
    assert len(found["talk"]) == 4
    assert states[-9:].count("surplus") == 5
    assert len({row["prompt_id"] for row in rows}) == len(rows) == states.count("kept")


def test_every_source_of_replay_has_its_share(prompts, grammars):
    spec = a_spec(
        rows_per_grammar=8,
        holdout={"prompts": 0.25, "grammars": ["tunes"]},
        replay={"sources": {"general": 0.25, "chat": 0.25}},
    )
    rows, _ = match(prompts, grammars, spec)
    source = {row["id"]: row["source"] for row in prompts}
    taken = [source[row["prompt_id"]] for row in rows if row["purpose"] == "replay"]
    # half of the set together: a quarter each is half of the 12 trained samples, and 5% more
    assert (taken.count("general"), taken.count("chat")) == (7, 7)


def test_the_order_of_prompts_and_grammars_does_not_matter(prompts, grammars):
    spec = a_spec(rows_per_grammar=4, replay={"source": "general", "share": 0.3})
    rows, states = match(prompts, grammars, spec)
    by_id = dict(zip([row["id"] for row in prompts], states, strict=True))
    shuffled = random.Random(1).sample(prompts, len(prompts))
    again, states_again = match(shuffled, grammars[::-1], spec)
    assert again == rows
    assert states_again == [by_id[row["id"]] for row in shuffled]


def test_words_come_apart_and_lose_plurals():
    assert words("the find_weatherReports of Cities, classes & buses") == [
        "find", "weather", "report", "city", "classe", "buse",
    ]  # fmt: skip


def test_words_of_parameters_count_half():
    texts = ["wind here", "rain there", "nothing at all"]
    scores = nearness(texts, [("wind", "rain")])
    assert scores[0, 0] == pytest.approx(2 * scores[0, 1])
    assert scores[0, 2] == 0


def test_no_prompts_no_matches(grammars):
    assert match([], grammars, a_spec()) == ([], [])


def test_rows_follow_weights_and_name_the_tool(prompts):
    grammars = [
        tool_grammar("sky", "read_weather", "The weather at a place", weight=0.5),
        tool_grammar("tunes", "playSong", "Plays a song", weight=2),
    ]
    rows, _ = match(prompts, grammars, a_spec(rows_per_grammar=4))
    assert {name: len(texts) for name, texts in by_use(rows, prompts).items()} == {"sky": 2, "tunes": 8}
    assert {(row["grammar"], row["tool"]) for row in rows} == {("sky", "read_weather"), ("tunes", "playSong")}
