"""SGLang in this process: a stand-in whose answers, like its own, come from a loop that nobody else runs."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from synthspec.errors import UserError
from synthspec.spec import Engine
from synthspec.targets.engine import SglangEngine
from synthspec.targets.fleet import Fleet
from tests.targets.test_sglang import request, target

SETTINGS = Engine(kind="sglang_engine", options={"mem_fraction_static": 0.5})


class StandIn:
    """Answers the tokens of a prompt plus one, on its own loop."""

    made: ClassVar[list[Any]] = []

    def __init__(self, **arguments):
        if "broken" in arguments:
            raise RuntimeError("out of memory\nand more")
        self.arguments = arguments
        self.loop = asyncio.new_event_loop()
        self.asked = []
        self.ended = False
        StandIn.made.append(self)

    def get_server_info(self):
        return self.loop.run_until_complete(asyncio.sleep(0, {"max_req_input_len": 100}))

    async def async_generate(self, input_ids, sampling_params, return_logprob):
        self.asked.append(sampling_params)
        done = asyncio.get_running_loop().create_future()
        self.loop.call_soon(done.set_result, [token + 1 for token in input_ids])
        ids = await done
        meta = {
            "finish_reason": {"type": "stop"},
            "completion_tokens": len(ids),
            "prompt_tokens": len(input_ids),
        }
        return {"output_ids": ids, "meta_info": meta}

    def shutdown(self):
        self.ended = not self.loop.is_running()
        if self.ended:
            self.loop.close()


@pytest.fixture(autouse=True)
def sglang(monkeypatch):
    module = ModuleType("sglang")
    module.Engine = StandIn
    monkeypatch.setitem(sys.modules, "sglang", module)
    StandIn.made.clear()


def the_target():
    return SimpleNamespace(**vars(target()), place=SimpleNamespace(path="/a/model", commit=None))


def test_answers_come_from_its_own_loop_which_ends_with_it():
    rows = [request(number, 5, 6, number) for number in range(40)]
    with Fleet([SglangEngine(the_target(), SETTINGS, 50)]) as fleet:
        answers = fleet.ask(rows)
    assert [one.ids for one in answers] == [[token + 1 for token in row["prompt_ids"]] for row in rows]
    (engine,) = StandIn.made
    assert engine.arguments["model_path"] == "/a/model"
    assert engine.arguments["mem_fraction_static"] == 0.5
    assert engine.ended


def test_what_it_cannot_do_is_told():
    with pytest.raises(
        UserError, match=r"there is room for 100 tokens, and a request with its answer may have 101"
    ):
        SglangEngine(the_target(), SETTINGS, 101)
    assert StandIn.made[0].ended
    broken = Engine(kind="sglang_engine", options={"broken": True})
    with pytest.raises(UserError, match=r"SGLang does not start with these options \(.*out of memory\)"):
        SglangEngine(the_target(), broken, 1)


def test_without_sglang_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(UserError, match=r"pip install 'synthspec\[sglang\]'"):
        SglangEngine(the_target(), SETTINGS, 1)
