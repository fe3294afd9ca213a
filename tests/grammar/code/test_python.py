import ast
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.code import filled, mistakes, problem, values
from tests.grammar.code.conftest import accepts, code, drawn, engine


def python(**keys):
    return code(language="python", **keys)


PRICE = python(name="price", parameters=["net: float", "rate=0.2"], imports=["math", "os.path"])
ENGINE = engine(PRICE)
SIGNATURE = "def price(net: float, rate=0.2)"


@pytest.mark.parametrize(
    "body",
    [
        "\n    return net * (1 + rate)",
        ' -> float:\n    """Adds the tax."""\n    # by law\n    total = 0\n    for item in [1, 2.5, -3]:\n'
        "        if item < 0 and not net:\n            break\n        elif item == 2:\n            continue\n"
        "        else:\n            total += item ** 2\n    return math.floor(total)",
        "\n    try:\n        return {name: value for name, value in net.items() if value is not None}\n"
        '    except KeyError as error:\n        raise ValueError(f"no {error}")',
        "\n    while rate:\n        rate, net = step(net[1:], key=rate)\n"
        "    return \"a\\n'b'\".join(str(x) for x in net)",
    ],
)
def test_engine_and_judge_take_it(body):
    text = f"import math\nfrom os.path import join\n\n\n{SIGNATURE}{'' if body.startswith(' ') else ':'}{body}"
    assert accepts(ENGINE, text)
    assert problem(PRICE, text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def cost(net, rate): pass", "the function is not called price"),
        ("def price(rate, net): pass", "the function does not take net, rate"),
        ("def price(*net, rate): pass", "the function does not take net, rate"),
        ("def price(net, *, rate): pass", "the function does not take net, rate"),
        ("def price(net, **rate): pass", "the function does not take net, rate"),
        ("def price(net: str, rate): pass", "the function does not take net, rate"),
        ("@eval('1')\ndef price(net, rate): pass", "the function has a decorator"),
        ("def price(net, rate): break", "it is no Python (line 1)"),
        ("def price(net, rate): nonlocal y", "it is no Python (line 1)"),
        ("def price(net, rate): from math import *", "it is no Python"),
        ("def price(net, rate): pass\nprice(1, 2)", "there is more than the function"),
        ("def price(net, rate): pass\ndef price(net, rate): pass", "there are 2 functions"),
        ("x = 1", "there are 0 functions"),
        ("import os\ndef price(net, rate): pass", "it imports what is not allowed; math, os.path is"),
        ("def price(net, rate):\n    import os", "it imports what is not allowed"),
        ("from . import math\ndef price(net, rate): pass", "it imports what is not allowed"),
        ("def price(net, rate): return __import__('os')", "it imports what is not allowed"),
        ("def price(net, rate):\nreturn 'secret'", "it is no Python (line 2)"),
        ("def price(net, rate): return 'secret", "it is no Python (line 1)"),
        ("\0", "it is no Python"),
        ("def price(net, rate): return " + "(" * 5000, "it is no Python"),
        ("def price(net, rate): return " + "-" * 49_000 + "1", "nested too deeply"),
        ("#" * 60_000, "it is longer than"),
    ],
)
def test_what_is_refused(text, reason):
    told = problem(PRICE, text)
    assert told is not None
    assert reason in told
    assert "secret" not in told
    assert not accepts(ENGINE, text)


def test_what_a_constraint_lets_through_the_judge_takes(walk):
    one = python(imports=["re"])
    texts = walk(one, number=8, most=250)
    assert texts
    assert [told for text in texts if (told := problem(one, text))] == []


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("one", [PRICE, python(fence=True)], ids=["given", "free"])
def test_texts_of_the_grammar_satisfy_engine_and_judge(one, seed):
    text = drawn(one, seed)
    assert problem(one, text) is None
    if len(text) < 3000:  # more takes seconds
        assert accepts(engine(one), text)


def test_no_name_is_a_keyword():
    one = engine(python())
    for word in ("for", "None", "__import__"):
        assert not accepts(one, f"def {word}():\n    pass")
        for name in (word[:-1], f"{word}s"):
            assert accepts(one, f"def {name}():\n    pass")


def test_values_are_literals_comments_and_own_names():
    text = (
        "import math\nfrom os.path import join\n\n\ndef price(net, rate):\n    # by law\n"
        "    total = math.floor(net.real * 2.5)\n    print(f'{total} € \\'x\\'', join(\"a\", 'b'))\n"
    )
    found = [text[start:end] for start, end in values(PRICE, text)]
    assert found == ["# by law", "total", "2.5", "{total} € \\'x\\'", "a", "b"]


@given(st.data())
def test_values_of_a_text_that_is_cut_off(data):
    text = f'{SIGNATURE}:\n    """Adds."""\n    zq = net + 12.75\n    return "it\\"s" + zq  # why'
    whole = {at for start, end in values(PRICE, text) for at in range(start, end)}
    end = data.draw(st.integers(0, len(text)))
    found = {at for start, stop in values(PRICE, text[:end]) for at in range(start, stop)}
    # Half a word may be half of a known one, and quotes that are cut off are not yet quotes.
    assert found ^ {at for at in whole if at < end} <= {end - 2, end - 1}


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["'", '"', '"""', "'''", "f'"]),
)
def test_filled_values_come_back_whole(city, quote):
    inside = f"{quote}<redacted:city>{quote.lstrip('f')}"
    example = f"def price(net, rate): return {inside}, <redacted:city>, <redacted>"
    text = filled(PRICE, example, {"city": city}, random.Random(0))
    assert problem(PRICE, text) is None
    returned = ast.parse(text).body[0].body[0].value
    inside, bare, number = eval(compile(ast.Expression(returned), "", "eval"), {})
    assert (inside, bare) == (city, city)
    assert isinstance(number, int)


def test_marks_where_nothing_can_be_escaped():
    example = "def price(net, rate):\n    # <redacted:who>\n    return rb'<redacted:who>', <redacted:yes>"
    text = filled(PRICE, example, {"who": "a\n'é\\", "yes": True}, random.Random(0))
    assert "# a 'é\\\n" in text
    assert problem(PRICE, text.replace("é", "")) is None
    assert text.endswith(", True")


@pytest.mark.parametrize(
    ("keys", "place", "sentence"),
    [
        ({"name": "class"}, ("name",), "is no name of a function"),
        ({"name": "a b"}, ("name",), "is no name of a function"),
        ({"parameters": ["a)"]}, ("parameters", 0), "is no parameter"),
        ({"parameters": ["a, b"]}, ("parameters", 0), "is no parameter"),
        ({"parameters": ["a", "a"]}, ("parameters",), "do not stand together"),
        ({"parameters": ["a=1", "b"]}, ("parameters",), "do not stand together"),
        ({"imports": ["os; x"]}, ("imports", 0), "is no name of a module"),
    ],
)
def test_mistakes_in_a_signature_are_told(keys, place, sentence):
    [(where, told)] = mistakes(python(**keys))
    assert where == place
    assert sentence in told
