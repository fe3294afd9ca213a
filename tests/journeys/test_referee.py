"""SGLang's own parser of each family as the referee: it reads what we write, and we read what it reads."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from synthspec.grammar.wire import FORMATS, answer_in
from synthspec.grammar.wire.answer import Answer, Call
from tests.grammar.wire_cases import HARD, TAGS, TOOLS, answers, streamed
from tests.journeys.served import needs_sglang

pytestmark = [pytest.mark.slow, needs_sglang]

# SGLang's name of each parser → our wire format.
PARSERS = {
    "qwen25": "hermes",
    "hermes": "hermes",
    "qwen3_coder": "qwen_xml",
    "llama3": "llama3_json",
    "pythonic": "pythonic",
    "mistral": "mistral",
    "deepseekv3": "deepseek_v3",
    "kimi_k2": "kimi_k2",
    "glm45": "glm",
    "glm47": "glm",
    "gpt-oss": "harmony",
}

# We write GLM's calls in the form of 4.5 and 4.6, and read that of 4.7 too.
WRITTEN = [name for name in PARSERS if name != "glm47"]

words = st.lists(st.sampled_from([*HARD, *TAGS, "a", "Köln", "1.5", "null", "true", "x y"]), max_size=3).map(
    "".join
)
said = st.sampled_from(["", "Sure.", "One moment,\nplease", "é < 2"])


def parser(name):
    from sglang.srt.entrypoints.openai import protocol
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    tools = [
        protocol.Tool(type="function", function=protocol.Function(name=tool, parameters=schema))
        for tool, schema in TOOLS.items()
    ]
    return FunctionCallParser(tools, name)


def prompted(name, text):
    """What the parser gets to see: gpt-oss' wants the end of the prompt too."""
    return f"<|start|>assistant{text}" if name == "gpt-oss" and not text.startswith("<|start|>") else text


def whole(name, text):
    """SGLang's reading of a whole text."""
    rest, calls = parser(name).parse_non_stream(prompted(name, text))
    return Answer(rest.strip(), tuple(Call(call.name, json.loads(call.parameters)) for call in calls))


def piece_by_piece(name, pieces):
    """SGLang's reading of a text that comes in pieces."""
    reading = parser(name)
    names, arguments, rest = {}, {}, ""
    for piece in [*pieces, None]:
        text, calls = reading.parse_stream_end() if piece is None else reading.parse_stream_chunk(piece)
        rest += text
        for call in calls:
            names[call.tool_index] = call.name or names[call.tool_index]
            arguments[call.tool_index] = arguments.get(call.tool_index, "") + call.parameters
    found = tuple(Call(names[index], json.loads(text or "{}")) for index, text in sorted(arguments.items()))
    return Answer(rest.strip(), found)


def cut(name, text, dice):
    """A text in pieces as tokens are: a tag comes whole, all else a few characters at a time."""
    kept = "|".join(map(re.escape, FORMATS[PARSERS[name]].TAGS))
    pieces = []
    for part in re.split(f"({kept})", prompted(name, text)):
        at = 0
        while at < len(part):
            size = len(part) if re.fullmatch(kept, part) else dice.randint(1, 4)
            pieces.append(part[at : at + size])
            at += size
    return pieces


