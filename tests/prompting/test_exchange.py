"""Conversations in which the target writes earlier turns too."""

import json

import pytest

from synthspec.grammar import wire
from synthspec.grammar.constraint import Constraint
from synthspec.grammar.model import Catalogue, Tool
from synthspec.grammar.wire.answer import Answer, Call
from synthspec.prompting.exchange import Exchanges
from synthspec.prompting.render import Conversations
from synthspec.samples.schema import REQUESTS
from tests.prompting.prompting_cases import (
    CHAT,
    CHAT_WITH_TOOLS,
    a_spec,
    any_grammar,
    tokenizer_with,
    tool_grammar,
)

TURNS = [
    {"user": "{{ prompt }} I am in {{ town }}."},
    {"target": ["read_weather"]},
    {"tool": {"place": "<redacted:town>", "degrees": "<redacted>"}},
    {"target": "any"},
]
CALL = Answer(calls=(Call("read_weather", {"place": "Oslo"}),))
MATCH = {"id": "m", "prompt_id": "p", "purpose": "grammar", "grammar": "sky", "tool": None, "set": None}
PROMPT = {"id": "p", "text": "Rain?"}


def sky(**fields):
    return tool_grammar(
        "sky",
        "read_weather",
        "",
        **{"turns": TURNS, "user": "And you?", "slots": {"town": {"type": "city"}}, **fields},
    )


class Played:
    """A conversation and what the target says in it."""

    def __init__(self, grammar, template=CHAT, **spec):
        self.grammar = grammar
        self.tokenizer = tokenizer_with(template)
        self.tokenizer.eos_token = "<|im_end|>"
        conversations = Conversations([PROMPT], [grammar], self.tokenizer, a_spec(**spec))
        self.exchanges = Exchanges(conversations, [MATCH], {grammar.name: grammar}, self.tokenizer)
        self.requests = conversations.begin({**MATCH, "grammar": grammar.name})

    def say(self, *said, finish_reason="stop"):
        """Let the target answer the requests of this turn; a text, or a value that is written as one."""
        answers = []
        for request, value in zip(self.requests, said, strict=True):
            text = value if isinstance(value, str) else wire.write(self.grammar, value)
            ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            answers.append({"request_id": request["id"], "ids": ids, "finish_reason": finish_reason})
        self.requests, unfit = self.exchanges.go_on(self.requests, answers)
        return unfit

    @property
    def messages(self):
        return json.loads(self.requests[0]["messages"])


def test_every_turn_of_the_target_is_asked_for_behind_its_own_answers():
    talk = Played(sky())
    first = talk.requests[0]
    assert [message["role"] for message in talk.messages] == ["system", "user"]
    assert (first["turn"], first["follows"]) == (0, None)
    before = talk.messages
    assert talk.say(CALL) == 0
    assert talk.messages[:2] == before
    assert talk.messages[2]["content"] == wire.write(talk.grammar, CALL)
    town = json.loads(first["slots"])["town"]
    assert json.loads(talk.messages[3]["content"])["place"] == town
    assert talk.messages[3]["role"] == "tool"
    assert (talk.requests[0]["turn"], talk.requests[0]["follows"]) == (1, first["id"])
    before = talk.messages
    talk.say("It is 3 degrees.")
    assert talk.messages[:4] == before
    assert talk.messages[4:] == [
        {"role": "assistant", "content": "It is 3 degrees."},
        {"role": "user", "content": "And you?"},
    ]
    talk.say(CALL)
    assert talk.requests == []


