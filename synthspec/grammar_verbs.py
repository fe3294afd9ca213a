"""Grammars looked at by themselves: whether files are right, what one means, whether completions conform."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import is_folder, write_text
from synthspec.grammar.model import Grammar, load_grammar
from synthspec.yamlfile import as_told, shown

Row = dict[str, Any]

PROMPT = "(the public prompt)"


def grammar_paths(paths: Sequence[Path]) -> list[Path]:
    """The files given, and the YAML files of the folders given.

    Raises:
        UserError: a folder holds no YAML file.
    """
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.glob("*.yaml")) if is_folder(path) else [path]
        if not inside:
            raise UserError(f"{path}: holds no grammar; name a .yaml file, or a folder with some")
        found |= dict.fromkeys(inside)
    return list(found)


def check(paths: Sequence[Path]) -> list[Row]:
    """Check grammars.

    Returns:
        One object a grammar: `file`, `name`, `kind`, `wire_format`, `tools` and `examples` (how many),
        `unenforced`: the keywords that no engine enforces, with their places, which are checked afterwards
        alone; `unsupported`: for each engine that cannot honour the rest, what not, in sentences; and
        `unwritable`: places of examples that a target held to the constraint cannot write, and from which
        character on.

    Raises:
        UserError: every mistake in any of the files, one a line.
    """
    rows: list[Row] = []
    mistakes: list[str] = []
    names: dict[str, Path] = {}
    for path in grammar_paths(paths):
        try:
            grammar = load_grammar(path, path.parent)
        except UserError as error:
            mistakes.append(str(error))
            continue
        if grammar.name in names:
            mistakes.append(
                f"{path}: name: {grammar.name!r} is already the name of {names[grammar.name]}; give one another"
            )
        names[grammar.name] = path
        rows.append(
            {
                "file": str(path),
                "name": grammar.name,
                "kind": grammar.kind,
                "wire_format": grammar.wire_format,
                "tools": len(grammar.tools),
                "examples": len(grammar.examples),
                "unenforced": _unenforced(grammar),
                "unwritable": _unwritable(grammar),
                "unsupported": {engine: told for engine, told in _cannot(grammar).items() if told},
            }
        )
    if mistakes:
        raise UserError("\n".join(mistakes))
    return rows


def _cannot(grammar: Grammar) -> dict[str, list[str]]:
    """What each engine cannot honour; of the tools of a catalogue one by one, since no request shows all."""
    from synthspec.grammar.engines import BACKENDS, unsupported

    if grammar.catalogue is None:
        return {engine: unsupported(grammar.constraint, engine) for engine in BACKENDS}
    # That llguidance takes every tool was tried when the grammar was loaded.
    alone = [grammar.but(tools=[tool]).constraint for tool in grammar.tools]
    return {
        engine: [*dict.fromkeys(told for one in alone for told in unsupported(one, engine))]
        for engine in BACKENDS
        if engine != "llguidance"
    }


def _unenforced(grammar: Grammar) -> list[str]:
    from synthspec.grammar.schemas import inlined, unenforced

    schemas = [((tool.name,), tool.parameters) for tool in grammar.tools]
    named = schemas if grammar.schema_ is None else [((), grammar.schema_)]
    return [as_told((*place, *path)) for place, schema in named for path, _ in unenforced(inlined(schema))]


def _unwritable(grammar: Grammar) -> list[str]:
    """Examples that the constraint does not let through, such as a text longer than it allows."""
    from synthspec.grammar import wire
    from synthspec.grammar.bytewise import byte_matcher
    from synthspec.grammar.slots import fill
    from synthspec.grammar.wire.answer import Answer

    whole = None if grammar.catalogue else byte_matcher(grammar.constraint.lark())
    slots = fill(grammar, 0)
    found: list[str] = []
    for index, fill_output in enumerate(grammar.fillers):
        value = fill_output(slots, random.Random(0))
        text = wire.write(grammar, value)
        called = {call.name for call in value.calls} if isinstance(value, Answer) else ()
        some = grammar.but(tools=[tool for tool in grammar.tools if tool.name in called])
        matcher = whole.deep_copy() if whole else byte_matcher(some.constraint.lark())
        taken = matcher.try_consume_tokens(list(text.encode()))
        if taken < len(text.encode()):
            rest = text.encode()[taken:].decode(errors="ignore")
            found.append(f"examples[{index}] from {shown(rest[:24])} on")
    return found


def show(path: Path, tokenizer: Any, seed: int) -> Row:
    """What a grammar means for one request.

    Args:
        tokenizer: the target's, with its chat template.
        seed: what slots, shape and marks are drawn with.

    Returns:
        `grammar`, `seed`, `slots` (their values), `conversation` (the text that the target reads), `played`
        (how many turns in it the target will write itself; here they are invented), `constraint` (for each
        engine), and `examples`: each with its `text`, `tokens`, `state`, `reason`, and `spans`, a list of
        `kind` and `text`.
    """
    from synthspec.grammar import wire
    from synthspec.grammar.conform import judge
    from synthspec.grammar.examples import filled_examples, stand_ins
    from synthspec.grammar.slots import fill
    from synthspec.prompting.render import Desk, chat_text

    grammar = load_grammar(path, path.parent)
    slots = fill(grammar, seed)
    examples: list[Row] = []
    try:
        said = stand_ins(grammar, slots, seed)
        messages, tools, held = Desk(grammar, tokenizer).ask(PROMPT, slots, None, seed, said)
        filled = filled_examples(grammar, slots, seed)
    except ValueError as error:
        raise UserError(
            f"{path}: with these values an output does not fit ({error}); try another --seed"
        ) from None
    for value in filled:
        text = wire.write(grammar, value)
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        request = {"purpose": "grammar", "constraint": grammar.constraint.to_json()}
        verdict = judge(request, ids, "stop", grammar, tokenizer)
        examples.append(
            {
                "text": text,
                "tokens": len(ids),
                "state": verdict.state,
                "reason": verdict.reason,
                "spans": [
                    {"kind": kind, "text": tokenizer.decode(ids[start:end])}
                    for kind, start, end in verdict.spans
                ],
            }
        )
    return {
        "grammar": grammar.name,
        "seed": seed,
        "slots": slots,
        "conversation": chat_text(tokenizer, messages, tools),
        "played": len(said),
        "constraint": {"llguidance": held.lark(), "sglang": held.sglang(), "vllm": held.vllm()},
        "examples": examples,
    }


def conform(path: Path, completions: Path, tokenizer: Any | None = None) -> Iterator[Row]:
    """The verdict on every line of a file of completions.

    Args:
        completions: JSON lines; each has the text as `completion`, `text` or `output`, or the target's token
            ids as `ids`.
        tokenizer: the target's; needed for `ids`, and for spans.

    Yields:
        `line`, `state`, `reason`, and with a tokenizer `spans`: how many tokens of each kind.

    Raises:
        UserError: a line is not JSON, or has none of the fields.
    """
    grammar = load_grammar(path, path.parent)
    try:
        if completions.exists() and not completions.is_file():
            raise UserError(f"{completions}: is no regular file; name the file itself")
        file = completions.open(encoding="utf-8-sig")
    except (OSError, ValueError):
        raise UserError(f"{completions}: cannot be read; check the path") from None
    with file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{completions}:{number}"
                    yield {"line": number, **_verdict(grammar, _completion(line, where), where, tokenizer)}
        except UnicodeDecodeError:
            raise UserError(f"{completions}: is not UTF-8 text; save it as UTF-8") from None
        except OSError:
            raise UserError(f"{completions}: cannot be read to its end; copy it to a plain file") from None


def _completion(line: str, where: str) -> str | list[int]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: is not JSON; write one object a line") from None
    for key in ("completion", "text", "output"):
        if isinstance(row, dict) and isinstance(row.get(key), str):
            return str(row[key])
    ids = row.get("ids") if isinstance(row, dict) else None
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise UserError(f"{where}: holds no completion; write an object with the key completion, or ids")
    return ids


def _verdict(grammar: Grammar, completion: str | list[int], where: str, tokenizer: Any | None) -> Row:
    from synthspec.grammar.conform import judge, judge_text

    if isinstance(completion, str) and any("\ud800" <= one <= "\udfff" for one in completion):
        return {"state": "invalid", "reason": "it holds half of a character (a lone surrogate)"}
    if tokenizer is None:
        if not isinstance(completion, str):
            raise UserError(f"{where}: holds token ids; say whose they are with --target")
        verdict = judge_text(grammar, completion)
        return {"state": verdict.state, "reason": verdict.reason}
    ids = completion
    if isinstance(ids, str):
        verdict = judge_text(grammar, ids)
        if verdict.state != "kept":  # with tokens it would be the same
            return {"state": verdict.state, "reason": verdict.reason}
        ids = [*tokenizer(ids, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    request = {"purpose": "grammar", "constraint": grammar.constraint.to_json()}
    verdict = judge(request, ids, "stop", grammar, tokenizer)
    counts: dict[str, int] = {}
    for kind, start, end in verdict.spans:
        counts[kind] = counts.get(kind, 0) + end - start
    return {"state": verdict.state, "reason": verdict.reason, "spans": counts}


def import_grammar(document: Path, out: Path, wire_format: str) -> tuple[Path, list[str]]:
    """Make a grammar of a description of tools, and write it into a folder.

    Returns:
        The grammar's file, and what was changed or left out on the way, in sentences.

    Raises:
        UserError: as `importing.import_file`; or there is such a file already.
    """
    from synthspec.grammar.importing import as_files, import_file
    from synthspec.grammar.wire import FORMATS

    if wire_format not in FORMATS:
        raise UserError(f"--wire-format: there is no {wire_format!r}; write one of {', '.join(FORMATS)}")
    with progress.bar("looking at the tools", None, "tools") as tick:
        found = import_file(document, wire_format, tick)
    try:
        files = {out / name: text for name, text in as_files(found).items()}
    except ValueError as error:
        raise UserError(f"{document}: {error}") from None
    try:
        for file in files:
            if file.exists():
                raise UserError(f"{file} exists already: move it away, or name another folder with --out")
        for file, text in files.items():
            write_text(file, text)
    except OSError as error:
        raise UserError(f"--out: {out} cannot be written to ({error.strerror}); name another folder") from None
    return next(iter(files)), list(found.notes)
