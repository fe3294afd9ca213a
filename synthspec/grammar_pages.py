"""What the verbs about grammars show on a terminal."""

from __future__ import annotations

import json
from typing import Any

from synthspec.errors import printable

Row = dict[str, Any]

STYLES = {"forced": "dim", "structure": "cyan", "value": "bold green", "free": ""}


def coloured(spans: list[Row]) -> Any:
    """The text of spans in colour, with values in brackets for terminals without."""
    from rich.text import Text

    text = Text()
    for span in spans:
        said = printable(span["text"])
        text.append(f"⟨{said}⟩" if span["kind"] == "value" else said, style=STYLES[span["kind"]])
    return text


def legend() -> Any:
    """What the colours mean."""
    from rich.text import Text

    text = Text("spans: ")
    for kind, style in STYLES.items():
        text.append(f"⟨{kind}⟩" if kind == "value" else kind, style=style).append(" ")
    return text


def checked(grammars: list[Row]) -> Any:
    """A line for each grammar, and what engines cannot honour."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("grammar", "kind", "wire format", box=None, header_style="bold", pad_edge=False)
    for column in ("tools", "examples"):
        table.add_column(column, justify="right")
    table.add_column("file")
    notes: list[Any] = []
    # By the sentence, engines and grammars in their order.
    cannot: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in grammars:
        table.add_row(
            row["name"],
            row["kind"],
            row["wire_format"] or "",
            str(row["tools"]),
            str(row["examples"]),
            row["file"],
        )
        if row["unenforced"]:
            places = ", ".join(row["unenforced"])
            notes.append(Text(f"{row['name']}: not enforced while decoding, only checked afterwards: {places}"))
        if row["unwritable"]:
            places = "; ".join(row["unwritable"])
            notes.append(
                Text(f"warning: {row['name']}: a target held to the constraint cannot write {places}", "yellow")
            )
        for engine, sentences in row["unsupported"].items():
            for sentence in sentences:
                engines, names = cannot.setdefault(sentence, ({}, {}))
                engines[engine] = names[row["name"]] = None
    notes += [
        Text(f"note, {', '.join(engines)}: {sentence} ({', '.join(names)})")
        for sentence, (engines, names) in cannot.items()
    ]
    right = "is right" if len(grammars) == 1 else "are right"
    return Group(
        table, *notes, Text(f"{len(grammars)} {'grammar' if len(grammars) == 1 else 'grammars'} {right}")
    )


def shown(grammar: Row, engine: str) -> Any:
    """A grammar's conversation, constraint and examples."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    constraint = grammar["constraint"][engine]
    said = constraint if isinstance(constraint, str) else json.dumps(constraint, indent=2, ensure_ascii=False)
    parts: list[Any] = [Rule("what the target reads", align="left"), Text(printable(grammar["conversation"]))]
    if grammar["played"]:
        parts.append(Text("What the target itself will say in earlier turns is invented here.", "dim"))
    parts += [Rule(f"what it is held to, as {engine} takes it", align="left"), Text(printable(said.strip()))]
    parts += [
        Rule("examples, filled", align="left"),
        legend(),
        Text(f"Drawn with the seed {grammar['seed']}: other requests have other values, fields and lengths."),
    ]
    for example in grammar["examples"]:
        why = f", because {example['reason']}" if example["reason"] else ""
        parts.append(Text(f"{example['tokens']} tokens, {example['state']}{why}:", style="bold"))
        parts += [
            coloured(example["spans"]) if example["spans"] else Text(printable(example["text"]), style="red"),
            Text(),
        ]
    return Group(*parts)
