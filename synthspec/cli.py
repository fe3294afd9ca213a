"""The verbs a person types; what they do is elsewhere."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from synthspec import __version__, progress
from synthspec.errors import Stopped, UserError

app = typer.Typer(
    name="synthspec",
    help="Train a fast speculative drafter for production traffic without looking at it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs_app = typer.Typer(help="Look at run folders, or remove one.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(runs_app, name="runs")
grammar_app = typer.Typer(help="Look at grammars by themselves.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(grammar_app, name="grammar")

speedup_app = typer.Typer(
    help="See what an acceptance length is worth.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(speedup_app, name="speedup")
worker_app = typer.Typer(
    help="Start a SGLang server, or look at some.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(worker_app, name="worker")

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="A spec file, or the folder it is in.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or its name, or a spec file.")]
Runs = Annotated[
    Path | None, typer.Option("--runs", metavar="DIR", help="Where run folders are; runs/ beside the spec.")
]
RunsHere = Annotated[
    Path | None, typer.Option("--runs", metavar="DIR", help="Where the run of that name is; runs/ here.")
]
GrammarPath = Annotated[Path, typer.Argument(metavar="GRAMMAR", help="A grammar file.")]
Model = Annotated[
    str, typer.Option("--target", metavar="MODEL", help="smollm2, a folder, or owner/name@commit.")
]
ServedModel = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="smollm2, a folder, or owner/name@commit.")
]
Tp = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the model.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the server listens.")]
Interpreter = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Interpreter of the environment that holds SGLang.")
]
Flags = Annotated[
    list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="More flags, as SGLang takes them.")
]
Engine = Literal["llguidance", "sglang", "vllm"]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"synthspec {__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    as_json: Json = False,
) -> None:
    """Start a project: a commented spec, grammars and prompts that run as they are."""
    from synthspec.project import create

    spec = create(folder)
    _answer(
        {"project": str(folder), "spec": str(spec)},
        f"{folder} is ready. Look at {spec}, then:\n\n  synthspec plan {spec}\n  synthspec run {spec}",
        as_json,
    )


@app.command()
def plan(spec: SpecPath, runs: Runs = None, as_json: Json = False) -> None:
    """Say what is wrong with a spec, or what a run of it will do and how big it is."""
    from synthspec.plan import make_plan, table

    _quiet_if(as_json)
    found = make_plan(spec, runs)
    if as_json:
        _print(found.as_json())
    else:
        _show(table(found))


@app.command()
def preview(
    spec: SpecPath,
    n: Annotated[int, typer.Option("-n", min=1, max=50, help="Requests a grammar.")] = 2,
    as_json: Json = False,
) -> None:
    """Take a few requests of each grammar through the target; nothing is written."""
    from synthspec.preview import make_preview, page

    _quiet_if(as_json)
    found = make_preview(spec, n)
    if as_json:
        _print({"requests": found})
    else:
        _show(page(found))


@app.command()
def run(
    spec: SpecPath,
    until: Annotated[
        str | None, typer.Option("--until", metavar="STAGE", help="Stop after this stage.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Start at this stage; those before are done.")
    ] = None,
    fresh: Annotated[
        str | None,
        typer.Option("--fresh", metavar="STAGE", help="Throw away what this and all later stages made, first."),
    ] = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Do everything that is not done yet, from prompts to the report."""
    from synthspec.stages.table import span, stage_named

    span(first, until)
    if fresh:
        stage_named(fresh)
    _flow("run", spec, runs, as_json, first=first, last=until, fresh=fresh)


@app.command()
def produce(run: RunPath, runs: Runs = None, as_json: Json = False) -> None:
    """Pull, match, render, generate, conform, assemble: up to the training set."""
    _flow("produce", run, runs, as_json)


