import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from synthspec.grammar.slots import Slot, fill, value

slot_of = TypeAdapter(Slot).validate_python

ALL = {
    "who": {"type": "person", "locale": "de_DE"},
    "firm": {"type": "company"},
    "town": {"type": "city"},
    "street": {"type": "street_address"},
    "mail": {"type": "email"},
    "tel": {"type": "phone", "locale": "fr_FR"},
    "day": {"type": "date", "format": "%d.%m.%Y"},
    "n": {"type": "integer", "min": -3, "max": 3},
    "x": {"type": "number", "min": 0, "max": 1, "decimals": 3},
    "code": {"type": "identifier", "pattern": "PNR-[A-Z]{3}[0-9]{4}"},
    "pick": {"type": "choice", "values": ["a", 2, True]},
    "words": {"type": "text", "min_words": 2, "max_words": 4},
}


def test_the_same_seed_gives_the_same_values_in_any_order(load):
    grammar = load(slots={**ALL, "town": {"type": "city"}})
    backwards = load(slots=dict(reversed(ALL.items())))
    first = fill(grammar, 7)
    assert first == fill(grammar, 7) == fill(backwards, 7)
    assert first != fill(grammar, 8)
    assert list(first) == list(ALL)


def test_a_new_slot_leaves_the_others_as_they_are(load):
    few = load(slots={"town": ALL["town"], "mail": ALL["mail"]})
    more = load(slots={"n": ALL["n"], "town": ALL["town"], "mail": ALL["mail"]})
    assert fill(few, 3).items() <= fill(more, 3).items()


def test_two_slots_of_one_type_have_values_of_their_own(load):
    grammar = load(slots={"town": ALL["town"], "other": ALL["town"]})
    assert sum(len(set(fill(grammar, seed).values())) == 2 for seed in range(20)) >= 18


@given(st.integers(0, 2**63))
def test_values_are_what_their_type_says(seed):
    made = {name: value(slot_of(slot), seed) for name, slot in ALL.items()}
    assert datetime.date(2024, 1, 1) <= datetime.datetime.strptime(made["day"], "%d.%m.%Y").date()
    assert made["n"] in range(-3, 4)
    assert 0 <= made["x"] <= 1
    assert round(made["x"], 3) == made["x"]
    assert re.fullmatch("PNR-[A-Z]{3}[0-9]{4}", made["code"])
    assert made["pick"] in ("a", 2, True)
    assert 2 <= len(made["words"].split()) <= 4
    assert re.fullmatch(r"[^@ ]+@example\.(com|org|net)", made["mail"])
    assert all(made[name] for name in ("who", "firm", "town", "street", "tel"))


def test_weights_are_kept():
    slot = slot_of({"type": "choice", "values": {"often": 9, "rare": 1, "never": 0}})
    drawn = [value(slot, seed) for seed in range(500)]
    assert 400 < drawn.count("often") < 490
    assert "never" not in drawn


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        ({"type": "persn"}, "person"),
        ({"type": "person", "locale": "de_XX"}, "there is no locale 'de_XX'; write one such as de_AT"),
        ({"type": "integer", "min": 3, "max": 1}, "min .3. is larger than max .1.; swap them"),
        ({"type": "number", "min": 3, "max": 1}, "swap them"),
        ({"type": "date", "from": "2025-02-01", "to": "2025-01-01"}, "lies behind to"),
        ({"type": "date", "format": "%d.%q"}, "%q is no part of a date"),
        ({"type": "date", "format": "100%"}, "% is no part of a date"),
        ({"type": "identifier", "pattern": "(?=b)a"}, "no text can be invented"),
        ({"type": "identifier", "pattern": "("}, "is not a regular expression"),
        ({"type": "identifier", "pattern": "(a+)+"}, "bound its repetitions"),
        ({"type": "identifier", "pattern": "(a{99}){99}"}, "bound its repetitions"),
        ({"type": "choice", "values": []}, "at least 1"),
        ({"type": "choice", "values": {"a": 0}}, "weight above 0"),
        ({"type": "text", "min_words": 9, "max_words": 2}, "is larger than max_words"),
    ],
)
def test_mistakes_are_told(slot, words):
    with pytest.raises(ValidationError, match=words):
        slot_of(slot)


