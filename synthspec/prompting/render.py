"""Render: turn matches into requests, the conversations that the target reads and how it must answer."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jinja2

from synthspec.errors import UserError
from synthspec.files import canonical, content_id
from synthspec.grammar import wire
from synthspec.grammar.constraint import Constraint
from synthspec.grammar.examples import output_filler
from synthspec.grammar.model import Grammar, Tool
from synthspec.grammar.redacted import filled
from synthspec.grammar.schemas import inlined
from synthspec.grammar.slots import fill
from synthspec.grammar.template import render_template
from synthspec.grammar.wire.answer import Answer, Call
from synthspec.grammar.wire.jsontext import dumps
from synthspec.prompting.catalogue import Shelf
from synthspec.spec import Generate, Spec

Row = dict[str, Any]
Message = dict[str, Any]

MAX_PROMPT_TOKENS = 2000
_MAX_CHARACTERS = 100_000  # a longer text is over MAX_PROMPT_TOKENS in any language; do not tokenise it


def render(
    matches: Sequence[Row],
    prompts: Iterable[Row],
    grammars: Iterable[Grammar],
    tokenizer: Any,
    spec: Spec,
    tick: Callable[[int], None] = lambda n: None,
    slot_values: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> tuple[list[Row], list[str]]:
    """Write out the conversation of every match.

    A match with a grammar gets its system prompt, its slots filled from a seed of the match's own, and
    its constraint; replay and out-of-distribution prompts are asked as they are.

    Args:
        matches: rows of `MATCHES`.
        prompts: rows of `PROMPTS`; those that are matched, at least.
        grammars: all grammars that the matches name.
        tokenizer: the target's, with a chat template.
        spec: the seed, and the lengths of replay and out-of-distribution answers.
        tick: called with the number of matches rendered.
        slot_values: what the target wrote for slots that ask it, by grammar and slot.

    Returns:
        Rows of `REQUESTS`, `generate.samples` for a match; and one state for each match: kept, or invalid (a
        conversation over `MAX_PROMPT_TOKENS`, a prompt that holds one of the tokenizer's control tokens, or a
        slot's value that an earlier output cannot hold).

    Raises:
        UserError: the tokenizer has no chat template, or a grammar's template names what there is not.
    """
    conversations = Conversations(prompts, grammars, tokenizer, spec, slot_values)
    rows: list[Row] = []
    states: list[str] = []
    for match in matches:
        begun = conversations.begin(match)
        rows += begun
        states.append("kept" if begun else "invalid")
        tick(1)
    return rows, states


class Conversations:
    """Writes out the conversations of matches, each up to where the target has to answer.

    Args:
        prompts, grammars, tokenizer, spec, slot_values: as of `render`.
    """

    def __init__(
        self,
        prompts: Iterable[Row],
        grammars: Iterable[Grammar],
        tokenizer: Any,
        spec: Spec,
        slot_values: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        self._texts = {row["id"]: row["text"] for row in prompts}
        self._desks = {grammar.name: Desk(grammar, tokenizer) for grammar in grammars}
        self._tokenizer = tokenizer
        self._control = _control_tokens(tokenizer)
        self._lengths = {ood.name: ood.max_new_tokens for ood in spec.ood}
        self._spec = spec
        self._slot_values = slot_values or {}

    def begin(self, match: Row) -> list[Row]:
        """The first request of a match's conversation, `generate.samples` times; none if it makes none."""
        request = self._request(match, ())
        if request is None:
            return []
        seed = self._seed(match)
        more = range(1, self._how(match).samples)
        return [_signed(request, own) for own in (seed, *(self._seed(match, number) for number in more))]

    def go_on(self, match: Row, last: Row, said: Sequence[Any]) -> Row | None:
        """The request behind one that was answered; None if the conversation is too long, or does not fit.

        Args:
            last: the request that was answered last.
            said: what the target has said in this conversation, as `wire.parse` gives it.
        """
        request = self._request(match, said)
        seed = int(content_id("seed", last["seed"], len(said)), 16) >> 1
        return request and _signed({**request, "follows": last["id"]}, seed)

    def _how(self, match: Row) -> Generate:
        # What is only measured is decoded greedily, later too.
        return self._spec.generate if match["purpose"] != "ood" else Generate()

    def _seed(self, match: Row, *number: int) -> int:
        return int(content_id("seed", self._spec.seed, match["id"], *number), 16) >> 1  # 63 bits: fits int64

    def _request(self, match: Row, said: Sequence[Any]) -> Row | None:
        """A row of `REQUESTS` but for its `id` and `seed`; None if there is no conversation."""
        text = self._texts[match["prompt_id"]]
        # What the target said may spell a control token too.
        told = (text, *(spoken for value in said for spoken in _spoken(value)))
        if len(text) > _MAX_CHARACTERS or any(token in one for token in self._control for one in told):
            return None
        spec, tools, slots, constraint = self._spec, None, {}, None
        if match["purpose"] == "grammar":
            desk, seed = self._desks[match["grammar"]], self._seed(match)
            slots = fill(desk.grammar, seed, self._slot_values.get(desk.grammar.name))
            try:
                messages, tools, held = desk.ask(text, slots, match["tool"], seed, said)
            except ValueError:  # a slot's value does not fit where an earlier turn has it
                return None
            constraint = replace(held, thinks=spec.generate.thinking == "on").to_json()
            length = desk.grammar.max_new_tokens
        else:
            messages = [{"role": "user", "content": text}]
            replay = match["purpose"] == "replay"
            length = spec.replay.max_new_tokens if replay else self._lengths[match["set"]]
        ids = encode(self._tokenizer, messages, tools, spec.generate.thinking)
        if not 0 < len(ids) <= MAX_PROMPT_TOKENS:
            return None
        how = self._how(match)
        return {
            "match_id": match["id"],
            "prompt_id": match["prompt_id"],
            "purpose": match["purpose"],
            "grammar": match["grammar"],
            "set": match["set"],
            "turn": len(said),
            "follows": None,
            "messages": canonical(messages),
            "slots": canonical(slots),
            "prompt_ids": ids,
            "constraint": constraint,
            "max_new_tokens": length,
            "temperature": how.temperature,
            "top_p": how.top_p,
            "top_k": how.top_k,
        }


def _spoken(value: Any) -> list[str]:
    """The texts in what the target said, without its wire format's own words."""
    if isinstance(value, Answer):
        return [value.text, *(dumps(call.arguments) for call in value.calls)]
    return [value if isinstance(value, str) else dumps(value)]


def _signed(request: Row, seed: int) -> Row:
    """The request with its seed, and an id from all that its answer depends on."""
    how = {name: request[name] for name in ("temperature", "top_p", "top_k")}
    told = (request["match_id"], request["messages"], request["constraint"], request["max_new_tokens"])
    return {"id": content_id("request", *told, seed, how), **request, "seed": seed}


class Desk:
    """What all requests of one grammar share."""

    def __init__(self, grammar: Grammar, tokenizer: Any) -> None:
        self.grammar = grammar
        self._shelf = Shelf(grammar)
        self._template_shows_tools = template_shows_tools(tokenizer, _functions(grammar.tools[:1]))
        self._template_shows_calls = template_shows_calls(tokenizer)

    def ask(
        self,
        prompt: str,
        slots: Mapping[str, Any],
        tool: str | None,
        seed: int,
        said: Sequence[Any] = (),
    ) -> tuple[list[Message], list[Row] | None, Constraint]:
        """The conversation, the tools for the chat template (None if it leaves them out), and the constraint.

        Args:
            tool: the tool that the prompt was matched to, or None.
            said: what the target has said in its turns so far; the conversation goes up to its next.
        """
        dice = random.Random(content_id(seed, "request"))
        shown = self._shelf.shown(tool, dice)
        # Drawn in any case, so that the dice fall alike before every turn of a conversation.
        constraint = wire.drawn(self.grammar, shown, dice)
        turn = self.grammar.played[len(said)] if len(said) < len(self.grammar.played) else None
        if turn is not None:
            own = random.Random(content_id(seed, "turn", len(said)))
            constraint = wire.drawn(self.grammar, shown, own, turn)
        functions = _functions(shown)
        # The tools stand first and the slots last, so that prompts that show the same tools begin alike and
        # their common beginning is computed once.
        preamble = "" if self._template_shows_tools else tools_text(functions, self.grammar.wire_format or "")
        messages = self._messages(
            preamble, {**slots, "prompt": prompt}, slots, dice, said, turn.place if turn else None
        )
        return messages, functions if self._template_shows_tools else None, constraint

    def _messages(
        self,
        preamble: str,
        context: Mapping[str, Any],
        slots: Mapping[str, Any],
        dice: random.Random,
        outputs: Sequence[Any],
        until: int | None,
    ) -> list[Message]:
        """The conversation up to the turn at the place `until`, or to its end; `outputs` are the target's."""
        grammar, played = self.grammar, iter(outputs)

        def said(template: str, field: str) -> str:
            return fill_in(template, context, f"grammar '{grammar.name}', field {field}").strip()

        system = "\n\n".join(part for part in (preamble, said(grammar.system, "system")) if part)
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        asked: list[str] = []  # ids of the calls that no tool has answered yet
        for number, turn in enumerate(grammar.turns[:until]):
            if turn.user is not None:
                messages.append({"role": "user", "content": said(turn.user, f"turns[{number}].user")})
            elif turn.tool is None:
                if isinstance(turn.assistant, str):
                    said_before = filled(turn.assistant, {"type": "string"}, slots, dice)
                    messages.append({"role": "assistant", "content": said_before})
                    continue
                output = (
                    next(played)
                    if turn.target is not None
                    else output_filler(grammar, turn.assistant)(slots, dice)
                )
                messages.append(self._assistant(output, dice))
                asked = [call["id"] for call in messages[-1].get("tool_calls", [])]
            else:
                told = filled(turn.tool, {}, slots, dice)
                answer = {"role": "tool", "content": told if isinstance(told, str) else dumps(told)}
                messages.append({**answer, "tool_call_id": asked.pop(0)} if asked else answer)
        if until is None and grammar.user is not None:
            messages.append({"role": "user", "content": said(grammar.user, "user")})
        return messages

    def _assistant(self, output: Any, dice: random.Random) -> Message:
        """What the assistant wrote: calls as the chat template wants them, or in the wire format."""
        if not isinstance(output, Answer) or not output.calls or not self._template_shows_calls:
            return {"role": "assistant", "content": wire.write(self.grammar, output)}
        calls = [
            {
                "type": "function",
                "id": "".join(dice.choices(string.ascii_letters + string.digits, k=9)),
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in output.calls
        ]
        return {"role": "assistant", "content": output.text, "tool_calls": calls}


def _functions(tools: Iterable[Tool]) -> list[Row]:
    return [tool.model_dump(include={"name", "description", "parameters"}) for tool in tools]


def encode(
    tokenizer: Any, messages: list[Message], tools: list[Row] | None = None, thinking: str = "template"
) -> list[int]:
    """Token ids of a conversation up to where the target's answer begins.

    Args:
        thinking: `on`, `off`, or `template` for what the chat template does by itself.

    Raises:
        UserError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    text = chat_text(tokenizer, messages, tools, thinking)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def chat_text(
    tokenizer: Any, messages: list[Message], tools: list[Row] | None = None, thinking: str = "template"
) -> str:
    """The conversation as the target's chat template writes it, up to where the answer begins."""
    wrapped = [{"type": "function", "function": tool} for tool in tools] if tools else None
    # Templates name the switch in one of two ways, and read over the other.
    switch = {} if thinking == "template" else dict.fromkeys(("enable_thinking", "thinking"), thinking == "on")
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tools=wrapped, tokenize=False, add_generation_prompt=True, **switch
        )
    except (ValueError, jinja2.TemplateError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the target's chat template cannot write a conversation ({reason})") from None
    return text


def template_shows_tools(tokenizer: Any, tools: list[Row]) -> bool:
    """Whether the target's chat template writes down the tools that it is handed."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    return bool(tools) and chat_text(tokenizer, messages, tools) != chat_text(tokenizer, messages)


def template_thinks(tokenizer: Any) -> bool:
    """Whether the target's chat template has a switch for thinking."""
    messages = [{"role": "user", "content": "u"}]
    on, off = (chat_text(tokenizer, messages, thinking=way) for way in ("on", "off"))
    return on != off


def template_shows_calls(tokenizer: Any) -> bool:
    """Whether the target's chat template writes down the calls of earlier turns."""
    function = {"name": "look_up", "arguments": {"word": "w"}}
    call = {"type": "function", "id": "abcdefghi", "function": function}
    turns: list[Message] = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "t", "tool_call_id": "abcdefghi"},
    ]
    try:
        return "look_up" in chat_text(tokenizer, turns)
    except UserError:
        return False


