"""Tools and answers that every wire format can write."""

from itertools import pairwise

from hypothesis import strategies as st

from synthspec.grammar.wire.answer import Answer, Call, joined
from synthspec.grammar.wire.reader import Stream

TOOLS = {
    "find_train": {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "seats": {"type": "integer"},
            "price": {"type": "number"},
            "sure": {"type": "boolean"},
            "via": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "additionalProperties": True},
            "note": {"type": ["string", "null"]},
            "limit": {"type": ["integer", "null"]},
        },
        "required": ["to"],
    },
    "find_bus": {"type": "object", "properties": {}},
}

# What a format may take for its own, and what is hard in JSON, in Python or without quotes.
HARD = [
    '"',
    "\\",
    "\\n",
    "'",
    "\n",
    "\n\n",
    " ",
    "é😀",
    "\u2028",
    "\x7f",
    "{[,:;]}",
    "]",
    "(",
    "<",
    ">",
    "|",
    "",
]
TAGS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS] [", "```", "<|call|>", "</parameter>", "<|tool_call_end|>"]


def texts(also=()):
    plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
    return st.lists(plain | st.sampled_from([*HARD, *also]), max_size=3).map("".join)


def values(strings):
    scalars = (
        strings | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
        max_leaves=5,
    )


def answers(strings, words=None):
    """Answers with text, calls or both.

    Args:
        strings: a strategy of the strings in arguments.
        words: one of the plain text; None: no plain text.
    """
    optional = {
        "seats": st.integers(),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "sure": st.booleans(),
        "via": st.lists(strings, max_size=3),
        "extra": st.dictionaries(strings, values(strings), max_size=3),
        "note": st.none() | strings,
        "limit": st.none() | st.integers(),
    }
    arguments = st.fixed_dictionaries({"to": strings}, optional=optional)
    call = st.builds(Call, st.just("find_train"), arguments) | st.just(Call("find_bus", {}))
    calls = st.lists(call, max_size=3).map(tuple)
    return st.builds(Answer, st.just("") if words is None else words.map(lambda text: joined([text])), calls)


def in_pieces(text, cuts):
    """A text cut at some places."""
    places = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def streamed(blocks, pieces, tools=TOOLS):
    """The answer that a stream gives piece by piece."""
    stream = Stream(blocks, tools)
    given = [one for piece in pieces for one in stream.feed(piece)] + stream.end()
    said = [""]
    for one in given:
        if isinstance(one, Call):
            said.append("")
        else:
            said[-1] += one
    return Answer(joined(said), tuple(one for one in given if isinstance(one, Call)))
