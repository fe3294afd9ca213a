"""How many real schemas become grammars, whether what is invented for them fits, and how fast all of it is.

    python benchmarks/grammar.py [--schemas FOLDER]

FOLDER holds `*.jsonl` (a tool or a JSON Schema a line) and `*.json` or `*.yaml` documents; without it the
grammars of the example project are taken.  Prints one JSON line; why a schema is refused goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from synthspec.errors import UserError
from synthspec.grammar import wire
from synthspec.grammar.conform import label, violation
from synthspec.grammar.examples import filled_examples
from synthspec.grammar.importing import Imported, as_files, import_document, import_file
from synthspec.grammar.model import Grammar, ToolFile, load_grammars
from synthspec.grammar.slots import fill
from synthspec.spec import Target
from synthspec.targets.load import load_tokenizer
from synthspec.yamlfile import parse_yaml

FILLS = 20  # of each accepted grammar
SECONDS = 2.0  # that each speed is measured for
SPANNED = 200  # completions that are labelled
COMPILING = 30.0  # seconds that a backend compiles for; a slow one does not get to all grammars

TEN_FIELDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "format": "email"},
        "order_id": {"type": "string", "pattern": "^ORD-[0-9]{6}$"},
        "placed_on": {"type": "string", "format": "date"},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "amount": {"type": "number", "minimum": 0, "maximum": 5000, "multipleOf": 0.01},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "gift": {"type": "boolean"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
        },
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4, "uniqueItems": True},
    },
    "required": [
        "customer", "email", "order_id", "placed_on", "status", "amount", "quantity", "gift", "address", "tags",
    ],
    "additionalProperties": False,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--schemas", type=Path, metavar="FOLDER")
    folder = parser.parse_args().schemas
    accepted: list[Grammar] = []
    counts: Counter[str] = Counter(accepted=0, refused=0, crashed=0)
    for place, document in documents(folder) if folder else examples():
        try:
            grammar = document if isinstance(document, Grammar) else loaded(document)
        except (UserError, ValueError) as error:
            counts["refused"] += 1
            print(f"{place}: refused: {error}", file=sys.stderr)
        except Exception as error:
            counts["crashed"] += 1
            print(f"{place}: crashed: {error!r}", file=sys.stderr)
        else:
            counts["accepted"] += 1
            accepted.append(grammar)
    tokenizer = load_tokenizer(Target())
    filled_per_s, validated_per_s = speeds(loaded(TEN_FIELDS))
    figures = {
        "schemas": dict(counts),
        "invalid_fills": sum(map(invalid_fills, accepted)),
        "filled_per_s": round(filled_per_s),
        "validated_per_s": round(validated_per_s),
        "spanned_tokens_per_s": round(spanned(accepted, tokenizer)),
        "compile_ms": compile_times(accepted, tokenizer),
    }
    print(json.dumps(figures))


def examples() -> Iterator[tuple[str, Grammar]]:
    """The grammars of the example project."""
    desk = Path(str(files("synthspec.examples"))) / "desk"
    for grammar in load_grammars(desk, ["grammars/*.yaml"]):
        yield grammar.name, grammar


def documents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every document below a folder: a parsed line of JSON, or the path of a file."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
                if line.strip():
                    yield f"{path.name}:{number}", json.loads(line)
        elif path.suffix in (".json", ".yaml", ".yml"):
            yield path.name, path


def loaded(document: Any) -> Grammar:
    """The grammar of a document, by way of the file that `from-openapi` would write."""
    if isinstance(document, Path):
        imported: Imported = import_file(document)
    else:
        if isinstance(document, dict):  # collections keep a schema as text, too
            texts = (document.get(key) for key in ("json_schema", "schema"))
            document = next((json.loads(text) for text in texts if isinstance(text, str)), document)
        imported = import_document(document, "imported")
    text, *tools = as_files(imported).values()
    grammar = parse_yaml(text, Path("imported.yaml"), Grammar)
    return grammar.but(tools=parse_yaml(tools[0], Path("tools.yaml"), ToolFile).tools) if tools else grammar


def fills(grammar: Grammar, count: int) -> Iterator[Any]:
    for seed in range(count):
        yield from filled_examples(grammar, fill(grammar, seed), seed)


def invalid_fills(grammar: Grammar) -> int:
    """How many fills do not fit their schema, or are read otherwise than written in some wire format."""
    try:
        return sum(
            violation(grammar, value) is not None or misread(grammar, value) for value in fills(grammar, FILLS)
        )
    except ValueError as error:
        print(f"{grammar.name}: not filled: {error}", file=sys.stderr)
        return FILLS


def misread(grammar: Grammar, value: Any) -> bool:
    if grammar.kind != "tool_call":
        return wire.parse(grammar, wire.write(grammar, value)) != value
    tools = grammar.tool_schemas
    for name, form in wire.FORMATS.items():
        try:
            text = form.write(value, tools)
        except ValueError:  # in words: a format that has no way to write some text
            continue
        try:
            read = wire.answer_in(name, text, tools)
        except ValueError as error:
            print(f"{grammar.name}: {name} does not read what it wrote: {error}", file=sys.stderr)
            return True
        if read != value:
            print(f"{grammar.name}: {name} reads something else than it wrote", file=sys.stderr)
            return True
    return False


def speeds(grammar: Grammar) -> tuple[float, float]:
    """Examples filled and validated a second, and validations alone."""
    (fill_example,) = grammar.fillers
    dice = random.Random(0)
    values = [fill_example({}, dice) for _ in range(100)]

    def filled_and_validated() -> None:
        for _ in range(100):
            assert violation(grammar, fill_example({}, dice)) is None

    def validated() -> None:
        for value in values:
            assert violation(grammar, value) is None

    return 100 * a_second(filled_and_validated), 100 * a_second(validated)


def a_second(act: Any) -> float:
    """How often an act is done in a second."""
    act()
    begin, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < SECONDS:
        act()
        done += 1
    return done / spent


def spanned(grammars: list[Grammar], tokenizer: Any) -> float:
    """Tokens a second of filled completions that get their spans."""
    completions: list[tuple[str, list[int]]] = []
    for grammar in random.Random(0).sample(grammars, min(len(grammars), SPANNED)):
        for value in fills(grammar, 1):
            text = wire.write(grammar, value)
            completions.append(
                (grammar.constraint.to_json(), tokenizer(text, add_special_tokens=False)["input_ids"])
            )
    for constraint, ids in completions:  # compiling is measured apart
        label(constraint, ids, tokenizer)
    begin = time.perf_counter()
    for constraint, ids in completions:
        label(constraint, ids, tokenizer)
    return sum(len(ids) for _, ids in completions) / max(time.perf_counter() - begin, 1e-9)


def compile_times(grammars: list[Grammar], tokenizer: Any) -> dict[str, dict[str, float]]:
    """Milliseconds that each backend takes to compile a grammar's constraint, in an order of no meaning."""
    compilers = {"llguidance": llguidance(tokenizer)}
    if find_spec("xgrammar"):
        compilers["xgrammar"] = xgrammar(tokenizer)
    found: dict[str, dict[str, float]] = {}
    for name, compiled in compilers.items():
        taken: list[float] = []
        for grammar in random.Random(0).sample(grammars, len(grammars)):
            if sum(taken) > 1000 * COMPILING:
                break
            begin = time.perf_counter()
            try:
                compiled(grammar)
            except (ValueError, RuntimeError) as error:
                print(f"{grammar.name}: {name} cannot compile it: {error}", file=sys.stderr)
            taken.append(1000 * (time.perf_counter() - begin))
        if taken:
            found[name] = {"median": round(median(taken), 2), "worst": round(max(taken), 2)}
    return found


def llguidance(tokenizer: Any) -> Any:
    from llguidance import LLMatcher

    from synthspec.grammar.tokens import ll_tokenizer

    vocabulary = ll_tokenizer(tokenizer)

    def compiled(grammar: Grammar) -> None:
        matcher = LLMatcher(vocabulary, grammar.constraint.lark(), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())

    return compiled


def xgrammar(tokenizer: Any) -> Any:
    import xgrammar as engine

    compiler = engine.GrammarCompiler(engine.TokenizerInfo.from_huggingface(tokenizer), cache_enabled=False)

    def compiled(grammar: Grammar) -> None:
        asked = grammar.constraint.sglang()
        ((kind, said),) = asked.items()
        {
            "json_schema": compiler.compile_json_schema,
            "structural_tag": compiler.compile_structural_tag,
            "regex": compiler.compile_regex,
            "ebnf": compiler.compile_grammar,
        }[kind](said)

    return compiled


if __name__ == "__main__":
    main()