def tools_text(tools: Iterable[Row], wire_format: str) -> str:
    """The part of a system prompt that lists the tools, for a template that leaves them out.

    Each is one line, `name(field: type, optional?: type): description`: a third of the tokens of its
    JSON Schema, which the constraint enforces anyway.
    """
    source = files("synthspec.prompts").joinpath("tools.jinja").read_text(encoding="utf-8")
    listed = [
        {
            "signature": f"{tool['name']}({_fields(inlined(tool['parameters']))})",
            "description": tool["description"],
        }
        for tool in tools
    ]
    if not listed:
        return ""
    call = wire.FORMATS[wire_format].write(Answer(calls=(Call("tool", {"parameter": "value"}),)), {})
    return fill_in(source, {"tools": listed, "call": call}, "prompts/tools.jinja").strip()


def _fields(schema: Row) -> str:
    required = schema.get("required", [])
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(field)}"
        for name, field in schema.get("properties", {}).items()
    )


def _type(schema: Any) -> str:
    """A JSON Schema without references as a type in the manner of TypeScript, with its description."""
    if not isinstance(schema, dict):
        return "any"
    kind = schema.get("type", "any")
    if "const" in schema:
        said = json.dumps(schema["const"], ensure_ascii=False)
    elif "enum" in schema:
        said = " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    elif "anyOf" in schema or "oneOf" in schema:
        said = " | ".join(_type(part) for part in schema.get("anyOf") or schema["oneOf"])
    elif kind == "array":
        said = f"list of {_type(schema.get('items'))}"
    elif schema.get("properties"):
        said = f"{{{_fields(schema)}}}"
    else:
        said = " | ".join(kind) if isinstance(kind, list) else str(schema.get("format", kind))
    return f"{said} ({schema['description']})" if schema.get("description") else said


def fill_in(template: str, values: Mapping[str, Any], where: str) -> str:
    """Fill a template; what the values hold is text, and never read as a template.

    Raises:
        UserError: the template names what has no value, or reaches for what is forbidden; says where.
    """
    try:
        return render_template(template, values)
    except ValueError as error:
        known = ", ".join(sorted(values))
        kind = type(error.__cause__).__name__  # its text may quote a prompt
        raise UserError(f"{where}: the template cannot be filled ({kind}); it may use {known}") from None


def _control_tokens(tokenizer: Any) -> list[str]:
    """Texts that the tokenizer reads as control tokens; in a prompt they would end the user's turn."""
    added = tokenizer.added_tokens_decoder.values()
    return [token.content for token in added if token.special and token.content]
