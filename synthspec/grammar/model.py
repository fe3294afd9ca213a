"""A grammar: one kind of production output, without its data; one YAML file that a person writes."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from synthspec.errors import UserError
from synthspec.files import content_id
from synthspec.grammar.constraint import Constraint
from synthspec.grammar.slots import Slot
from synthspec.spec import Name, Part
from synthspec.yamlfile import check_inside, load_yaml

SlotName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_./:-]*$", max_length=128)]


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


class Grammar(Part):
    """What production writes for one purpose: its tools or schema, its prompts, its slots, its format."""

    model_config = ConfigDict(populate_by_name=True)

    version: Literal[1] = 1
    name: Name = Field(description="what the grammar is called in specs and reports")
    kind: Literal["tool_call", "extraction"] = Field(description="tool_call or extraction")
    description: str = ""
    wire_format: Literal["hermes", "json"] = Field(description="how the target writes it: hermes or json")
    system: str = Field("", description="Jinja template of the system prompt; slots are its variables")
    user: str = Field("{{ prompt }}", description="Jinja template of the user's turn")
    tools: list[Tool] = Field(default=[], description="for kind tool_call")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="for kind extraction: JSON Schema (draft 2020-12) of the object"
    )
    slots: dict[SlotName, Slot] = Field(default={}, description="typed holes where users' values stood")
    examples: list[Any] = Field(
        min_length=1,
        description="at least one production output with <redacted> or <redacted:slot> for each value",
    )
    match: Matching = Matching()
    max_new_tokens: int = Field(192, ge=8, le=32_768, description="the most tokens of a completion")

    @model_validator(mode="after")
    def _checked(self) -> Grammar:
        from synthspec.grammar.check import mistakes

        found = [
            InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(sentence)})
            for place, sentence in mistakes(self)
        ]
        if found:
            raise ValidationError.from_exception_data("Grammar", found)
        return self

    @cached_property
    def constraint(self) -> Constraint:
        """What a completion of this grammar is held to."""
        from synthspec.grammar import wire

        return wire.constraint(self)

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
            grammar = load_yaml(path, Grammar, root=root)
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
