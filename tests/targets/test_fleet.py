"""What happens to requests when workers fail, over real HTTP."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import pairwise
from threading import Thread

import pytest

from synthspec.errors import Stopped, UserError
from synthspec.targets import fleet as fleets
from synthspec.targets.fleet import Fleet
from synthspec.targets.sglang import PROBE, Expected, SglangServer
from tests.targets.standin import VOCABULARY, serving

OURS = Expected("our/model", "abc", [ord(char) for char in PROBE], VOCABULARY, tokens=40)


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch):
    monkeypatch.setattr(fleets, "REST", 0.02)


def row(*ids: int, most: int = 9, grammar: str | None = "desk") -> dict:
    return {
        "prompt_ids": list(ids),
        "max_new_tokens": most,
        "constraint": None,
        "grammar": grammar,
        "set": None,
        "purpose": "grammar",
        "seed": 7,
    }


def answer_to(asked: dict) -> list[int]:
    return [token + 1 for token in asked["prompt_ids"]][: asked["max_new_tokens"]]


@pytest.fixture
def servers():
    with ExitStack() as stack:
        yield [stack.enter_context(serving()) for _ in range(3)]


def fleet(*urls: str, patience: float = 20.0, key: str | None = None) -> Fleet:
    return Fleet([SglangServer(url, OURS, key) for url in urls], patience)


def test_answers_come_back_in_order_from_all_workers(servers):
    rows = [row(number, *range(1 + number % 12), grammar=f"g{number % 5}") for number in range(400)]
    done = []
    with fleet(*(server.url + "/" for server in servers)) as workers:
        answers = workers.ask(rows, done.append)
    assert [one.ids for one in answers] == [answer_to(one) for one in rows]
    assert [one.finish_reason for one in answers] == [
        "length" if len(one["prompt_ids"]) >= 9 else "stop" for one in rows
    ]
    assert sum(done) == 400
    assert sum(len(server.asked) for server in servers) == 400
    assert all(server.asked for server in servers)


def test_a_worker_keeps_to_requests_that_begin_alike(servers):
    rows = [row(number % 4, 1, grammar=f"g{number % 4}") for number in range(400)]
    for server in servers[:2]:
        server.delay = 0.002
    with fleet(*(server.url for server in servers[:2])) as workers:
        workers.ask(rows)
    for server in servers[:2]:
        firsts = [body["input_ids"][0] for body in server.asked]
        changes = sum(one != other for one, other in pairwise(firsts))
        assert changes < len(firsts) / 5


@pytest.mark.parametrize(
    "misdeed",
    [
        "429", "500", "cut", "hang up", "no JSON", "no UTF-8", "no ids", "other ids", "other count",
        "other prompt", "too many", "abort",
    ],
)  # fmt: skip
def test_what_goes_wrong_once_is_asked_again(servers, misdeed):
    server = servers[0]
    server.misdeeds = ["", misdeed]
    rows = [row(number) for number in range(20)]
    with fleet(server.url) as workers:
        assert [one.ids for one in workers.ask(rows)] == [answer_to(one) for one in rows]
    assert len(server.asked) == 21


def test_a_request_that_fails_everywhere_ends_as_an_error_and_the_others_do_not(servers):
    rows = [row(number) for number in range(12)]
    with fleet(servers[0].url) as workers:
        assert all(workers.ask(rows))
        servers[0].misdeeds = ["500"] * fleets.TRIES
        first, second = workers.ask([row(3)]), workers.ask([row(4)])
    assert first == [None]
    assert second[0].ids == [5]


def test_a_request_that_is_refused_is_not_asked_again(servers):
    with fleet(servers[0].url) as workers:
        assert workers.ask([row(1)])[0].ids == [2]
        servers[0].misdeeds = ["400"]
        assert workers.ask([row(2), row(3)]).count(None) == 1
    assert len(servers[0].asked) == 3


def test_workers_that_refuse_everything_are_the_persons_mistake(servers):
    servers[0].always = "400"
    with (
        fleet(servers[0].url) as workers,
        pytest.raises(UserError, match=r"refuses every request: it answers 400 \(the input is too long\)"),
    ):
        workers.ask([row(number) for number in range(20)])


def test_a_worker_that_hangs_is_given_up_by_what_it_did_before(servers, monkeypatch):
    monkeypatch.setattr(fleets, "FIRST", 1.0)
    servers[0].always = "hang"
    rows = [row(number) for number in range(40)]
    with fleet(servers[0].url, servers[1].url) as workers:
        assert [one.ids for one in workers.ask(rows)] == [answer_to(one) for one in rows]


def test_time_that_an_answer_may_take_follows_the_pace():
    lane = fleets._Lane(0, worker=None)  # type: ignore[arg-type]
    assert lane.within(row(1, most=100)) == fleets.FIRST
    lane.answered(seconds=2.0, tokens=92, now=10.0)
    quick = lane.within(row(1, most=100))
    lane.answered(seconds=20.0, tokens=92, now=30.0)
    assert 30 < quick < 60
    assert lane.within(row(1, most=100)) > 200


def test_no_request_waits_behind_a_slow_worker(servers):
    slow, *quick = servers
    rows = [row(number) for number in range(300)]
    slow.delay = 5.0
    begun = time.monotonic()
    with fleet(*(server.url for server in servers)) as workers:
        answers = workers.ask(rows)
    assert all(answers)
    assert len(slow.asked) < 40
    assert sum(len(server.asked) for server in quick) >= 300 - 1
    assert time.monotonic() - begun < 60


def test_more_is_in_flight_as_long_as_that_is_faster(servers):
    servers[0].delay = 0.05  # however much is in flight
    with fleet(servers[0].url) as workers:
        workers.ask([row(1, 2, 3) for _ in range(400)])
    assert servers[0].most_flying > fleets.START


def test_a_worker_that_is_busy_gets_less_at_once(servers):
    servers[0].misdeeds = ["429"] * 6
    with fleet(servers[0].url) as workers:
        assert all(workers.ask([row(number) for number in range(60)]))
        assert workers._lanes[0].limit < fleets.START


def test_a_worker_that_is_not_there_is_left_out_until_it_is(servers):
    with serving() as gone:
        port, url = gone.server_port, gone.url
    with fleet(url, servers[0].url) as workers:
        assert workers.silent == [f"{url}: it cannot be reached (Connection refused)"]
        assert all(workers.ask([row(number) for number in range(30)]))
        servers[0].delay = 0.05
        with serving(port) as back:
            deadline = time.monotonic() + 30
            while not back.asked and time.monotonic() < deadline:
                assert all(workers.ask([row(number) for number in range(30)]))
            assert back.asked


def test_all_workers_gone_stops_the_run_in_words(servers):
    with serving() as gone:
        url = gone.url
    with pytest.raises(Stopped, match=r"no worker answers .*cannot be reached.*; bring one up, then run"):
        fleet(url, patience=0.5).__enter__()
    with fleet(servers[0].url, patience=1.0) as workers:
        assert all(workers.ask([row(1)]))
        servers[0].always = "hang up"
        with pytest.raises(Stopped, match="no worker answers"):
            workers.ask([row(number) for number in range(200)])


def test_another_model_behind_the_same_address_is_noticed_before_its_answer_counts():
    with serving() as first:
        port, url = first.server_port, first.url
        workers = fleet(url)
        workers.__enter__()
        try:
            assert workers.ask([row(1)])[0].ids == [2]
            first.always = "hang up"  # no connection outlives it
            first.shutdown()
            first.server_close()
            with serving(port) as second:
                second.offset = 1
                with pytest.raises(
                    UserError, match="serves some/model, whose tokenizer or chat template is not"
                ):
                    workers.ask([row(number) for number in range(20)])
        finally:
            workers.__exit__()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": 1}, "whose tokenizer or chat template is not that of our/model: start it with the spec's"),
        (
            {"info": {"max_req_input_len": 20}},
            "has room for 20 tokens, and a request with its answer may have 40",
        ),
        ({"info": {"grammar_backend": "none"}}, "has no grammar backend: start it with --grammar-backend"),
        ({"info": {"revision": "abd"}}, "serves revision abd of some/model, and target.revision is abc"),
        ({"key": "1234"}, "the server .* refuses the key, or none, with 401: give the one that it wants"),
    ],
)
def test_a_server_that_is_not_the_target_is_refused(servers, change, words):
    for name, value in change.items():
        setattr(servers[0], name, {**servers[0].info, **value} if name == "info" else value)
    with pytest.raises(UserError, match=words):
        fleet(servers[0].url, key="tell-nobody").__enter__()


def test_a_server_that_differs_from_another_is_refused(servers):
    servers[1].info["version"] = "0.5.22"
    with pytest.raises(
        UserError, match=r"differs from .*: its version is 0\.5\.2[23], the other's is 0\.5\.2[23];"
    ):
        fleet(servers[0].url, servers[1].url).__enter__()


def test_a_key_goes_to_the_server_and_into_no_message(servers):
    servers[0].key = "tell-nobody"
    with fleet(servers[0].url, key="tell-nobody") as workers:
        assert workers.ask([row(1)])[0].ids == [2]
    with pytest.raises(UserError) as caught:
        fleet(servers[0].url, key="tell-somebody").__enter__()
    assert "tell" not in str(caught.value)


def test_many_threads_share_the_workers(servers):
    found = {}

    def ask(number: int) -> None:
        rows = [row(number, other) for other in range(50)]
        found[number] = [one.ids for one in workers.ask(rows)] == [answer_to(one) for one in rows]

    with fleet(*(server.url for server in servers)) as workers:
        threads = [Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == dict.fromkeys(range(8), True)
