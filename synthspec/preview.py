"""Preview: a few requests of each grammar from end to end, for a person to look at; nothing is written."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from synthspec import progress
from synthspec.errors import printable
from synthspec.run import open_run
from synthspec.stages import facts

Row = dict[str, Any]


def make_preview(path: Path, n: int) -> list[Row]:
    """Take `n` conversations of each grammar from the prompt to the checked completions.

    Returns:
        One object a request: `grammar`, `tool` (that the prompt is nearest to), `turn` (which of the target's
        own in its conversation, from 0), `prompt`, `source`, `licence`, `messages`, `conversation` (the text
        that the target reads), `slots`, `completion` (text), `state`, `reason` (why it is not kept, else
        empty), `finish_reason`, `tokens` and `spans`, a list of `kind` and `text`.

    Raises:
        UserError: the spec, a grammar, a source or the target is not as it must be.
    """
    from synthspec.grammar.conform import judge
    from synthspec.prompting.exchange import Exchanges
    from synthspec.prompting.match import match
    from synthspec.prompting.pull import pull
    from synthspec.prompting.render import Conversations
    from synthspec.targets.answer import asking, changed, completion
    from synthspec.targets.asked import by_slot, longest_value, write_values

    run = open_run(path)
    spec = run.spec
    grammars = {grammar.name: grammar for grammar in facts.project_grammars(spec, run.root)}
    prompts: dict[str, Row] = {}
    seen: set[str] = set()
    facts.unlock(run)
    with progress.bar("reading the prompts", None, "prompts") as tick:
        for source in spec.prompts:
            if source.name in spec.match:
                prompts.update((row["id"], row) for row in pull(source, run.root, seen, tick)[0])
        only_grammars = spec.model_copy(
            update={"ood": [], "replay": spec.replay.model_copy(update={"source": None, "sources": {}})}
        )
        matches = match(list(prompts.values()), list(grammars.values()), only_grammars)[0]
        chosen = [
            row for _, rows in groupby(sorted(matches, key=_by_grammar), _by_grammar) for row in list(rows)[:n]
        ]
    tools = {row["id"]: row["tool"] for row in chosen}
    tokenizer = facts.tokenizer_of(run)
    target = facts.loaded_target(run)
    every, key = [*grammars.values()], facts.worker_key(run)
    with (
        progress.bar("fill slots", None, "values") as tick,
        asking(target, spec.worker, longest_value(every), key) as ask,
    ):
        values = by_slot(write_values(every, target, ask, spec.seed, most=max(n, 8), tick=tick))
    conversations = Conversations(prompts.values(), every, tokenizer, spec, values)
    exchanges = Exchanges(conversations, chosen, grammars, tokenizer)
    begun = [conversations.begin(row) for row in chosen]
    if unfit := begun.count([]):
        progress.say(f"{unfit} of {len(begun)} prompts make no conversation: too long, or with control tokens")
    broken = 0
    requests = [row for rows in begun for row in rows]
    asked: list[tuple[Row, Any]] = []
    while requests:
        with progress.bar("the target answers", len(requests), "requests") as tick:
            # All grammars together: a step takes hardly longer for many rows than for one.
            longest = max(len(row["prompt_ids"]) + row["max_new_tokens"] for row in requests)
            with asking(target, spec.worker, longest, key, free=spec.generate.decode == "free") as ask:
                answers = ask([changed(row, spec.generate) for row in requests], tick)
        pairs = [*zip(requests, answers, strict=True)]
        asked += pairs
        requests, unfit = exchanges.go_on(requests, [completion(row, one, target) for row, one in pairs if one])
        broken += unfit
    if broken:
        progress.say(f"{broken} conversations do not go on: too long, or with control tokens in an answer")
    order = {row["id"]: place for place, row in enumerate(chosen)}
    shown: list[Row] = []
    for request, answered in sorted(asked, key=lambda pair: order[pair[0]["match_id"]]):
        ids, finish_reason = (answered.ids, answered.finish_reason) if answered else ([], "no answer")
        verdict = judge(request, ids, finish_reason, grammars[request["grammar"]], tokenizer)
        prompt = prompts[request["prompt_id"]]
        shown.append(
            {
                "grammar": request["grammar"],
                "tool": tools[request["match_id"]],
                "turn": request["turn"],
                "prompt": prompt["text"],
                "source": prompt["source"],
                "licence": prompt["licence"],
                "messages": json.loads(request["messages"]),
                "conversation": tokenizer.decode(request["prompt_ids"]),
                "slots": json.loads(request["slots"]),
                "completion": tokenizer.decode(ids),
                "state": verdict.state,
                "reason": verdict.reason,
                "finish_reason": finish_reason,
                "tokens": len(ids),
                "spans": [
                    {"kind": kind, "text": tokenizer.decode(ids[start:end])}
                    for kind, start, end in verdict.spans
                ],
            }
        )
    return shown


def _by_grammar(row: Row) -> str:
    return str(row["grammar"])


def page(requests: list[Row]) -> Any:
    """The previewed requests for the terminal: spans in colour, and values in brackets for those without."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    from synthspec.grammar_pages import coloured, legend

    told = legend().append(
        "\nA wrong value, or a call of another tool than the prompt is near to, is expected, since only "
        "structure is learned; a wrong structure is dropped."
    )
    parts: list[Any] = [told]
    for number, request in enumerate(requests, start=1):
        near = f" near {request['tool']}" if request["tool"] else ""
        turn = f", turn {request['turn'] + 1} of the target" if request["turn"] else ""
        parts.append(
            Rule(f"{number}. {request['grammar']}{turn}, prompt{near} from {request['source']}", align="left")
        )
        parts.append(Text(printable(request["conversation"])))
        why = f", because {request['reason']}" if request["reason"] else ""
        parts.append(Text(f"the target, {request['tokens']} tokens, {request['state']}{why}:", style="bold"))
        answer = (
            coloured(request["spans"])
            if request["spans"]
            else Text(printable(request["completion"]), style="red")
        )
        parts += [answer, Text()]
    return Group(*parts)
