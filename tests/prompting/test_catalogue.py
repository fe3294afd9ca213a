import random
from collections import Counter

import pytest
import yaml

from synthspec.errors import UserError
from synthspec.grammar.model import load_grammars
from synthspec.prompting.catalogue import Shelf

THINGS = ("train", "bus", "hotel", "song", "film", "recipe", "invoice", "parcel", "flight", "lamp")
DEEDS = ("find", "book", "cancel", "rate")


def tool(deed, thing):
    parameters = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return {"name": f"{deed}_{thing}", "description": f"{deed} a {thing}", "parameters": parameters}


@pytest.fixture
def project(tmp_path):
    """A function that writes a grammar with a catalogue of forty tools, and loads it."""

    def load(listed=None, **fields):
        made = listed or [tool(deed, thing) for thing in THINGS for deed in DEEDS]
        (tmp_path / "tools.yaml").write_text(yaml.safe_dump({"tools": made}))
        grammar = {
            "name": "everything",
            "kind": "tool_call",
            "wire_format": "hermes",
            "catalogue": {"file": "tools.yaml", "shown": [5, 9]},
            "examples": [{"name": "find_bus", "arguments": {"name": "<redacted>"}}],
            **fields,
        }
        (tmp_path / "everything.yaml").write_text(yaml.safe_dump(grammar))
        return load_grammars(tmp_path, ["everything.yaml"])[0]

    return load


def test_a_request_shows_the_tool_it_needs_and_some_that_are_like_it(project):
    shelf = Shelf(project())
    dice = random.Random(0)
    places, kin = Counter(), Counter()
    for _ in range(300):
        names = [tool.name for tool in shelf.shown("book_hotel", dice)]
        assert 5 <= len(names) <= 9
        assert len(set(names)) == len(names)
        places[names.index("book_hotel")] += 1
        kin.update("hotel" in name or "book" in name for name in names if name != "book_hotel")
    assert len(places) >= 8  # it stands anywhere
    assert 0.4 < kin[True] / kin.total() < 0.95  # by chance it would be 12 of 39


def test_tools_stand_as_written_where_that_is_asked_for(project):
    grammar = project(catalogue={"file": "tools.yaml", "shown": [6, 6], "order": "as_written"})
    order = [tool.name for tool in grammar.tools]
    shown = [tool.name for tool in Shelf(grammar).shown("rate_lamp", random.Random(3))]
    assert shown == sorted(shown, key=order.index)


def test_a_small_catalogue_is_shown_whole(project):
    grammar = project([tool("find", "bus"), tool("find", "train")])
    assert len(Shelf(grammar).shown(None, random.Random(0))) == 2


def test_what_is_wrong_with_a_catalogue_is_told(project):
    with pytest.raises(UserError, match=r"everything\.yaml.*examples\[0\]\.name: there is no tool 'find_bus'"):
        project([tool("find", "train")])
    with pytest.raises(UserError, match=r"catalogue\.file: .*tools\.yaml:\d+: tools\[0\]\.name"):
        project([{**tool("find", "bus"), "name": "find bus"}])
    with pytest.raises(UserError, match=r"catalogue\.file: .*leads out of the project"):
        project(catalogue={"file": "../tools.yaml"})
    with pytest.raises(UserError, match=r"shown .* runs backwards"):
        project(catalogue={"file": "tools.yaml", "shown": [5, 2]})
    with pytest.raises(
        UserError, match=r"everything\.yaml:\d+: tools: stand beside a catalogue; keep one of them"
    ):
        project(tools=[tool("find", "bus")])


def test_tools_without_a_single_word_are_near_to_nothing_and_drawn_all_the_same(project):
    letters = [{"name": one, "parameters": {"type": "object", "properties": {}}} for one in "abcdefgh"]
    shelf = Shelf(project(letters, examples=[{"name": "a", "arguments": {}}]))
    shown = shelf.shown("c", random.Random(0))
    assert 5 <= len({tool.name for tool in shown}) == len(shown)
    assert "c" in {tool.name for tool in shown}
