"""Grammars in GBNF, the EBNF of llama.cpp that the engines share, written as rules by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

COMMA = '", "'  # as a fixed text

# Any character of a line, in a class: no control characters.
PLAIN = r"\x00-\x1f\x7f"

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def said(text: str) -> str:
    """A fixed text."""
    return '"' + "".join(_ESCAPES.get(one, one) for one in text) + '"'


def either(options: Iterable[str]) -> str:
    """One of some expressions, in brackets."""
    return "(" + " | ".join(options) + ")"


def one_of(texts: Iterable[str]) -> str:
    """One of some fixed texts."""
    return either(map(said, texts))


def row(item: str, between: str, most: int) -> str:
    """An expression once, or again and again with another between two, `most` times in all."""
    return item if most < 2 else f"{item} ({between} {item}){{0,{most - 1}}}"


def name_but(words: Iterable[str], first: str, rest: str, tail: str) -> str:
    """A name that is none of some words.

    Args:
        words: what it may not be.
        first, rest: the characters that it begins with, and those behind, such as `abc`; letters, digits, _.
        tail: rule of some or no characters of `rest`.
    """
    return _but(set(words), first, rest, tail, empty=False)


def _but(words: set[str], here: str, rest: str, tail: str, *, empty: bool) -> str:
    """What may stand behind a beginning that was cut off from all of `words`."""
    cut = {one: {word[1:] for word in words if word[:1] == one} for one in here}
    free = "".join(one for one in here if not cut[one])
    options = [f"[{_ranges(free)}] {tail}"] if free else []
    options += [
        f"{said(one)} {_but(ends, rest, rest, tail, empty='' not in ends)}" for one, ends in cut.items() if ends
    ]
    return either(options) + ("?" if empty else "")


def _ranges(characters: str) -> str:
    """Letters, digits and underscores in the words of a class: `a-cx` for `abcx`."""
    found: list[str] = []
    for one in sorted(characters):
        if found and ord(one) == ord(found[-1][-1]) + 1:
            found[-1] = f"{found[-1][0]}-{one}"
        else:
            found.append(one)
    return "".join(found)


def text(rules: Mapping[str, str], before: str = "", behind: str = "") -> str:
    """The whole grammar.

    `root` names one rule alone.  llguidance then reads a grammar without recursion as one word; of several it
    would take each as long as it can, and miss texts in which one ends where it could also go on.

    Args:
        rules: expressions by rule; `root` is what a text begins with.
        before, behind: fixed texts around all of it.
    """
    around = [*([said(before)] if before else []), "inside", *([said(behind)] if behind else [])]
    renamed = {"root": "whole", "whole": " ".join(around)}
    renamed |= {"inside" if name == "root" else name: rule for name, rule in rules.items()}
    return "".join(f"{name} ::= {rule}\n" for name, rule in renamed.items())
