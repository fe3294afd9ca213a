"""How fast the target answers: through our client against the engine's own benchmark, or in this process.

    python benchmarks/generate.py --url URL --model FOLDER [--python INTERPRETER] [--requests N] [--tokens N]
    python benchmarks/generate.py --memory
    python benchmarks/generate.py --embedded [--requests N]

With --url, our fleet and `sglang.bench_serving` (of the interpreter that holds SGLang) put as many requests of
the same shape to the same server, in turn, three times each; the medians of tokens a second are compared.  With
--memory, a client with a million queued requests runs for a while against a server that answers at once, and
its memory is read.  With --embedded, batched generation in this process is compared with transformers' own
`model.generate` in a loop, one request after the other under the same constraint, in float32.  Prints one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from statistics import median
from threading import Thread
from types import SimpleNamespace
from typing import Any

ROUNDS = 3
AT_ONCE = 16  # requests in flight, for both clients
SECONDS = 60.0  # that the client with many rows runs for

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--model", help="the server's model, for the tokenizer")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--embedded", action="store_true")
    given = parser.parse_args()
    found: Row = {}
    if given.url:
        found |= against_engine(given.url, given.model, given.python, given.requests, given.tokens)
    if given.memory:
        found["client_rss_mb_at_1m_rows"] = memory(1_000_000)
    if given.embedded:
        found |= embedded(given.requests)
    print(json.dumps(found))


def against_engine(url: str, model: str, python: str, requests: int, tokens: int) -> Row:
    ours, theirs = [], []
    for turn in range(ROUNDS):
        theirs.append(bench_serving(url, model, python, requests, tokens, turn))
        ours.append(our_client(url, model, requests, tokens, turn))
        print(f"round {turn}: ours {ours[-1]:.1f}, theirs {theirs[-1]:.1f} tokens/s", file=sys.stderr)
    return {
        "tokens_per_s": round(median(ours), 2),
        "engine_bench_tokens_per_s": round(median(theirs), 2),
        "ratio_to_engine_bench": round(median(ours) / median(theirs), 3),
    }


def bench_serving(url: str, model: str, python: str, requests: int, tokens: int, seed: int) -> float:
    """Tokens a second of the engine's own client."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        command = [
            python, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url, "--model", model,
            "--dataset-name", "random-ids", "--random-input-len", "128", "--random-output-len", str(tokens),
            "--random-range-ratio", "1.0", "--num-prompts", str(requests), "--max-concurrency", str(AT_ONCE),
            "--seed", str(seed), "--disable-tqdm", "--output-file", str(out),
        ]  # fmt: skip
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            sys.exit(told.stderr[-2000:])
        return float(json.loads(out.read_text().splitlines()[-1])["output_throughput"])


def our_client(url: str, model: str, requests: int, tokens: int, seed: int) -> float:
    from synthspec.spec import Servers, Target
    from synthspec.targets import fleet, servers, sglang
    from synthspec.targets.load import load_target

    fleet.START = AT_ONCE
    fleet.MOST = AT_ONCE
    plain = sglang.sampling
    sglang.sampling = lambda row: {**plain(row), "ignore_eos": True}  # as the other client does
    target = load_target(Target(model=model), "sglang")
    dice = random.Random(seed)
    rows = [
        {
            "prompt_ids": [dice.randrange(100, target.description["vocab_size"] - 100) for _ in range(128)],
            "max_new_tokens": tokens,
            "constraint": None,
            "grammar": "random",
            "set": None,
            "purpose": "grammar",
            "seed": 0,
        }
        for _ in range(requests)
    ]
    workers = servers.workers_of(target, Servers(kind="sglang", urls=[url]), 128 + tokens)
    try:
        with fleet.Fleet(workers) as asked:
            begun = time.perf_counter()
            answers = asked.ask(rows)
            seconds = time.perf_counter() - begun
    finally:
        sglang.sampling = plain
    assert all(answers), "a request was not answered"
    return sum(len(one.ids) for one in answers if one) / seconds