def test_an_end_lies_behind_its_start(load):
    grammar = load(
        slots={
            "leaves": {"type": "date", "after": "comes", "days": [2, 5]},
            "comes": {"type": "date", "from": "2025-02-27", "to": "2025-02-28"},
            "pays": {"type": "date", "after": "leaves", "days": [0, 0]},
            "town": ALL["town"],
        }
    )
    stays = set()
    for seed in range(60):
        made = {
            name: datetime.date.fromisoformat(day)
            for name, day in fill(grammar, seed).items()
            if name != "town"
        }
        stays.add((made["leaves"] - made["comes"]).days)
        assert made["pays"] == made["leaves"]
    assert stays == {2, 3, 4, 5}


def test_values_of_a_record_belong_together(load):
    rows = [{"city": "Bern", "postcode": "3011"}, {"city": "Basel", "postcode": "4051"}]
    call = {
        "name": "find_train",
        "arguments": {"to": "<redacted:place.postcode> <redacted:place.city>", "seats": 1},
    }
    grammar = load(
        slots={"place": {"type": "record", "rows": rows}}, system="In {{ place.city }}.", examples=[call]
    )
    made = {tuple(fill(grammar, seed)["place"].values()) for seed in range(20)}
    assert made == {("Bern", "3011"), ("Basel", "4051")}


@given(st.integers(0, 2**63), st.sampled_from(["uniform", "normal", "log"]))
def test_no_distribution_leaves_its_range(seed, distribution):
    whole = slot_of({"type": "integer", "min": 1, "max": 9, "distribution": distribution})
    assert value(whole, seed) in range(1, 10)
    money = slot_of(
        {"type": "money", "min": 10, "max": 5000, "distribution": distribution, "format": "CHF {amount}"}
    )
    assert re.fullmatch(r"CHF [1-5]?,?\d{2,3}\.\d\d", value(money, seed))


def test_distributions_differ_where_they_should():
    def middle(distribution):
        slot = slot_of({"type": "number", "min": 1, "max": 10_000, "distribution": distribution})
        drawn = sorted(value(slot, seed) for seed in range(400))
        return drawn[200], drawn[300] - drawn[100]

    (uniform, wide), (normal, narrow), (log, _) = map(middle, ("uniform", "normal", "log"))
    assert 4000 < uniform < 6000
    assert 4000 < normal < 6000
    assert narrow < wide / 1.5
    assert 50 < log < 200


@pytest.mark.parametrize(
    "slot",
    [
        {"type": "integer", "min": 0, "max": 9, "distribution": "log"},
        {"type": "money", "format": "EUR"},
        {"type": "date", "after": "x", "days": [3, 1]},
        {"type": "record", "rows": [{"a": 1}, {"b": 2}]},
        {"type": "record", "rows": []},
    ],
)
def test_slots_that_cannot_be_filled_are_refused(slot):
    with pytest.raises(ValidationError):
        slot_of(slot)


@pytest.mark.parametrize(
    ("pattern", "starts", "lengths"),
    [
        ("(cat|horse)-[0-9]{2}", {"c", "h"}, {6, 8}),
        ("R-[0-9]{4,6}", {"R"}, {6, 7, 8}),
        ("(?:DE|AT)?[1][0-9]{4}", {"D", "A", "1"}, {5, 7}),
        ("x?[0-9]{1,3}", None, {1, 2, 3, 4}),
    ],
)
def test_texts_of_a_pattern_are_of_every_branch_and_length(pattern, starts, lengths):
    slot = slot_of({"type": "identifier", "pattern": pattern})
    drawn = [value(slot, seed) for seed in range(200)]
    assert all(re.fullmatch(pattern, text) for text in drawn)
    assert {len(text) for text in drawn} == lengths
    assert starts is None or {text[0] for text in drawn} == starts
