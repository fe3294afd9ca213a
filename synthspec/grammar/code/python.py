"""One Python function."""

from __future__ import annotations

import ast
import builtins
import keyword
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_letters, digits
from typing import Any, Literal

from pydantic import Field

from synthspec.grammar.code.gbnf import PLAIN, either, name_but, one_of, row, said
from synthspec.grammar.code.marks import substituted, value_of
from synthspec.grammar.redacted import MARK
from synthspec.spec import Part

FENCE = "python"

MAX_TEXT = 50_000  # characters that are read
MAX_DEPTH = 3  # blocks inside of each other, for an engine
MAX_NESTED = 2  # brackets inside of each other, for an engine
MAX_LINES = 12  # of a block, for an engine
MAX_STRING = 60  # characters, for an engine

_NO_NAMES = (*keyword.kwlist, "__import__", "__debug__")
_DOUBLE, _SINGLE, _FORMAT, _BACKSLASH = map(said, ('"', "'", 'f"', "\\"))
_LINE = said("\n")
_OPENED, _CLOSED = said('\n    """'), said('"""')

_NAME = re.compile(r"[^\W\d]\w*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_IMPORTED = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+([^\n#]*)", re.MULTILINE)
_SCANNER = re.compile(
    rf"(?P<mark>{MARK.pattern.replace('([^', '(?:[^')})|(?P<comment>\#[^\n]*)"
    r"|(?P<text>(?P<prefix>\b[rRbBuUfF]{1,2}|)(?P<quote>\'\'\'|\"\"\"|\'|\")"
    r"(?P<inside>(?:\\(?:.|\Z)|(?!(?P=quote)).)*+)(?P<end>(?P=quote)|\Z))"
    r"|(?P<number>\d[\w.]*|\.\d\w*)|(?P<word>[^\W\d]\w*)|(?P<other>.)",
    re.DOTALL,
)


class Python(Part):
    """One Python function, and the imports that it needs."""

    language: Literal["python"]
    name: str | None = Field(None, description="what the function is called; by default any name")
    parameters: list[str] | None = Field(
        None,
        max_length=50,
        description="its parameters as they are written, such as `rows: list[dict]`; by default any",
    )
    imports: list[str] = Field([], description="modules that it may import, such as math or datetime")
    fence: bool = Field(False, description="whether it stands in a Markdown fence")


def rules(code: Python) -> dict[str, str]:
    """The rules of what an engine is held to."""
    comma = said(", ")
    characters = f"{{0,{MAX_STRING}}}"
    found = {
        "root": "",
        "name": name_but(_NO_NAMES, f"{ascii_letters}_", f"{ascii_letters}{digits}_", "tail"),
        "tail": "[A-Za-z0-9_]{0,24}",
        "number": '("0" | [1-9] [0-9]{0,8}) ("." [0-9]{1,6})?',
        "escape": rf"{_BACKSLASH} [nt{chr(92) * 2}]",
        "string": rf"""{_DOUBLE} ([^"\\{PLAIN}] | escape){characters} {_DOUBLE} """
        rf"""| {_SINGLE} ([^'\\{PLAIN}] | escape){characters} {_SINGLE}""",
        "format": rf"""{_FORMAT} ([^"\\{{}}{PLAIN}] | "{{" name ("." name)? "}}"){characters} {_DOUBLE}""",
        "comment": f'"# " [^{PLAIN}]{characters}',
        "type": f'name ("[" {row("name", comma, 3)} "]")? {said(" | None")}?',
        "operator": one_of((" + ", " - ", " * ", " / ", " // ", " % ", " ** ")),
        "compare": one_of(
            (" == ", " != ", " < ", " <= ", " > ", " >= ", " in ", " not in ", " is ", " is not ")
        ),
        "docstring": rf"""{_OPENED} [^"\\{PLAIN}]{{1,120}} {_CLOSED}""",
        "parameter": 'name (": " type)?',
        "optional": 'parameter " = " (number | string | "None")',
    }
    for depth in range(MAX_NESTED + 1):
        found |= _expressions(depth)
    for depth in range(MAX_DEPTH, 0, -1):
        for loop in ("", "-loop") if depth > 1 else ("",):
            found |= _block(depth, loop)
    imports = ""
    if code.imports:
        module = one_of(code.imports)
        imported = f'"import " {module} | "from " {module} " import " {row("name", comma, 4)}'
        imports = f"(({imported}) {_LINE}){{0,4}} ({_LINE} {_LINE})?"
    if code.parameters is not None:
        parameters = said(", ".join(code.parameters))
    else:  # those with a default stand last
        first, last = row("parameter", comma, 4), row("optional", comma, 2)
        parameters = f"({first} ({comma} {last})? | {last})?"
    found["root"] = (
        f'{imports} "def " {said(code.name) if code.name else "name"} "(" {parameters} ")" (" -> " type)? ":" '
        "docstring? block-1"
    )
    return found