def scalars(value):
    """All strings (keys too), numbers and empty values in arguments."""
    if isinstance(value, dict):
        return [one for pair in value.items() for inner in pair for one in scalars(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in scalars(inner)]
    return [value]


def strings_of(answer):
    return [one for call in answer.calls for one in scalars(call.arguments) if isinstance(one, str)]


def holds(*texts):
    """Whether a string in the arguments holds one of some texts."""
    return lambda answer: any(text in string for string in strings_of(answer) for text in texts)


def negative(answer):
    numbers = [one for call in answer.calls for one in scalars(call.arguments) if isinstance(one, int | float)]
    return any(str(number).startswith("-") for number in numbers)


def bracket_at_end(answer):
    return any(string.endswith("<") for string in strings_of(answer))


def several(answer):
    return len(answer.calls) > 1


def null_of_a_string(answer):
    return any(call.arguments.get("note", "") is None for call in answer.calls)


def looks_like_json(answer):
    """A string parameter that could be something else: a number, a word of JSON, quoted or escaped text."""
    own = [call.arguments.get(key) for call in answer.calls for key in ("to", "note")]
    return any(
        re.fullmatch(r"\s*(-?[0-9.]+|null|true|false)\s*", one) or set(one) & set("\"'\\[{")
        for one in own
        if one
    )


def call(**arguments):
    return Answer("", (Call("find_train", arguments),))


# Legal answers that SGLang 0.5.23 misreads: whose parser, whole or streamed, what it does, which answers
# have it, and the smallest of them.
FAULTS = [
    (
        "hermes",
        "whole",
        "a closing tag in a string ends the call",
        holds("</tool_call>"),
        call(to="</tool_call>"),
    ),
    (
        "qwen3_coder",
        "whole",
        "a tag in a string of a list ends it",
        holds("</"),
        call(to="", via=["</parameter>"]),
    ),
    (
        "qwen3_coder",
        "stream",
        "a tag in a string of a list ends it",
        holds("</"),
        call(to="", via=["</parameter>"]),
    ),
    ("llama3", "stream", "single quotes become double ones", holds("'"), call(to="'a': 'b'")),
    ("pythonic", "whole", "a negative number drops its call", negative, call(to="", seats=-1)),
    ("pythonic", "stream", "a negative number drops its call", negative, call(to="", seats=-1)),
    ("pythonic", "stream", "a bracket in a string counts", holds("[", "]"), call(to="]")),
    (
        "mistral",
        "stream",
        "further calls of a list are plain text",
        several,
        Answer("", (Call("find_bus", {}),) * 2),
    ),
    (
        "kimi_k2",
        "whole",
        "a closing tag in a string ends the call",
        holds("<|tool_call_end|>"),
        call(to="}<|tool_call_end|>"),
    ),
    (
        "kimi_k2",
        "stream",
        "a closing tag in a string ends the call",
        holds("<|tool_call_end|>"),
        call(to="<|tool_call_end|>"),
    ),
    (
        "glm45",
        "whole",
        "a closing tag in a string ends the call",
        holds("</"),
        call(to="", via=["</tool_call>"]),
    ),
    (
        "glm45",
        "stream",
        "a closing tag in a string ends the call",
        holds("</"),
        call(to="", via=["</tool_call>"]),
    ),
    ("glm45", "whole", "a string that looks like JSON is read as that", looks_like_json, call(to='"a"')),
    ("glm45", "whole", "the empty value of a string is a word", null_of_a_string, call(to="", note=None)),
    ("glm45", "stream", "the empty value of a string is a word", null_of_a_string, call(to="", note=None)),
    ("glm45", "stream", "a bracket before a closing tag hides it", bracket_at_end, call(to="<")),
    ("gpt-oss", "whole", "a closing tag in a string ends the call", holds("<|call|>"), call(to="<|call|>")),
    ("gpt-oss", "stream", "a closing tag in a string ends the call", holds("<|call|>"), call(to="<|call|>")),
]


def endless(name, answer):
    """The pythonic parser's expression takes time that doubles with each argument beside another call."""
    return (
        name == "pythonic" and len(answer.calls) > 1 and sum(len(call.arguments) for call in answer.calls) > 4
    )


def rounded(name, way, answer):
    """The parsers that share JSON give a number with an exponent as it is so far, and cannot take it back."""
    numbers = [one for call in answer.calls for one in scalars(call.arguments) if isinstance(one, float)]
    shares = name in ("qwen25", "hermes", "llama3", "mistral") and way == "stream"
    return shares and any("e" in str(number) for number in numbers)


def faulty(name, way, answer):
    if endless(name, answer) or rounded(name, way, answer):
        return True
    return any(has(answer) for parser, mode, _, has, _ in FAULTS if (parser, mode) == (name, way))


def alike(one, other):
    return repr(one.calls) == repr(other.calls) and one.text.split() == other.text.split()


def attempt(read, *args):
    """A reading, or None where the parser raises."""
    try:
        return read(*args)
    except (ValueError, KeyError):
        return None


referee = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@pytest.mark.parametrize("name", WRITTEN)
@given(answers(words, said))
@referee
def test_what_we_write_it_reads_whole(name, answer):
    assume(answer.calls)
    assume(not faulty(name, "whole", answer))
    try:
        text = FORMATS[PARSERS[name]].write(answer, TOOLS)
    except ValueError:
        assume(False)
    assert alike(whole(name, text), answer), text


@pytest.mark.parametrize("name", WRITTEN)
@given(answers(words, said), st.randoms(use_true_random=False))
@referee
def test_what_we_write_it_reads_in_pieces(name, answer, dice):
    assume(answer.calls)
    assume(not faulty(name, "stream", answer))
    try:
        text = FORMATS[PARSERS[name]].write(answer, TOOLS)
    except ValueError:
        assume(False)
    pieces = cut(name, text, dice)
    assert alike(piece_by_piece(name, pieces), answer), pieces


@pytest.mark.parametrize(
    ("name", "way", "fault", "has", "answer"), FAULTS, ids=[f"{f[0]}: {f[2]}" for f in FAULTS]
)
def test_each_fault_is_there_and_ours_reads_it(name, way, fault, has, answer):
    text = FORMATS[PARSERS[name]].write(answer, TOOLS)
    assert has(answer)
    theirs = (
        attempt(whole, name, text) if way == "whole" else attempt(piece_by_piece, name, prompted(name, text))
    )
    assert theirs is None or not alike(theirs, answer)
    assert answer_in(PARSERS[name], text, TOOLS) == answer
    assert streamed(FORMATS[PARSERS[name]], text) == answer


def test_a_number_with_an_exponent_is_rounded_on_the_way():
    answer = call(price=2.4434835047034288e-179, to="")
    text = FORMATS["hermes"].write(answer, TOOLS)
    pieces = [text[at : at + 2] for at in range(0, len(text), 2)]
    assert rounded("hermes", "stream", answer)
    assert not alike(piece_by_piece("hermes", pieces), answer)
    assert alike(streamed(FORMATS["hermes"], pieces), answer)


A = Call("find_train", {"to": "A"})
B = Call("find_train", {"to": "B", "seats": 2, "via": ["C", "D"], "sure": True})
NONE = Call("find_bus", {})
A_JSON, B_JSON = (json.dumps(call.arguments) for call in (A, B))

# Texts as the families' templates render them, and as their models write them.
RENDERED = [
    ("qwen25", f'Well.\n<tool_call>\n{{"name": "find_train", "arguments": {A_JSON}}}\n</tool_call>', (A,)),
    ("qwen25", f'<tool_call>\n{{"arguments": {B_JSON}, "name": "find_train"}}\n</tool_call>\n', (B,)),
    (
        "qwen25",
        f'Well.\n\n<tool_call>\n{{"name":"find_bus","arguments":{{}}}}\n</tool_call>\n\n'
        f'<tool_call>\n  {{"name": "find_train", "arguments": {A_JSON}}}\n</tool_call>',
        (NONE, A),
    ),
    ("hermes", f'Well. <tool_call>{{"name": "find_train", "arguments": {B_JSON}}}</tool_call>', (B,)),
    (
        "hermes",
        '<tool_call>\n{"name": "find_bus", "arguments": {}}\n</tool_call> <tool_call>\n'
        f'{{"name": "find_train", "arguments": {A_JSON}}}\n</tool_call>',
        (NONE, A),
    ),
    (
        "qwen3_coder",
        "Well.\n\n<tool_call>\n<function=find_train>\n<parameter=to>\nB\n</parameter>\n<parameter=seats>\n2\n"
        '</parameter>\n<parameter=via>\n["C", "D"]\n</parameter>\n<parameter=sure>\nTrue\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=find_bus>\n</function>\n</tool_call>",
        (B, NONE),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=find_train><parameter=to>A</parameter></function></tool_call>",
        (A,),
    ),
    ("llama3", f'{{"name": "find_train", "parameters": {A_JSON}}}', (A,)),
    ("llama3", f'<|python_tag|>{{"name": "find_train", "arguments": {B_JSON}}}', (B,)),
    (
        "llama3",
        f'{{"name": "find_bus", "parameters": {{}}}};{{"name": "find_train", "parameters": {A_JSON}}}',
        (NONE, A),
    ),
    (
        "llama3",
        f'{{"name": "find_bus", "parameters": {{}}}}; {{"name": "find_train", "parameters": {A_JSON}}}',
        (NONE, A),
    ),
    ("pythonic", '[find_train(to="A")]', (A,)),
    ("pythonic", "Well. [find_train(to='B', seats=2, via=['C', 'D'], sure=True), find_bus()]", (B, NONE)),
    ("pythonic", '<|python_start|>[find_bus(), find_train(to="A")]<|python_end|>', (NONE, A)),
    ("mistral", f'[TOOL_CALLS] [{{"name": "find_train", "arguments": {A_JSON}, "id": "a1b2c3d4e"}}]', (A,)),
    ("mistral", f'Well.[TOOL_CALLS] [ {{"name": "find_train", "arguments": {B_JSON}}} ]', (B,)),
    ("mistral", f"[TOOL_CALLS]find_train[ARGS]{B_JSON}", (B,)),
    ("mistral", f"Well.[TOOL_CALLS]find_bus[ARGS]{{}}[TOOL_CALLS]find_train[ARGS]{A_JSON}", (NONE, A)),
    (
        "deepseekv3",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find_train\n```json\n"
        f"{B_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (B,),
    ),
    (
        "deepseekv3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find_bus\n```json\n{}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_train\n```json\n"
        f"{A_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (NONE, A),
    ),
    (
        "kimi_k2",
        "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.find_train:3<|tool_call_argument_begin|>"
        f"{B_JSON}<|tool_call_end|><|tool_calls_section_end|>",
        (B,),
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|>\n<|tool_call_begin|> find_bus:0 <|tool_call_argument_begin|> {} "
        f"<|tool_call_end|>\n<|tool_call_begin|>functions.find_train:1<|tool_call_argument_begin|>{A_JSON}<|tool_call_end|>\n"
        "<|tool_calls_section_end|>",
        (NONE, A),
    ),
    (
        "glm45",
        "Well.\n<tool_call>find_train\n<arg_key>to</arg_key>\n<arg_value>B</arg_value>\n<arg_key>seats</arg_key>\n"
        '<arg_value>2</arg_value>\n<arg_key>via</arg_key>\n<arg_value>["C", "D"]</arg_value>\n'
        "<arg_key>sure</arg_key>\n<arg_value>true</arg_value>\n</tool_call>\n<tool_call>find_bus\n</tool_call>",
        (B, NONE),
    ),
    (
        "glm47",
        "Well.<tool_call>find_train<arg_key>to</arg_key><arg_value>A</arg_value></tool_call><tool_call>find_bus</tool_call>",
        (A, NONE),
    ),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>They go to A.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.find_train <|constrain|>json<|message|>{A_JSON}<|call|>",
        (A,),
    ),
    (
        "gpt-oss",
        "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.find_train<|constrain|>json<|message|>{B_JSON}<|call|><|start|>assistant<|channel|>"
        "commentary to=functions.find_bus <|constrain|>json<|message|>{}<|call|>",
        (B, NONE),
    ),
]


@pytest.mark.parametrize(("name", "text", "calls"), RENDERED)
def test_what_it_reads_we_read_alike(name, text, calls):
    expected = Answer("Well." if text.startswith("Well.") or "Well.<|end|>" in text else "", calls)
    assert alike(whole(name, text), expected)
    assert alike(answer_in(PARSERS[name], text, TOOLS), expected)
    assert alike(streamed(FORMATS[PARSERS[name]], list(text)), expected)


def test_a_list_of_bare_calls_is_what_it_takes_where_calls_are_required():
    from sglang.srt.function_call.json_array_parser import JsonArrayParser

    text = FORMATS["json"].write(Answer("", (NONE, B)), TOOLS)
    reading, tools = JsonArrayParser(), parser("hermes").tools
    found = [*reading.parse_streaming_increment(text, tools).calls, *reading.finish(tools).calls]
    assert [call.name for call in found if call.name] == ["find_bus", "find_train"]
    assert json.loads("".join(call.parameters for call in found if call.tool_index == 1)) == B.arguments
