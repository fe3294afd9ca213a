"""The stages from prompts to the training set: reading and writing around the functions that do the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import content_id, write_text
from synthspec.ledger import Counts, count
from synthspec.run import Run
from synthspec.stages.facts import (
    loaded_target,
    project_grammars,
    run_grammars,
    tokenizer_of,
    unlock,
    worker_key,
)

if TYPE_CHECKING:
    from synthspec.prompting.exchange import Exchanges

Row = dict[str, Any]


def pull(run: Run) -> Counts:
    """Copy the grammars and read every prompt source; unit: prompt."""
    from synthspec.grammar.model import grammar_files
    from synthspec.prompting.pull import pull as pull_source
    from synthspec.samples.schema import PROMPTS, write_rows

    found_grammars = project_grammars(run.spec, run.root)
    for file, grammar in zip(grammar_files(run.root, run.spec.grammars), found_grammars, strict=True):
        write_text(run.path(f"grammars/{grammar.name}.yaml"), file.read_text("utf-8-sig"))
        if grammar.catalogue is not None:
            tools = (file.parent / grammar.catalogue.file).read_text("utf-8-sig")
            write_text(run.path(f"grammars/catalogues/{grammar.name}.yaml"), tools)
    rows: list[Row] = []
    states: list[str] = []
    seen: set[str] = set()
    unlock(run)
    with progress.bar("pull", None, "prompts") as tick:
        for source in run.spec.prompts:
            found, became = pull_source(source, run.root, seen, tick)
            rows += found
            states += became
    _some(rows, run, "pull", "no prompt could be read from any source", states)
    write_rows(run.path("prompts/prompts.parquet"), PROMPTS, rows)
    return count("prompt", states)


def match(run: Run) -> Counts:
    """Pair prompts with grammars; unit: prompt."""
    from synthspec.prompting.match import match as match_prompts
    from synthspec.samples.schema import MATCHES, write_rows

    prompts = run.rows("prompts/prompts.parquet")
    with progress.bar("match", len(prompts), "prompts") as tick:
        rows, states = match_prompts(prompts, run_grammars(run), run.spec, tick)
    _some(rows, run, "match", "no prompt fits any grammar", states)
    write_rows(run.path("matches/matches.parquet"), MATCHES, rows)
    return count("prompt", states)


def render(run: Run) -> Counts:
    """Write out conversations; unit: match."""
    from synthspec.grammar.slots import asked_slots
    from synthspec.prompting.render import render as render_matches
    from synthspec.samples.schema import REQUESTS, SLOT_VALUES, write_rows
    from synthspec.targets.answer import asking, in_order
    from synthspec.targets.asked import by_slot, longest_value, write_values

    grammars = run_grammars(run)
    values: list[Row] = []
    if asked := asked_slots(grammars):
        target = loaded_target(run)
        with (
            progress.bar("fill slots", sum(slot.values for *_, slot in asked), "values") as tick,
            asking(target, run.spec.worker, longest_value(grammars), worker_key(run)) as ask,
        ):
            values = write_values(grammars, target, ask, run.spec.seed, tick=tick)
        write_rows(run.path("requests/slots.parquet"), SLOT_VALUES, values)
        told = count("value", [row["state"] for row in values])
        states_of_values = ", ".join(f"{n:,} {state}" for state, n in told.dropped.items())
        progress.say(
            f"  slots     {told.kept:,} of {told.requested:,} values kept, {states_of_values}".rstrip(", ")
        )
        run.enter("slots", told)
    matches = run.rows("matches/matches.parquet")
    prompts = run.rows("prompts/prompts.parquet")
    with progress.bar("render", len(matches), "matches") as tick:
        rows, states = render_matches(
            matches, prompts, grammars, tokenizer_of(run), run.spec, tick, by_slot(values)
        )
    _some(rows, run, "render", "every conversation is too long, or holds a value that does not fit", states)
    write_rows(run.path("requests/requests.parquet"), REQUESTS, sorted(rows, key=in_order))
    return count("match", states)


def generate(run: Run) -> Counts:
    """Let the target answer, turn by turn; unit: request."""
    from synthspec.samples.schema import Table

    played = {grammar.name: len(grammar.played) for grammar in run_grammars(run)}
    first = Table(run.path("requests/requests.parquet"))
    wanted = sum(1 + played.get(row["grammar"], 0) for row in first.rows(["grammar"]))
    asked, answered = _answered(run, 0)
    unfit = 0
    if any(played.values()):
        exchanges = _exchanges(run)
        for turn in range(1, 1 + max(played.values())):
            unfit += _go_on(run, exchanges, turn)
            more = _answered(run, turn)
            asked, answered = asked + more[0], answered + more[1]
    lost = {"error": asked - answered, "invalid": unfit, "unplayed": wanted - asked - unfit}
    return Counts("request", wanted, answered, {state: n for state, n in lost.items() if n})


def _files(turn: int) -> tuple[str, str]:
    """Where the requests for one of the target's turns are, and the folder of their completions."""
    if not turn:
        return "requests/requests.parquet", "completions"
    return f"completions/turn-{turn}/requests.parquet", f"completions/turn-{turn}/answers"


def _answered(run: Run, turn: int) -> tuple[int, int]:
    """Let the target answer all requests of one turn; how many there are, and how many it answered."""
    from synthspec.samples.schema import Table
    from synthspec.targets.answer import answer

    file, folder = map(run.path, _files(turn))
    folder.mkdir(parents=True, exist_ok=True)  # nothing may be asked for
    requests = Table(file)
    name = f"generate, turn {turn + 1}" if turn else "generate"
    with progress.bar(name, len(requests), "requests", resumes=True) as tick:
        answer(
            file,
            loaded_target(run),
            run.spec.worker,
            folder,
            tick,
            how=run.spec.generate,
            key=worker_key(run),
            piece=run.piece,
        )
    return len(requests), sum(len(Table(part)) for part in folder.glob("*.parquet"))