def _expressions(depth: int) -> dict[str, str]:
    """The rules of expressions in which `depth` brackets may stand inside of each other."""
    atom = ['name ("." name){0,2}']
    found = {}
    if depth:
        inner = f"value-{depth - 1}"
        comma = said(", ")
        listed = row(inner, comma, 6)
        pair = f'{inner} ": " {inner}'
        loop = f'" for " name (", " name)? " in " any-{depth - 1} (" if " any-{depth - 1})?'
        found[f"call-{depth}"] = (
            f'"(" ({listed} (", " name "=" {inner})? | name "=" {inner} | {inner} {loop})? ")"'
        )
        trailer = f'("." name | call-{depth} | "[" ({inner} | {inner}? ":" {inner}?) "]")'
        atom = [
            f"name {trailer}{{0,4}}",
            f'string "." name call-{depth}',
            f'"(" {inner} ")"',
            f'"[" ({listed})? "]"',
            f'"[" {inner} {loop} "]"',
            f'"{{" ({row(pair, comma, 6)})? "}}"',
            f'"{{" {inner} ": " {inner} {loop} "}}"',
        ]
    found |= {
        f"atom-{depth}": " | ".join([*atom, "number", "string", "format", '"True"', '"False"', '"None"']),
        f"sum-{depth}": row(f'"-"? atom-{depth}', "operator", 3),
        f"test-{depth}": f'"not "? sum-{depth} (compare sum-{depth})?',
        f"any-{depth}": row(f"test-{depth}", one_of((" and ", " or ")), 3),
        f"value-{depth}": f'any-{depth} (" if " any-{depth} " else " any-{depth})?',
    }
    return found


def _block(depth: int, loop: str) -> dict[str, str]:
    """The rules of a block that is indented so often.

    Args:
        loop: `-loop` inside of a loop, where break and continue may stand.
    """
    line = said("\n" + "    " * depth)
    value = f"value-{MAX_NESTED}"
    simple = [
        f'name ("." name | "[" value-0 "]")? {one_of((" = ", " += ", " -= ", " *= "))} {value}',
        f'name ", " name " = " {value}',
        f'name ("." name)? call-{MAX_NESTED} ("." name call-{MAX_NESTED})?',
        f'"return" (" " {value})?',
        '"raise " name "(" (string | format)? ")"',
        '"pass"',
        *(('"break"', '"continue"') if loop else ()),
    ]
    found = {f"line-{depth}{loop}": " | ".join(simple)}
    statement = [f"line-{depth}{loop}"]
    if depth < MAX_DEPTH:
        inner, looped = f"block-{depth + 1}{loop}", f"block-{depth + 1}-loop"
        statement += [
            f'"if " {value} ":" {inner} ({line} "elif " {value} ":" {inner}){{0,3}} ({line} "else:" {inner})?',
            f'"for " name (", " name)? " in " {value} ":" {looped}',
            f'"while " {value} ":" {looped}',
            f'"try:" {inner} {line} "except " name (" as " name)? ":" {inner}',
        ]
    found[f"block-{depth}{loop}"] = f"(({line} comment)? {line} {either(statement)}){{1,{MAX_LINES}}}"
    return found


def problem(code: Python, text: str) -> str | None:
    """Why a text is not one such function, in what can be told without running it; None if it is."""
    if len(text) > MAX_TEXT:
        return f"it is longer than {MAX_TEXT:,} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they quote the text
            tree = ast.parse(text)
            compile(tree, "function", "exec")  # finds what stands in the wrong place; nothing is run
    except SyntaxError as error:
        return f"it is no Python (line {error.lineno})" if error.lineno else "it is no Python"
    except (ValueError, MemoryError, RecursionError):
        return "it is no Python, or is nested too deeply"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(functions) != 1:
        return f"there are {len(functions)} functions where one is asked for"
    if not all(isinstance(node, ast.Import | ast.ImportFrom) or node is functions[0] for node in tree.body):
        return "there is more than the function and its imports"
    if code.name is not None and functions[0].name != code.name:
        return f"the function is not called {code.name}"
    if functions[0].decorator_list:
        return "the function has a decorator"
    if code.parameters is not None and not _fits(functions[0].args, _arguments(code.parameters)):
        return f"the function does not take {', '.join(_named(code.parameters)) or 'no parameter'}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["" if node.level else node.module or ""]
        elif isinstance(node, ast.Name) and node.id == "__import__":
            modules = [""]
        else:
            continue
        if not set(modules) <= set(code.imports):
            return f"it imports what is not allowed; {', '.join(code.imports) or 'nothing'} is"
    return None