@app.command()
def train(run: RunPath, runs: Runs = None, as_json: Json = False) -> None:
    """Train the drafter; on several GPUs: torchrun --nproc-per-node N -m synthspec train RUN."""
    from synthspec.start import on_ranks, train_on_ranks

    if not on_ranks():
        _flow("train", run, runs, as_json)
        return
    _quiet_if(as_json)
    if folder := train_on_ranks(run, runs):
        _summary(folder, as_json)


@app.command()
def measure(run: RunPath, runs: Runs = None, as_json: Json = False) -> None:
    """Measure acceptance lengths by real speculative decoding, before and after training."""
    _flow("check", run, runs, as_json, only=["measure"])


@app.command()
def check(
    run: RunPath,
    override: Annotated[
        bool, typer.Option("--ship-anyway", help="Export a refused drafter; the report will say so.")
    ] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Decide whether the drafter may ship, measuring first where need be, and export it; exit code 3 if not."""
    _flow("check", run, runs, as_json, override=override)


@app.command()
def export(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")],
    layout: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Who loads it: sglang, vllm or transformers.")
    ] = "sglang",
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Write a run's exported drafter again, as another engine loads it."""
    from synthspec.gatekeeping import export_as
    from synthspec.run import open_run

    _quiet_if(as_json)
    export_as(open_run(run, runs), layout, out)
    _answer({"export": str(out), "format": layout}, f"{out} is written, for {layout}.", as_json)


@app.command()
def report(run: RunPath, runs: Runs = None, as_json: Json = False) -> None:
    """Write report.html again."""
    _flow("check", run, runs, as_json, only=["report"])


@runs_app.command("ls")
def runs_ls(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A project, or its runs folder.")] = Path(),
    as_json: Json = False,
) -> None:
    """List run folders."""
    from synthspec.runfolders import list_table, summaries

    found, unreadable = summaries(folder)
    if as_json:
        _print({"runs": found, "unreadable": unreadable})
    else:
        _show(list_table(found, folder))
        for sentence in unreadable:
            typer.echo(sentence, err=True)


@runs_app.command("show")
def runs_show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its name.")],
    runs: RunsHere = None,
    as_json: Json = False,
) -> None:
    """Show what a run did, stage by stage, and what came out."""
    from synthspec.run import run_folder
    from synthspec.runfolders import show_table, summary

    found = summary(run_folder(run, runs))
    if as_json:
        _print(found)
    else:
        _show(show_table(found))


@runs_app.command("rm")
def runs_rm(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    runs: RunsHere = None,
    as_json: Json = False,
) -> None:
    """Remove a run folder, after saying what goes and what else uses it."""
    from synthspec.run import run_folder
    from synthspec.runfolders import removal, removal_text, remove

    run = run_folder(run, runs)
    what = removal(run)
    if not as_json:
        typer.echo(removal_text(what))
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise UserError(f"nothing is removed: add --yes to remove {run}")
        if not typer.confirm("Remove it?", default=False):
            raise UserError("nothing is removed")
    remove(run)
    facts = {
        "removed": str(run),
        "bytes": what.bytes,
        "parts": what.parts,
        "used_by": [str(user) for user in what.users],
    }
    _answer(facts, f"{run} is removed.", as_json)


@grammar_app.command("check")
def grammar_check(
    paths: Annotated[list[Path], typer.Argument(metavar="GRAMMAR...", help="Files, or folders of files.")],
    as_json: Json = False,
) -> None:
    """Tell every mistake in grammars, and what an engine cannot hold a target to."""
    from synthspec.grammar_pages import checked
    from synthspec.grammar_verbs import check

    found = check(paths)
    if as_json:
        _print({"grammars": found})
    else:
        _show(checked(found))


@grammar_app.command("show")
def grammar_show(
    path: GrammarPath,
    target: Model = "smollm2",
    seed: Annotated[int, typer.Option("--seed", min=0, help="What values are drawn with.")] = 0,
    engine: Annotated[Engine, typer.Option("--engine", help="Whose constraint.")] = "llguidance",
    as_json: Json = False,
) -> None:
    """Show what a grammar means: the conversation, the constraint, and filled examples with their spans."""
    from synthspec.grammar_pages import shown
    from synthspec.grammar_verbs import show
    from synthspec.targets.load import tokenizer_named

    found = show(path, tokenizer_named(target), seed)
    if as_json:
        _print(found)
    else:
        _show(shown(found, engine))