def memory(rows: int) -> int:
    """Peak memory, in MB, of a client with so many queued requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.parquet"
        write_requests(path, rows)
        server = QuietServer(("127.0.0.1", 0), AnswersAtOnce)
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        context = multiprocessing.get_context("spawn")
        told = context.Queue()
        client = context.Process(
            target=client_of, args=(str(path), folder, f"http://127.0.0.1:{server.server_port}", told)
        )
        client.start()
        most = told.get()
        client.kill()
        client.join()
        server.shutdown()
        return int(most)


def write_requests(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from synthspec.samples.schema import REQUESTS

    with pq.ParquetWriter(path, REQUESTS, compression="zstd") as writer:
        for start in range(0, rows, 1024):
            part = [
                {
                    "id": f"{number:016x}",
                    "purpose": "grammar",
                    "grammar": f"g{number * 8 // rows}",
                    "messages": "x" * 1000,
                    "prompt_ids": [(number + place) % 49_000 for place in range(300)],
                    "constraint": None,
                    "max_new_tokens": 64,
                    "seed": number,
                }
                for number in range(start, min(rows, start + 1024))
            ]
            writer.write_table(pa.Table.from_pylist(part, schema=REQUESTS))


class QuietServer(ThreadingHTTPServer):
    """Says nothing when the client has gone."""

    def handle_error(self, *args: object) -> None:
        pass


class AnswersAtOnce(BaseHTTPRequestHandler):
    """The least that a server must say."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"version": "0.5.23", "grammar_backend": "xgrammar", "model_path": "m"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.answer({"tokens": [1]})
            return
        meta = {
            "finish_reason": {"type": "stop"},
            "completion_tokens": 40,
            "prompt_tokens": len(body["input_ids"]),
        }
        self.answer({"output_ids": [7] * 40, "meta_info": meta})

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def client_of(path: str, folder: str, url: str, told: Any) -> None:
    from synthspec.spec import Servers
    from synthspec.targets.answer import answer

    tokenizer = SimpleNamespace(apply_chat_template=lambda messages, **_: [1])
    target = SimpleNamespace(
        settings=SimpleNamespace(revision=None),
        description={"model": "m", "vocab_size": 49_152},
        tokenizer=tokenizer,
        fingerprint="benchmark",
    )
    begun: list[float] = []
    done = 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        begun.append(time.monotonic()) if not begun else None
        if begun and time.monotonic() - begun[0] > SECONDS:
            print(f"{done:,} rows answered", file=sys.stderr)
            told.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
            time.sleep(60)

    answer(Path(path), target, Servers(kind="sglang", urls=[url]), Path(folder) / "out", tick)  # type: ignore[arg-type]
    told.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def embedded(most: int) -> Row:
    """Batched generation here against transformers' own, one request at a time."""
    import torch

    from synthspec.samples.schema import REQUESTS, read_rows, write_rows
    from synthspec.spec import InProcess, Target
    from synthspec.targets.answer import answer, in_order
    from synthspec.targets.load import load_target

    target = load_target(Target(dtype="float32"))
    rows = sorted([*requests_of_the_example(target.tokenizer)][:most], key=in_order)
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "requests.parquet", Path(folder) / "completions"
        write_rows(file, REQUESTS, rows)
        target.constraints.compile(rows[0]["constraint"])
        begun = time.perf_counter()
        answer(file, target, InProcess(), out)
        our_seconds = time.perf_counter() - begun
        ids_of = {row["request_id"]: row["ids"] for row in read_rows(out)}
    written = [ids_of[row["id"]] for row in rows]
    plain = plain_model(target)
    begun = time.perf_counter()
    with torch.inference_mode():
        theirs = [one_by_one(plain, target, row) for row in rows]
    their_seconds = time.perf_counter() - begun
    tokens = sum(map(len, written))
    return {
        "requests": len(rows),
        "embedded_tokens_per_s": round(tokens / our_seconds, 1),
        "plain_tokens_per_s": round(sum(map(len, theirs)) / their_seconds, 1),
        "speedup_over_plain_generate": round(their_seconds / our_seconds, 2),
        "rows_equal": sum(one == other for one, other in zip(written, theirs, strict=True)),
    }


def requests_of_the_example(tokenizer: Any) -> Iterator[Row]:
    """Requests of the example project's grammars in turns, as its run would ask them."""
    from synthspec.prompting.match import match
    from synthspec.prompting.pull import pull
    from synthspec.prompting.render import render
    from synthspec.spec import SPEC_FILE, load_spec
    from synthspec.stages.facts import project_grammars

    root = Path(str(files("synthspec.examples"))) / "desk"
    spec = load_spec(root / SPEC_FILE)
    grammars = project_grammars(spec, root)
    seen: set[str] = set()
    prompts = [row for source in spec.prompts for row in pull(source, root, seen)[0]]
    matches, _ = match(prompts, grammars, spec)
    rows, _ = render([row for row in matches if row["grammar"]], prompts, grammars, tokenizer, spec)
    by_grammar = [[row for row in rows if row["grammar"] == grammar.name] for grammar in grammars]
    for together in zip(*by_grammar, strict=False):
        yield from together


def plain_model(target: Any) -> Any:
    """The same weights as transformers loads and runs them."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(target.place.path, dtype=torch.float32).eval()


def one_by_one(model: Any, target: Any, row: Row) -> list[int]:
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    from synthspec.targets.generate import mask_logits

    rule = target.constraints.compile(row["constraint"])
    words = (model.config.vocab_size + 31) // 32
    before = len(row["prompt_ids"])

    class Held(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if input_ids.shape[1] > before:
                rule.accept(int(input_ids[0, -1]))
            bitmask = torch.full((1, words), -1, dtype=torch.int32)
            rule.fill(bitmask, 0)
            mask_logits(scores, bitmask)
            return scores

    ids = torch.tensor([row["prompt_ids"]])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=row["max_new_tokens"],
        do_sample=False,
        eos_token_id=target.stop_ids,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([Held()]),
    )
    return [int(token) for token in found[0, before:]]


if __name__ == "__main__":
    main()
