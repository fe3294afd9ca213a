"""What goes to SGLang and vLLM servers, and how a run's requests become shards of completions."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from synthspec.errors import Stopped, UserError
from synthspec.files import content_id
from synthspec.grammar.constraint import Constraint, Json, Text
from synthspec.grammar.constraint import row as row_of
from synthspec.samples.schema import REQUESTS, Table, read_rows, write_rows
from synthspec.spec import Generate, Servers
from synthspec.targets.answer import answer, in_order, shards
from synthspec.targets.sglang import sampling
from tests.targets.standin import VOCABULARY, serving


def request(*ids: int, constraint: str | None = None, grammar: str = "desk", most: int = 9) -> dict:
    return {
        "id": content_id(ids, grammar),
        "purpose": "grammar",
        "grammar": grammar,
        "prompt_ids": list(ids),
        "max_new_tokens": most,
        "constraint": constraint,
        "seed": 5,
    }


def target() -> SimpleNamespace:
    """A target whose tokens are characters."""
    tokenizer = SimpleNamespace(
        apply_chat_template=lambda messages, **_: [ord(char) for char in messages[0]["content"]]
    )
    return SimpleNamespace(
        settings=SimpleNamespace(revision=None),
        description={"model": "our/model", "vocab_size": VOCABULARY},
        tokenizer=tokenizer,
        fingerprint="ours",
    )


def test_the_grammar_travels_as_sglang_takes_it():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bare = sampling(request(5, constraint=Constraint(Json(schema)).to_json()))
    assert json.loads(bare["json_schema"])["required"] == ["a"]
    part = row_of(Text("<tool_call>\n"), Json(schema), Text("\n</tool_call>"))
    tagged = sampling(request(6, constraint=Constraint(part).to_json()))
    tag = json.loads(tagged["structural_tag"])
    assert "<tool_call>\n" in json.dumps(tag, ensure_ascii=False).replace("\\n", "\n")
    free = sampling(request(7))
    assert not {"json_schema", "structural_tag", "regex", "ebnf", "sampling_seed"} & free.keys()
    for params in (bare, tagged, free):
        assert (params["temperature"], params["max_new_tokens"], params["no_stop_trim"]) == (0, 9, True)
    assert sampling({**request(7), "temperature": 0.5})["sampling_seed"] == 5


@pytest.fixture
def requests(tmp_path):
    """A file of 300 requests of three grammars."""
    rows = [request(number, *range(number % 7), grammar=f"g{number % 3}") for number in range(300)]
    rows.sort(key=lambda row: in_order({**row, "set": None}))
    write_rows(tmp_path / "requests.parquet", REQUESTS, rows)
    return tmp_path / "requests.parquet", rows


def test_shards_depend_on_content_and_every_answer_is_in_one(requests, tmp_path):
    path, rows = requests
    out = tmp_path / "completions"
    done: list[int] = []
    with serving() as one, serving() as two:
        servers = Servers(kind="sglang", urls=[one.url, two.url], batch_rows=32)
        answer(path, target(), servers, out, done.append)
        asked = len(one.asked) + len(two.asked)
        names = {file.name for file in out.iterdir()}
        first = {file.name: file.read_bytes() for file in out.iterdir()}
        missing = sorted(out.iterdir())[3]
        missing.unlink()
        (out / "00000-0123456789abcdef.parquet").write_text("of another target")
        answer(path, target(), servers, out)
    assert asked == sum(done) == 300
    assert len(names) == 3 * 4  # 100 rows a grammar
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first
    assert len(one.asked) + len(two.asked) == 300 + len(read_rows(missing))
    found = {row["request_id"]: row["ids"] for row in read_rows(out)}
    assert found == {row["id"]: [token + 1 for token in row["prompt_ids"]] for row in rows}


def test_a_run_goes_on_where_it_stopped(requests, tmp_path):
    path, _ = requests
    out = tmp_path / "completions"
    with serving() as server:
        servers = Servers(kind="sglang", urls=[server.url], batch_rows=32)
        server.misdeeds = [""] * 120 + ["401"]
        server.misdeeds[-1] = "400"
        answer(path, target(), servers, out)
        kept = sum(len(Table(file)) for file in out.iterdir())
    assert kept == 299  # the refused one is an error, and is not asked again
    with serving() as server:
        answer(path, target(), Servers(kind="sglang", urls=[server.url], batch_rows=32), out)
        assert server.asked == []


def test_a_free_answer_is_held_to_nothing(requests, tmp_path):
    constrained = [request(number, constraint=Constraint(Text("a")).to_json()) for number in range(3)]
    write_rows(tmp_path / "r.parquet", REQUESTS, constrained)
    with serving() as server:
        servers = Servers(kind="sglang", urls=[server.url])
        server.info["grammar_backend"] = "none"  # enough for who is held to nothing
        answer(tmp_path / "r.parquet", target(), servers, tmp_path / "free", how=Generate(decode="free"))
        with pytest.raises(UserError, match="has no grammar backend"):
            answer(tmp_path / "r.parquet", target(), servers, tmp_path / "held")
        server.info["grammar_backend"] = "xgrammar"
        assert not any("regex" in body["sampling_params"] for body in server.asked)
        server.asked.clear()
        answer(tmp_path / "r.parquet", target(), servers, tmp_path / "held")
        assert all(
            {"regex", "ebnf", "structural_tag"} & body["sampling_params"].keys() for body in server.asked
        )


def test_a_router_is_as_good_as_the_servers_behind_it(requests, tmp_path):
    path, rows = requests
    with serving() as router, serving() as one, serving() as two:
        router.behind = [one.url, two.url]
        servers = Servers(kind="sglang", urls=[router.url])
        answer(path, target(), servers, tmp_path / "out")
        assert len(router.asked) == len(rows)
        assert len(read_rows(tmp_path / "out")) == len(rows)
        two.info["dtype"] = "float16"
        with pytest.raises(UserError, match=r"behind the router .* differ in dtype: start them alike"):
            answer(path, target(), servers, tmp_path / "differ")
        two.offset = 1
        with pytest.raises(UserError, match=rf"{two.url} serves some/model, whose tokenizer"):
            answer(path, target(), servers, tmp_path / "other")
        router.behind = [one.url, "http://127.0.0.1:9"]
        with pytest.raises(
            UserError, match=r"127\.0\.0\.1:9, which cannot be checked from here .*: name the servers"
        ):
            answer(path, target(), servers, tmp_path / "hidden")


def test_a_server_without_room_for_the_longest_request_is_refused(requests, tmp_path):
    path, _ = requests
    with serving() as server:
        server.info["max_req_input_len"] = 15
        with pytest.raises(
            UserError, match="has room for 15 tokens, and a request with its answer may have 16"
        ):
            answer(path, target(), Servers(kind="sglang", urls=[server.url]), tmp_path / "out")


def test_requests_are_read_in_pieces(requests):
    path, rows = requests
    table = Table(path)
    assert len(table) == 300
    assert [row["id"] for row in table.slice(range(37, 111))] == [row["id"] for row in rows[37:111]]
    assert [row["id"] for row in table.rows(["id"])] == [row["id"] for row in rows]
    ids = [one for batch in shards(({**row, "set": None} for row in rows), 32) for one in batch]
    assert ids == [row["id"] for row in rows]


def test_no_server_at_all_stops_the_run_in_words(requests, tmp_path, monkeypatch):
    path, _ = requests
    monkeypatch.setattr("synthspec.targets.answer.PATIENCE", 0.3)
    servers = Servers(kind="sglang", urls=["http://127.0.0.1:9"])
    with pytest.raises(Stopped, match="no worker answers"):
        answer(path, target(), servers, tmp_path / "out")


def test_log_probabilities_are_kept_where_they_are_asked_for(requests, tmp_path):
    path, _ = requests
    with serving() as server:
        servers = Servers(kind="sglang", urls=[server.url])
        answer(path, target(), servers, tmp_path / "with", how=Generate(logprobs=True))
        answer(path, target(), servers, tmp_path / "without")
    for row in read_rows(tmp_path / "with"):
        assert row["logprobs"] == [-0.5] * len(row["ids"])
    assert {row["logprobs"] for row in read_rows(tmp_path / "without")} == {None}