def _exchanges(run: Run) -> Exchanges:
    from synthspec.prompting.exchange import Exchanges
    from synthspec.prompting.render import Conversations
    from synthspec.targets.asked import by_slot

    grammars = {grammar.name: grammar for grammar in run_grammars(run)}
    slots = run.path("requests/slots.parquet")
    tokenizer = tokenizer_of(run)
    conversations = Conversations(
        run.rows("prompts/prompts.parquet"),
        grammars.values(),
        tokenizer,
        run.spec,
        by_slot(run.rows("requests/slots.parquet") if slots.exists() else []),
    )
    return Exchanges(conversations, run.rows("matches/matches.parquet"), grammars, tokenizer)


def _go_on(run: Run, exchanges: Exchanges, turn: int) -> int:
    """Write the requests of a turn, from the answers of the one before; how many conversations do not go on."""
    from synthspec.samples.schema import REQUESTS, write_rows
    from synthspec.targets.answer import in_order

    asked, answers = _files(turn - 1)
    rows, unfit = exchanges.go_on(run.rows(asked), run.rows(answers))
    file = run.path(_files(turn)[0])
    if not file.exists():
        write_rows(file, REQUESTS, sorted(rows, key=in_order))
    return unfit


def _turns(run: Run) -> list[int]:
    """The turns that were asked for."""
    return [0, *range(1, 1 + len(list(run.path("completions").glob("turn-*"))))]


def conform(run: Run) -> Counts:
    """Parse and validate answers, label their spans; unit: completion."""
    from synthspec.grammar.conform import judge
    from synthspec.samples.schema import SAMPLES, write_rows

    tokenizer = tokenizer_of(run)
    grammars = {grammar.name: grammar for grammar in run_grammars(run)}
    turns = [_files(turn) for turn in _turns(run)]
    requests = {row["id"]: row for asked, _ in turns for row in run.rows(asked)}
    prompts = {row["id"]: row for row in run.rows("prompts/prompts.parquet")}
    completions = [row for _, answers in turns for row in run.rows(answers)]
    rows: list[Row] = []
    states: list[str] = []
    reasons: list[str] = []
    with progress.bar("conform", len(completions), "completions") as tick:
        for completion in completions:
            request = requests[completion["request_id"]]
            grammar = grammars.get(request["grammar"])
            verdict = judge(request, completion["ids"], completion["finish_reason"], grammar, tokenizer)
            states.append(verdict.state)
            if verdict.state == "kept":
                prompt = prompts[request["prompt_id"]]
                rows.append(_sample(prompt, request, completion, verdict.spans, run.spec.generate.decode))
            else:
                reasons.append(verdict.reason)
            tick(1)
    _some(rows, run, "conform", "no answer passed its checks", states, reasons)
    write_rows(run.path("samples/samples.parquet"), SAMPLES, sorted(rows, key=lambda row: row["id"]))
    return count("completion", states)


def _sample(
    prompt: Row, request: Row, completion: Row, spans: Iterable[tuple[str, int, int]], decode: str
) -> Row:
    """A row of `SAMPLES`; spans come in counted from the completion's first token."""
    before = len(request["prompt_ids"])
    ids = [*request["prompt_ids"], *completion["ids"]]
    placed = [{"kind": kind, "start": before + start, "end": before + end} for kind, start, end in spans]
    lineage = {name: prompt[name] for name in ("source", "dataset", "revision", "row", "licence")}
    return {
        "id": content_id("sample", request["id"], ids, placed),
        "purpose": request["purpose"],
        "grammar": request["grammar"],
        "set": request["set"],
        "turn": request["turn"],
        "input_ids": ids,
        "prompt_tokens": before,
        "loss_mask": [0] * before + [1] * len(completion["ids"]),
        "spans": placed,
        "constraint": request["constraint"],
        "held": bool(request["constraint"]) and decode == "constrained",
        "max_new_tokens": request["max_new_tokens"],
        "lineage": {
            **lineage,
            "prompt_id": prompt["id"],
            "match_id": request["match_id"],
            "request_id": request["id"],
            "completion_id": completion["id"],
            "target": completion["target"],
        },
    }


def assemble(run: Run) -> Counts:
    """Training set and evaluation sets; unit: sample."""
    from synthspec.samples import card
    from synthspec.samples.assemble import TRAIN, write
    from synthspec.samples.assemble import assemble as split

    samples = run.rows("samples/samples.parquet")
    with progress.bar("assemble", len(samples), "samples") as tick:
        sets, states = split(samples, run.rows("prompts/prompts.parquet"), run.spec, tick)
    _some(sets[TRAIN], run, "assemble", "no sample is left to train on", states)
    counts = count("sample", states)
    write(run.folder, sets, card.card(run.spec, sets, {**run.ledger().stages, "assemble": counts}))
    return counts


def _some(
    rows: list[Row], run: Run, stage: str, otherwise: str, states: list[str], reasons: Iterable[str] = ()
) -> None:
    """Refuse to go on with nothing, and say what became of all rows."""
    if rows:
        return
    became = ", ".join(f"{n:,} {state}" for state, n in Counter(states).most_common())
    often = Counter(reasons).most_common(3)
    why = "; most often: " + ", ".join(f"{reason} ({n:,})" for reason, n in often) if often else ""
    raise UserError(f"run {run.name}: stage {stage} left nothing: {otherwise} ({became or 'no rows'}){why}")