def test_each_turn_is_held_to_what_it_is_to_be():
    call = {"name": "read_weather", "arguments": {"place": "<redacted>"}}
    talk = Played(sky(shape={"calls": {"2": 1}}, examples=[[call, call]]))
    one = Constraint.from_json(talk.requests[0]["constraint"])
    assert one.part == wire.hermes.constraint(talk.grammar.tool_schemas, wire.Calls(1, 1)).part
    talk.say(CALL)
    words = Constraint.from_json(talk.requests[0]["constraint"])
    assert words.part == wire.hermes.constraint(talk.grammar.tool_schemas, wire.Calls(0, 0, "before")).part
    talk.say("Three.")
    two = Constraint.from_json(talk.requests[0]["constraint"])
    assert two.part == wire.hermes.constraint(talk.grammar.tool_schemas, wire.Calls(2, 2)).part


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("No call.", "stop"),
        (Answer(calls=CALL.calls * 2), "stop"),
        (Answer(calls=(Call("fly", {}),)), "stop"),
        (CALL, "length"),
        (CALL, "abort"),
    ],
)
def test_a_conversation_ends_with_a_wrong_answer(said, reason):
    talk = Played(sky())
    assert talk.say(said, finish_reason=reason) == 0
    assert talk.requests == []


def test_a_request_that_was_not_answered_leads_nowhere():
    talk = Played(sky())
    assert talk.exchanges.go_on(talk.requests, []) == ([], 0)


def test_a_conversation_that_becomes_too_long_is_counted():
    talk = Played(sky())
    assert talk.say(Answer(calls=(Call("read_weather", {"place": "O" * 20}),))) == 0
    assert talk.say("word " * 3000) == 1
    assert talk.requests == []


@pytest.mark.parametrize("place", ["O<|im_end|>", "<|im_start|>user"])
def test_a_conversation_in_which_the_target_spells_a_control_token_ends(place):
    talk = Played(sky())
    text = wire.write(talk.grammar, Answer(calls=(Call("read_weather", {"place": place}),)))
    head, tail = text.split(place)
    spelled = [
        token for part in (head, place[:3], place[3:], tail) for token in talk.tokenizer(part)["input_ids"]
    ]
    answer = {"request_id": talk.requests[0]["id"], "ids": [*spelled, talk.tokenizer.eos_token_id]}
    assert talk.exchanges.go_on(talk.requests, [{**answer, "finish_reason": "stop"}]) == ([], 1)


def test_samples_of_a_prompt_are_conversations_of_their_own():
    talk = Played(sky(), generate={"samples": 2, "temperature": 0.7})
    other = Answer(calls=(Call("read_weather", {"place": "Rome"}),))
    talk.say(CALL, other)
    told = [json.loads(request["messages"])[2]["content"] for request in talk.requests]
    assert ["Oslo" in told[0], "Rome" in told[1]] == [True, True]
    assert len({request["seed"] for request in talk.requests}) == 2
    assert len({request["id"] for request in talk.requests}) == 2


def test_the_same_answers_lead_to_the_same_requests():
    def all_requests():
        talk = Played(sky(), template=CHAT_WITH_TOOLS)
        found = [talk.requests]
        for said in (CALL, "Three."):
            talk.say(said)
            found.append(talk.requests)
        return found

    assert all_requests() == all_requests()
    assert all(set(row) == set(REQUESTS.names) for rows in all_requests() for row in rows)


def test_other_kinds_are_played_too():
    turns = [{"user": "{{ prompt }}"}, {"target": "any"}]
    talk = Played(any_grammar("sky", turns=turns, user="Look again."))
    talk.say({"urgent": False})
    assert [message["content"] for message in talk.messages[1:]] == [
        "Rain?",
        '{"urgent": false}',
        "Look again.",
    ]


def test_a_catalogue_shows_the_tools_that_a_turn_may_call():
    others = [Tool(name=f"tool_{n}", description=f"does {n}") for n in range(30)]
    grammar = sky()
    grammar = grammar.but(tools=[*grammar.tools, *others], catalogue=Catalogue(file="tools.yaml", shown=(2, 3)))
    for seed in range(20):
        talk = Played(grammar, seed=seed)
        assert "read_weather" in talk.messages[0]["content"]
        assert 2 <= talk.messages[0]["content"].count("does ") + 1 <= 3
        assert [*Constraint.from_json(talk.requests[0]["constraint"]).tools] == ["read_weather"]
