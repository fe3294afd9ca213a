"""How calls and plain text follow each other in an answer, as a constraint."""

from __future__ import annotations

from synthspec.grammar.constraint import Free, Part, Text, choice, repeat, row
from synthspec.grammar.wire.answer import Calls


def around(
    begin: str,
    rest: Part,
    calls: Calls,
    tags: tuple[str, ...],
    between: str = "",
    behind_text: str = "",
    text: Part | None = None,
) -> Part:
    """An answer of blocks that each begin alike, and of plain text where it may stand.

    Args:
        begin: the text that each block begins with; it holds one of the tags.
        rest: what follows it to the block's end.
        calls: how many blocks, and where plain text may stand.
        tags: what plain text cannot hold.
        between: text between two blocks without plain text.
        behind_text: text between plain text and the block behind it.
        text: plain text before the first block, where not everything without tags may be that.
    """
    most = calls.most and calls.most - 1
    if calls.text == "between":
        more = row(Free(tags), Text(behind_text + begin), rest)
    else:
        more = row(Text(between + begin), rest)

    def blocks(before: str) -> Part:
        further = repeat(more, max(calls.least - 1, 0), most)
        behind = Free(tags) if calls.text == "between" else Text("")
        return row(Text(before + begin), rest, further, behind)

    some_text = text or Free(tags, least=1)
    if calls.text == "none":
        return repeat(blocks(""), min(calls.least, 1), 1)
    shapes = [] if calls.most == 0 else [blocks(""), row(some_text, blocks(behind_text))]
    return choice(shapes if calls.least else [*shapes, some_text])


def section(
    begin: str,
    call: Part,
    end: str,
    calls: Calls,
    tags: tuple[str, ...],
    between: str = "",
    behind_text: str = "",
    text: Part | None = None,
) -> Part:
    """An answer whose calls all stand in one block.

    Args:
        call: one call.
        end: the text that ends the block.
        between: text between two calls.
    """
    inside = repeat(call, max(calls.least, 1), calls.most, between)
    shape = Calls(min(calls.least, 1), 0 if calls.most == 0 else 1, calls.text)
    return around(begin, row(inside, Text(end)), shape, tags, behind_text=behind_text, text=text)
