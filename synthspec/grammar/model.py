"""A grammar: one kind of production output, without its data; one YAML file that a person writes."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import ConfigDict, Field, model_validator

from synthspec.errors import UserError
from synthspec.files import content_id
from synthspec.grammar.code import Code
from synthspec.grammar.constraint import Constraint
from synthspec.grammar.redacted import Fill
from synthspec.grammar.shape import Shape
from synthspec.grammar.slots import Slot
from synthspec.grammar.written import Written
from synthspec.spec import Name, Part
from synthspec.yamlfile import (
    MAX_BYTES,
    MAX_TOLD,
    check_inside,
    lines_of,
    load_yaml,
    parse_yaml,
    placed,
    read_text,
    refusal,
)

SlotName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_./:-]*$", max_length=128)]


WireFormat = Literal[
    "hermes",
    "qwen_xml",
    "llama3_json",
    "pythonic",
    "mistral",
    "deepseek_v3",
    "kimi_k2",
    "glm",
    "harmony",
    "json",
]


class Tool(Part):
    """A function that the target may call."""

    name: ToolName = Field(description="the name as production writes it")
    description: str = Field("", description="what it does, as the target is told")
    parameters: dict[str, Any] = Field(
        default={"type": "object", "properties": {}},
        description="JSON Schema (draft 2020-12) of the arguments object",
    )


class Matching(Part):
    """Which prompts a grammar takes."""

    about: str = Field("", description="words that such prompts are about, beyond the tools' own")
    any: bool = Field(False, description="take prompts that no other grammar takes")
    min_score: float = Field(
        0.0,
        ge=0,
        description="nearness a prompt must have: at 0 any shared word will do, at 1 one that no other has",
    )


class Turn(Part):
    """One earlier turn of a conversation: what the user, the assistant or a tool said."""

    user: str | None = Field(None, description="Jinja template")
    assistant: Any = Field(None, description="a text, a call {name, arguments}, or a list of calls, with marks")
    target: Literal["any"] | list[ToolName] | None = Field(
        None,
        description="an assistant's turn that the target itself writes: the tools that it may call in it, or "
        "any; it makes as many calls as tool turns follow, without any it answers in words",
    )
    tool: Any = Field(None, description="what a tool answered: a text or JSON, with marks")

    @model_validator(mode="after")
    def _one_speaker(self) -> Turn:
        spoken = (self.user, self.assistant, self.target, self.tool)
        if len([said for said in spoken if said is not None]) != 1:
            raise ValueError(
                "a turn is one of user, assistant, target and tool; begin another with - for the next"
            )
        if self.assistant == []:
            raise ValueError("the assistant says nothing; write a text, or at least one call")
        if self.target == []:
            raise ValueError("target names no tool; write the tools that it may call, or any")
        return self

    @property
    def speaker(self) -> Literal["user", "assistant", "tool"]:
        return "user" if self.user is not None else "tool" if self.tool is not None else "assistant"


class Played(NamedTuple):
    """An earlier turn that the target itself writes.

    Args:
        place: its index in `turns`.
        tools: names of those that it may call; None: any that is shown.
        calls: how many calls it makes.
    """

    place: int
    tools: tuple[str, ...] | None
    calls: int


class ToolFile(Part):
    """The file of a catalogue."""

    tools: list[Tool] = Field(min_length=1)


class Catalogue(Part):
    """Tools in a file of their own, of which each request shows some: the one it needs, and others like it."""

    file: str = Field(description="YAML or JSON file with `tools`, in the grammar's folder or below it")
    shown: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = Field(
        (4, 12), description="tools in a request, at least and at most"
    )
    order: Literal["random", "as_written"] = Field("random", description="in which the tools stand")

    @model_validator(mode="after")
    def _in_order(self) -> Catalogue:
        if self.shown[0] > self.shown[1]:
            raise ValueError(f"shown ({self.shown[0]} to {self.shown[1]}) runs backwards; swap them")
        return self


class Grammar(Part):
    """What production writes for one purpose: its tools or schema, its prompts, its slots, its format."""

    model_config = ConfigDict(populate_by_name=True)

    version: Literal[1] = 1
    name: Name = Field(description="what the grammar is called in specs and reports")
    kind: Literal["tool_call", "extraction", "code", "text"] = Field(
        description="tool_call, extraction (one JSON object), code, or text that follows its examples"
    )
    description: str = ""
    wire_format: WireFormat | None = Field(None, description="for kind tool_call: how the target writes a call")
    system: str = Field("", description="Jinja template of the system prompt; slots are its variables")
    turns: list[Turn] = Field(default=[], description="what was said before the user's last turn")
    user: str | None = Field(
        "{{ prompt }}",
        description="Jinja template of the user's last turn; null where a tool's answer comes last",
    )
    tools: list[Tool] = Field(default=[], description="for kind tool_call")
    catalogue: Catalogue | None = Field(None, description="for kind tool_call, in place of tools")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="for kind extraction: JSON Schema (draft 2020-12) of the object"
    )
    code: Code | None = Field(None, description="for kind code: the language, and what of it is written")
    slots: dict[SlotName, Slot] = Field(
        default={}, max_length=200, description="typed holes where users' values stood"
    )
    examples: list[Any] = Field(
        min_length=1,
        max_length=500,
        description="at least one production output with <redacted> or <redacted:slot> for each value",
    )
    shape: Shape = Shape()
    weight: float = Field(1.0, gt=0, le=1000, description="what rows_per_grammar is multiplied by")
    match: Matching = Matching()
    max_new_tokens: int = Field(192, ge=8, le=32_768, description="the most tokens of a completion")

    @model_validator(mode="after")
    def _checked(self) -> Grammar:
        from synthspec.grammar.check import mistakes

        try:
            told = mistakes(self)
        except RecursionError:
            told = [((), "is nested too deeply")]
        if self.tools and self.catalogue is not None:
            told = [(("tools",), "stand beside a catalogue; keep one of them")]
        if refused := refusal("Grammar", told):
            raise refused
        return self

    def but(self, **fields: Any) -> Grammar:
        """The same grammar with other values of some fields, unchecked."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_construct(**{**own, **fields})

    @cached_property
    def constraint(self) -> Constraint:
        """What a completion of this grammar is held to."""
        from synthspec.grammar import wire

        return wire.constraint(self)

    @cached_property
    def tool_schemas(self) -> dict[str, dict[str, Any]]:
        """The schema of each tool's arguments, without references."""
        from synthspec.grammar.schemas import inlined

        return {tool.name: inlined(tool.parameters) for tool in self.tools}

    @cached_property
    def written(self) -> Written | None:
        """What is written, for the kinds code and text."""
        from synthspec.grammar.written import Templates

        if self.kind == "text":
            return Templates(templates=tuple(self.examples))
        return self.code

    @cached_property
    def played(self) -> list[Played]:
        """The turns that the target writes before its last, in order."""
        found = []
        for place, turn in enumerate(self.turns):
            if turn.target is None:
                continue
            behind = [after.tool is not None for after in self.turns[place + 1 :]]
            calls = next((n for n, answers in enumerate(behind) if not answers), len(behind))
            found.append(Played(place, None if turn.target == "any" else tuple(turn.target), calls))
        return found

    @cached_property
    def fillers(self) -> list[Fill]:
        """How each of the examples is filled; Unfillable if one cannot be."""
        from synthspec.grammar.examples import output_filler

        return [output_filler(self, example) for example in self.examples]

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything in the grammar."""
        # As text, because the order of properties and slots counts too.
        return content_id(json.dumps(self.model_dump(mode="json", by_alias=True), ensure_ascii=False))


def grammar_files(root: Path, patterns: Sequence[str]) -> list[Path]:
    """The absolute paths of the grammar files that the patterns name, each once.

    Args:
        root: the folder that patterns are relative to, and that no file may lie outside of.
        patterns: files, or patterns such as `grammars/*.yaml`.

    Returns:
        In the order of the patterns and of the file names below each.

    Raises:
        UserError: a pattern finds no file, or a file outside of the project.
    """
    home = root.resolve()
    files: dict[Path, None] = {}
    for pattern in patterns:
        relative = os.path.relpath(check_inside(home, pattern), home)
        # Path.glob raises on patterns that this one merely finds nothing for.
        names = sorted(glob.glob(relative, root_dir=home, recursive=True))  # noqa: PTH207
        found = [check_inside(home, name) for name in names if (home / name).is_file()]
        if not found:
            raise UserError(f"grammars: no file matches {pattern!r} in {root}; check the path")
        files |= dict.fromkeys(found)
    return list(files)


def load_grammar(path: Path, root: Path, catalogue: Path | None = None) -> Grammar:
    """Read and check a grammar, with the tools of its catalogue in `tools`.

    Args:
        root: the folder that the grammar may not lie outside of.
        catalogue: the file of its catalogue, if it has one; by default the one that it names.

    Raises:
        UserError: one line for each mistake.
    """
    grammar = load_yaml(path, Grammar, root=root)
    if grammar.catalogue is None:
        return grammar
    from synthspec.grammar.check import mistakes

    try:
        file = catalogue or check_inside(path.parent, grammar.catalogue.file)
        text = read_text(file, MAX_BYTES)
        if (known := _WITH_TOOLS.get((grammar.fingerprint, text))) is not None:
            return known
        tools = parse_yaml(text, file, ToolFile).tools
    except UserError as error:
        raise UserError(f"{path}: catalogue.file: {error}") from None
    whole = grammar.but(tools=tools)
    if found := mistakes(whole):
        own, tools_own = lines_of(read_text(path, MAX_BYTES)), lines_of(text)
        raise UserError(
            "\n".join(
                f"{file}:{placed(place, tools_own)}: {what}"
                if place[:1] == ("tools",)
                else f"{path}:{placed(place, own)}: {what}"
                for place, what in found[:MAX_TOLD]
            )
        )
    if len(_WITH_TOOLS) >= 8:
        _WITH_TOOLS.clear()
    _WITH_TOOLS[grammar.fingerprint, text] = whole
    return whole


# Grammars with thousands of tools, which every stage reads: by their fingerprint and the catalogue's text.
_WITH_TOOLS: dict[tuple[str, str], Grammar] = {}


def catalogue_file(path: Path) -> Path | None:
    """The absolute path of the catalogue that a grammar file names, whether or not the grammar is right."""
    try:
        content = yaml.safe_load(path.read_text("utf-8-sig"))
        return check_inside(path.parent, content["catalogue"]["file"])
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, UserError):
        return None


def load_grammars(root: Path, patterns: Sequence[str]) -> list[Grammar]:
    """Read and check all grammars that the patterns name.

    Args:
        root: the folder that patterns are relative to, and that no file may lie outside of.
        patterns: files, or patterns such as `grammars/*.yaml`.

    Returns:
        One grammar a file, in the order of `grammar_files`.

    Raises:
        UserError: as `grammar_files`; one line for each mistake in any file; a name given twice.
    """
    loaded: dict[str, tuple[Path, Grammar]] = {}
    mistakes: list[str] = []
    for path in grammar_files(root, patterns):
        try:
            grammar = load_grammar(path, root)
        except UserError as error:
            mistakes.append(str(error))
            continue
        if grammar.name in loaded:
            mistakes.append(
                f"{path}: name: {grammar.name!r} is already the name of {loaded[grammar.name][0]}; "
                "give one of them another"
            )
        loaded[grammar.name] = path, grammar
    if mistakes:
        raise UserError("\n".join(mistakes))
    return [grammar for _, grammar in loaded.values()]