def values(code: Python, text: str) -> list[tuple[int, int]]:
    """Where literals, comments and names of one's own stand: [start, end) in characters, without quotes."""
    known = {code.name, *_named(code.parameters or ()), *_NAME.findall(" ".join(code.imports)), *_known()}
    for module, names in _IMPORTED.findall(text):
        known |= set(_NAME.findall(names)) if module in code.imports else set()
    for module in code.imports:
        known |= set(re.findall(rf"\b{re.escape(module)}\.(\w+)", text))
    found = []
    for piece in _pieces(text):
        inside = text[piece.start : piece.end]
        # A word at the end may be half of one.
        half = piece.end == len(text) and any(name and name.startswith(inside) for name in known)
        if piece.start < piece.end and not (piece.kind == "word" and (inside in known or half)):
            found.append((piece.start, piece.end))
    return found


def filled(code: Python, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted function with values; a mark outside of quotes becomes a literal."""
    result, at = "", 0
    for piece in _pieces(example):
        inside = example[piece.start : piece.end]
        result += example[at : piece.start]
        at = piece.end
        if piece.kind == "mark":
            mark = MARK.fullmatch(inside)
            result += repr(value_of(mark, slots, dice, quoted=False)) if mark else inside
        else:
            result += substituted(inside, slots, dice, piece.escaped)
    return result + example[at:]


def mistakes(code: Python) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the signature or the imports, as (place, sentence)."""
    if code.name is not None and (not _NAME.fullmatch(code.name) or keyword.iskeyword(code.name)):
        yield ("name",), "is no name of a function; write letters, digits and _, as in net_price"
    parameters = code.parameters or []
    wrong = [index for index, one in enumerate(parameters) if "\n" in one or len(_named([one])) != 1]
    for index in wrong:
        yield ("parameters", index), "is no parameter; write it as in a function: rows: list[dict]"
    if parameters and not wrong and not _named(parameters):
        yield ("parameters",), "do not stand together in a function; give each its own name, defaults last"
    for index, module in enumerate(code.imports):
        if not _MODULE.fullmatch(module):
            yield ("imports", index), "is no name of a module; write one such as math or os.path"


@dataclass(frozen=True)
class _Piece:
    """A stretch of Python that is not plain structure: [start, end) in characters, without quotes.

    Args:
        kind: text, word, number, comment or mark.
        prefix, quote: what stands in front of a text, and what ends it.
    """

    kind: str
    start: int
    end: int
    prefix: str = ""
    quote: str = ""

    def escaped(self, value: str) -> str:
        """A value as it is written inside."""
        if self.kind == "comment":
            return " ".join(value.split())
        if "r" in self.prefix:  # no way to escape
            return " ".join(value.replace("\\", " ").replace(self.quote[0], " ").split())
        if "b" in self.prefix:
            value = value.encode("ascii", "replace").decode()
        value = value.replace("\\", "\\\\").replace(self.quote[0], f"\\{self.quote[0]}")
        value = value.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\x00")
        return value.replace("{", "{{").replace("}", "}}") if "f" in self.prefix else value


def _pieces(text: str) -> Iterator[_Piece]:
    for found in _SCANNER.finditer(text):
        kind = found.lastgroup or ""
        if kind == "text":
            yield _Piece("text", *found.span("inside"), found["prefix"].lower(), found["quote"])
        elif kind != "other":
            yield _Piece(kind, *found.span())


def _fits(written: ast.arguments, wanted: ast.arguments | None) -> bool:
    """Whether parameters have the names, the order and the kinds that are wanted, and no other types."""
    if wanted is None:
        return False
    for kind in ("posonlyargs", "args", "kwonlyargs", "vararg", "kwarg"):
        pair = [getattr(one, kind) for one in (written, wanted)]
        ours, theirs = (one if isinstance(one, list) else [one] if one else [] for one in pair)
        if [one.arg for one in ours] != [one.arg for one in theirs]:
            return False
        for one, other in zip(ours, theirs, strict=True):
            types = [ast.unparse(each.annotation) for each in (one, other) if each.annotation]
            if len(set(types)) > 1:
                return False
    return True


def _parameters(arguments: ast.arguments) -> list[str]:
    """The names of parameters, in order."""
    listed = [*arguments.posonlyargs, *arguments.args]
    listed += [arguments.vararg] if arguments.vararg else []
    listed += arguments.kwonlyargs
    return [one.arg for one in [*listed, *([arguments.kwarg] if arguments.kwarg else [])]]


def _named(parameters: Sequence[str]) -> list[str]:
    """The names of parameters that a person wrote; none if they are no parameters together."""
    arguments = _arguments(parameters)
    return _parameters(arguments) if arguments is not None else []


def _arguments(parameters: Sequence[str]) -> ast.arguments | None:
    """Parameters that a person wrote; None if they are none together."""
    try:
        tree = ast.parse(f"def f({', '.join(parameters)}): pass")
        compile(tree, "parameters", "exec")  # also finds a name that stands twice
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    function = tree.body[0]
    return function.args if isinstance(function, ast.FunctionDef) and len(tree.body) == 1 else None


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Names that are nobody's own: keywords, what is built in, and the methods of built-in types."""
    types = [one for one in vars(builtins).values() if isinstance(one, type)]
    return frozenset([*keyword.kwlist, *dir(builtins), *(name for one in types for name in dir(one)), "self"])