@grammar_app.command("conform")
def grammar_conform(
    path: GrammarPath,
    completions: Annotated[Path, typer.Argument(metavar="COMPLETIONS", help="JSON lines of completions.")],
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="MODEL", help="Whose tokens; for spans, and for token ids."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say of every completion whether it is what the grammar says; --json gives a line for each."""
    from synthspec.grammar_verbs import conform
    from synthspec.targets.load import tokenizer_named

    counts: dict[str, int] = {}
    for row in conform(path, completions, tokenizer_named(target) if target else None):
        counts[row["state"]] = counts.get(row["state"], 0) + 1
        typer.echo(json.dumps(row, ensure_ascii=False) if as_json else _verdict_line(row))
    if not as_json:
        total = sum(counts.values())
        typer.echo(f"{counts.get('kept', 0):,} of {total:,} kept")


def _verdict_line(row: dict[str, Any]) -> str:
    spans = ", ".join(f"{count} {kind}" for kind, count in row.get("spans", {}).items())
    return f"{row['line']}: {row['state']}" + (
        f", {row['reason']}" if row["reason"] else f" ({spans})" if spans else ""
    )


@grammar_app.command("from-openapi")
def grammar_from_openapi(
    document: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An OpenAPI document, MCP tools/list answer, list of tools, or JSON Schema."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the grammars go.")] = Path(
        "grammars"
    ),
    wire_format: Annotated[str, typer.Option("--wire-format", help="How the target writes a call.")] = "hermes",
    as_json: Json = False,
) -> None:
    """Make a grammar from the description of an interface."""
    from synthspec.grammar_verbs import import_grammar

    file, notes = import_grammar(document, out, wire_format)
    _answer(
        {"grammar": str(file), "notes": notes},
        "\n".join([*notes, f"{file} is written; look at it, then: synthspec grammar check {file}"]),
        as_json,
    )


@worker_app.command("start", context_settings={"ignore_unknown_options": True})
def worker_start(
    model: ServedModel,
    drafter: Annotated[
        Path | None, typer.Option("--drafter", metavar="DIR", help="Decode with this DFlash drafter.")
    ] = None,
    tp: Tp = 1,
    host: Annotated[str, typer.Option("--host", help="Where it listens.")] = "127.0.0.1",
    port: Port = 30000,
    python: Interpreter = sys.executable,
    more: Flags = None,
) -> None:
    """Run a SGLang server with the flags that synthspec needs, and start it again when it dies."""
    from synthspec.targets.launch import Launch, supervise
    from synthspec.targets.load import place_named

    place = place_named(model, "--model")
    launch = Launch(
        place.path, place.commit, drafter, tp, host=host, port=port, python=python, more=tuple(more or ())
    )
    supervise(launch, lambda text: typer.echo(text), lambda line: typer.echo(line, err=True))


@speedup_app.command("simulate", context_settings={"ignore_unknown_options": True})
def speedup_simulate(
    model: ServedModel,
    drafter: Annotated[
        Path, typer.Option("--drafter", metavar="DIR", help="A DFlash drafter, whose cost counts.")
    ],
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N,...", help="Acceptance lengths to pretend.")
    ] = "1,2,3,4,6",
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,N,...", help="Requests at the same time.")
    ] = "1",
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests at each concurrency.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", min=8, help="New tokens of each request.")] = 128,
    tp: Tp = 1,
    port: Port = 30000,
    python: Interpreter = sys.executable,
    more: Flags = None,
    as_json: Json = False,
) -> None:
    """Time a SGLang server that pretends acceptance lengths, against one without a drafter."""
    from dataclasses import asdict

    from synthspec.speedup.simulate import Load, simulate, table
    from synthspec.targets.launch import Launch
    from synthspec.targets.load import place_named

    _quiet_if(as_json)
    place = place_named(model, "--model")
    launch = Launch(place.path, place.commit, drafter, tp, port=port, python=python, more=tuple(more or ()))
    pretended = _numbers(lengths, "--lengths", 1.0)
    loads = [Load(int(n), requests, new_tokens=tokens) for n in _numbers(concurrency, "--concurrency", 1, int)]
    with progress.bar("servers", 1 + len(pretended), "servers") as tick:
        found = simulate(launch, pretended, loads, tick)
    if as_json:
        _print({"speeds": [asdict(one) for one in found]})
    else:
        _show(table(found))


def _numbers(text: str, option: str, least: float, kind: Callable[[str], float] = float) -> list[float]:
    """Numbers with commas between them, each once."""
    try:
        found = [kind(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= one < 1e4 for one in found):
        which = "whole numbers" if kind is int else "numbers"
        raise UserError(
            f"{option}: write {which} of at least {least:g} with commas between them, such as 1,2,4"
        )
    return list(dict.fromkeys(found))


@worker_app.command("check")
def worker_check(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Addresses of SGLang or vLLM servers.")],
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="SPEC", help="Whose target they must be.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--key-env", metavar="NAME", help="Environment variable that holds their key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say who servers are and what they can do; with --spec, whether they are its target."""
    from synthspec.keys import read_key
    from synthspec.spec import Key, address
    from synthspec.worker_verbs import check, table

    _quiet_if(as_json)
    for url in urls:
        try:
            address(url)
        except ValueError as error:
            raise UserError(str(error)) from None
    key = None if key_env is None else read_key(Key(env=key_env or " "), Path(), "--key-env")
    found = check(urls, spec, key)
    if as_json:
        _print({"workers": found})
    else:
        _show(table(found))


def _flow(name: str, path: Path, runs: Path | None, as_json: bool, **options: Any) -> None:
    """Run a flow; then print what the run folder holds, also where the gate refused."""
    from synthspec.errors import GateRefused
    from synthspec.start import run_flow

    _quiet_if(as_json)
    refused: GateRefused | None = None
    try:
        folder = run_flow(name, path, runs, options)
    except GateRefused as error:
        from synthspec.run import open_run

        folder, refused = open_run(path, runs).folder, error
    _summary(folder, as_json)
    if refused:
        raise refused


def _summary(folder: Path, as_json: bool) -> None:
    """Print what a run folder holds."""
    from synthspec.runfolders import show_table, summary

    found = summary(folder)
    if as_json:
        _print(found)
    else:
        _show(show_table(found))


def _quiet_if(as_json: bool) -> None:
    if as_json:
        progress.be_quiet()


def _answer(facts: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _print(facts)
    else:
        typer.echo(text)


def _print(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def _show(what: Any) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a file or a pipe has no edge to wrap at
    console.print(what)


STOPPED = "stopped by SIGTERM; run the same command again"
GRACE = 30.0  # seconds to end by itself, once told


def _terminated(number: int, frame: Any) -> None:
    """Stop in an orderly way; where that hangs, since others got the signal too, stop all the same."""

    def at_once(*_: Any) -> None:
        typer.echo(f"synthspec: error: {STOPPED}", err=True)
        os._exit(4)

    signal.signal(signal.SIGTERM, at_once)
    watch = threading.Timer(GRACE, at_once)
    watch.daemon = True
    watch.start()
    raise Stopped(STOPPED)


def main() -> None:
    """Run a command; tell every failure in words, with the exit code that its kind has."""
    from synthspec.failures import exit_code_of

    # Libraries read these when they are imported; their bars would come between ours.
    for name, value in (
        ("TQDM_DISABLE", "1"),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        result = app(prog_name="synthspec", standalone_mode=False)
        if result == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(result if isinstance(result, int) else 0)
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        sys.exit(exit_code_of(error, as_json="--json" in sys.argv))
