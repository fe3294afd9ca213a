import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthspec.grammar.code import filled, mistakes, problem, values
from tests.grammar.code.conftest import accepts, code, drawn, engine

TABLES = {
    "guests": {"id": "int", "name": "text", "born": "date", "vip": "boolean"},
    "bookings": {"id": "int", "guest_id": "int", "price": "numeric(10, 2)", "seen": "timestamp"},
}
ALL = ["select", "insert", "update", "delete"]
DIALECTS = (
    "bigquery", "clickhouse", "databricks", "duckdb", "mysql", "oracle", "postgres", "redshift", "snowflake",
    "spark", "sqlite", "trino", "tsql",
)  # fmt: skip


def sql(**keys):
    return code(language="sql", **{"tables": TABLES, "statements": ALL, **keys})


SQL = sql()
ENGINE = engine(SQL)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM guests",
        "SELECT name AS who, born FROM guests WHERE vip = TRUE AND name LIKE 'A%'\nORDER BY born LIMIT 3;",
        "SELECT name, COUNT(*) AS visits FROM guests GROUP BY name HAVING COUNT(*) > 2 ORDER BY COUNT(*) DESC",
        "SELECT guests.name, SUM(bookings.price) FROM guests LEFT JOIN bookings "
        "ON bookings.guest_id = guests.id\nWHERE bookings.price BETWEEN 10 AND -2.5 GROUP BY guests.name",
        "SELECT id FROM guests WHERE id IN (SELECT guest_id FROM bookings WHERE id >= 3) OR NOT born IS NULL",
        "SELECT id FROM bookings WHERE price > (SELECT AVG(price) FROM bookings) AND (id = 1 OR id = 2)",
        "SELECT DISTINCT name FROM guests",
        "INSERT INTO guests (name, born, vip) VALUES ('O''Neil', '2024-01-31', NULL), ('B', NULL, FALSE)",
        "UPDATE bookings SET price = 2, seen = '2024-05-06 07:08:09' WHERE guest_id = 4",
        "DELETE FROM guests WHERE name IS NOT NULL",
    ],
)
def test_engine_and_judge_take_it(text):
    assert accepts(ENGINE, text)
    assert problem(SQL, text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT town FROM guests", "it names a column that its tables do not have"),
        ("SELECT price FROM guests", "it names a column that its tables do not have"),
        ("SELECT id FROM guests, bookings", "or that two of them have"),
        ("SELECT * FROM staff", "it names a table that there is not"),
        ("SELECT id FROM information_schema.guests", "it names a table that there is not"),
        ("SELECT x FROM generate_series(1, 2) AS t(x)", "it reads from what is no table"),
        ("SELECT id FROM guests; DELETE FROM guests", "there are 2 statements where one is asked for"),
        ("", "there are 0 statements where one is asked for"),
        ("SELECT id INTO copy FROM guests", "it writes into a table of its own"),
        (
            "WITH x AS (DELETE FROM guests RETURNING id) SELECT id FROM x",
            "a statement that writes stands inside",
        ),
        ("DROP TABLE guests", "it is no statement of select, insert, update, delete"),
        ("VACUUM guests", "it is no statement of"),
        ("SELECT 'secret", "it is not SQL of the dialect postgres"),
        ("SELECT id FROM guests WHERE", "it is not SQL of the dialect postgres (line 1"),
        ("INSERT INTO guests (id, name) VALUES (1)", "another number of values than of columns"),
        ("INSERT INTO guests (id, town) VALUES (1, 2)", "it names a column"),
        ("INSERT INTO guests (id, id) VALUES (1, 2)", "it names a column twice"),
        ("INSERT INTO guests (id) VALUES (name)", "it names a column"),
        ("INSERT INTO guests (id) SELECT town FROM guests", "it names a column"),
        ("UPDATE guests SET town = 'a'", "it names a column"),
        ("UPDATE guests SET name = 'a' WHERE town = 'b'", "it names a column"),
        ("DELETE FROM guests WHERE town = 'b'", "it names a column"),
        ("DELETE FROM staff", "it names a table"),
        ("SELECT", "it selects nothing"),
        ("SELECT name FROM guests WHERE id IN (SELECT FROM guests)", "it selects nothing"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "it is nested too deeply"),
        ("SELECT '" + "a" * 60_000 + "'", "it is longer than"),
    ],
)
def test_what_is_refused(text, reason, capfd):
    told = problem(SQL, text)
    assert told is not None
    assert reason in told
    assert "secret" not in told
    assert not accepts(ENGINE, text)
    assert capfd.readouterr() == ("", "")  # sqlglot's warnings quote the text


@pytest.mark.parametrize(
    "text",
    [
        "select NAME from Guests g where g.Name ilike 'x%'",
        "WITH old AS (SELECT id, name FROM guests) SELECT name FROM old",
        "SELECT (SELECT max(price) FROM bookings b WHERE b.guest_id = g.id) FROM guests g",
        "SELECT name FROM guests UNION SELECT cast(price AS text) FROM bookings",
        "SELECT row_number() OVER (PARTITION BY name ORDER BY id) FROM guests",
        "INSERT INTO guests (id) VALUES (1) ON CONFLICT (id) DO NOTHING",
        "UPDATE guests SET name = 'x' FROM bookings b WHERE b.guest_id = guests.id RETURNING vip",
        "DELETE FROM guests USING bookings b WHERE b.guest_id = guests.id",
    ],
)
def test_the_judge_knows_more_sql_than_the_engine_is_held_to(text):
    assert problem(SQL, text) is None
    assert not accepts(ENGINE, text)


@pytest.mark.parametrize("statement", ALL)
def test_only_the_statements_that_are_allowed_pass(statement):
    texts = {
        "select": "SELECT id FROM guests",
        "insert": "INSERT INTO guests (name, born, vip) VALUES ('A', NULL, NULL)",
        "update": "UPDATE guests SET vip = TRUE WHERE id = 1",
        "delete": "DELETE FROM guests WHERE id = 1",
    }
    one = sql(statements=[statement])
    held = engine(one)
    for kind, text in texts.items():
        assert accepts(held, text) == (kind == statement)
        assert (problem(one, text) is None) == (kind == statement)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_constraint_lets_through_the_judge_takes(walk, dialect):
    one = sql(dialect=dialect)
    texts = walk(one, number=12)
    assert len(texts) > 3
    assert [told for text in texts if (told := problem(one, text))] == []


HELD = {dialect: (sql(dialect=dialect), engine(sql(dialect=dialect))) for dialect in DIALECTS}


@given(st.sampled_from(DIALECTS), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_texts_of_the_grammar_satisfy_engine_and_judge(dialect, seed):
    one, held = HELD[dialect]
    text = drawn(one, seed)
    assert problem(one, text) is None
    assert accepts(held, text)


def test_names_that_need_quotes_get_them(walk):
    tables = {"shop.guests": ["id", "Name", "first name", "order"], "shop.bookings": ["guests_id", "select"]}
    one = sql(tables=tables)
    held = engine(one)
    for text in (
        'SELECT id, Name, "first name", "order" FROM shop.guests',
        'SELECT bookings."select" FROM shop.guests JOIN shop.bookings ON bookings.guests_id = guests.id',
    ):
        assert accepts(held, text)
        assert problem(one, text) is None
    assert all(problem(one, text) is None for text in walk(one, number=12))


# Pieces of a statement: a text, and whether it is a value.
value = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).map(
        lambda text: ["'", (text.replace("'", "''"), True), "'"]
    ),
    st.from_regex(r"-?[1-9][0-9]{0,5}(\.[0-9]{1,3})?", fullmatch=True).map(lambda text: [(text, True)]),
)
alias = st.from_regex(r"x[0-9]{1,6}", fullmatch=True).map(lambda text: [" AS ", (text, True)])
test = st.builds(
    lambda column, sign, one: [f"{column} {sign} ", *one],
    st.sampled_from(("id", "name")),
    st.sampled_from("=<>"),
    value,
)
statement = st.builds(
    lambda name, tests, limit, comment: [
        "SELECT name", *name, " FROM guests WHERE ", *tests[0],
        *(piece for one in tests[1:] for piece in (" AND ", *one)),
        " LIMIT ", (str(limit), True), *([" ", (f"-- {comment}", True)] if comment else []),
    ],
    alias, st.lists(test, min_size=1, max_size=4), st.integers(1, 999), st.sampled_from(("", "who 'is' it")),
)  # fmt: skip


def split(pieces):
    """The text of pieces, and the ranges of its values."""
    text, ranges = "", []
    for piece in pieces:
        said, own = piece if isinstance(piece, tuple) else (piece, False)
        if own:
            ranges.append((len(text), len(text) + len(said)))
        text += said
    return text, ranges


@given(statement)
def test_values_cover_exactly_the_literals(pieces):
    text, ranges = split(pieces)
    assert values(SQL, text) == ranges
    assert problem(SQL, text) is None


@given(statement, st.data())
def test_values_of_a_text_that_is_cut_off(pieces, data):
    text, ranges = split(pieces)
    end = data.draw(st.integers(0, len(text)))
    whole = {at for start, stop in ranges for at in range(start, min(stop, end))}
    found = {at for start, stop in values(SQL, text[:end]) for at in range(start, stop)}
    # A sign or a doubled quote may be cut off from what it belongs to.
    assert whole - found <= {end - 1}
    assert found <= whole


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    st.sampled_from([dialect for dialect in DIALECTS if dialect != "oracle"]),
)
@settings(max_examples=150)
def test_filled_values_come_back_whole(city, dialect):
    import sqlglot

    one = sql(dialect=dialect)
    example = (
        "SELECT id FROM guests WHERE name = '<redacted:city>' AND name <> <redacted:city> AND id > <redacted>"
    )
    text = filled(one, example, {"city": city}, random.Random(0))
    assert problem(one, text) is None
    literals = [found.this for found in sqlglot.parse_one(text, dialect=dialect).find_all(sqlglot.exp.Literal)]
    assert [found for found in literals if not found.isdigit() or found == city][:2] == [city, city]


def test_marks_in_comments_names_and_longer_texts():
    text = filled(
        SQL,
        "SELECT id AS \"<redacted:who>\" FROM guests WHERE name LIKE '%<redacted:who>%' "
        "AND vip = <redacted:yes> AND id = <redacted:place.code> -- <redacted:who>",
        {"who": "A\n\"B'", "yes": True, "place": {"code": 7}},
        random.Random(0),
    )
    assert 'AS "A\n""B\'"' in text
    assert "LIKE '%A\n\"B''%' AND vip = TRUE AND id = 7" in text
    assert text.endswith("-- A \"B'")


@pytest.mark.parametrize(
    ("keys", "place", "sentence"),
    [
        ({"tables": {"guests": []}}, ("tables", "guests"), "has no columns"),
        ({"tables": {"a;b": ["id"]}}, ("tables", "a;b"), "is no name of a table"),
        ({"tables": {"guests": ["id;"]}}, ("tables", "guests"), "has a column whose name is none"),
        ({"tables": {"guests": ["id", "ID"]}}, ("tables", "guests"), "has the column id twice"),
        ({"tables": {"guests": ["id"], "Guests": ["id"]}}, ("tables", "guests"), "stands twice"),
        ({"tables": {f"t{n}": ["id"] for n in range(101)}}, ("tables",), "are over 100"),
        ({"tables": {"t": [f"c{n}" for n in range(2001)]}}, ("tables",), "have over 2,000 columns"),
        ({"joins": ["guests"]}, ("joins", 0), "is no join"),
        ({"joins": ["guests.id = staff.id"]}, ("joins", 0), "there is no table staff"),
        ({"joins": ["guests.id = bookings.x"]}, ("joins", 0), "bookings has no column x"),
        ({"joins": ["guests.id = guests.name"]}, ("joins", 0), "joins a table with itself"),
    ],
)
def test_mistakes_in_a_schema_are_told(keys, place, sentence):
    found = mistakes(sql(**keys))
    assert found[0][0] == place
    assert sentence in found[0][1]


def test_a_large_schema_compiles():
    tables = {
        f"t{n}": {"id": "int", f"t{n + 1}_id": "int", **{f"c{m}": "text" for m in range(8)}} for n in range(12)
    }
    one = sql(tables=tables, statements=["select"])
    begin = time.monotonic()
    assert mistakes(one) == []
    assert time.monotonic() - begin < 10
    text = "SELECT t1.c1 FROM t1 JOIN t2 ON t1.t2_id = t2.id JOIN t3 ON t2.t3_id = t3.id"
    assert accepts(engine(one), text)
    assert problem(one, text) is None


def test_joins_that_are_given_replace_those_that_are_guessed():
    one = sql(joins=["guests.name = bookings.seen"])
    assert accepts(engine(one), "SELECT guests.id FROM guests JOIN bookings ON guests.name = bookings.seen")
    assert not accepts(
        engine(one), "SELECT guests.id FROM guests JOIN bookings ON bookings.guest_id = guests.id"
    )


def test_a_statement_in_a_fence():
    one = sql(fence=True)
    text = "```sql\nSELECT id FROM guests WHERE name = 'Bo'\n```"
    assert accepts(engine(one), text)
    assert problem(one, text) is None
    assert [text[start:end] for start, end in values(one, text)] == ["Bo"]
    assert [text[start:end] for start, end in values(one, text[:-6])] == ["B"]
    assert "does not stand in a fence" in problem(one, text[7:])
    assert problem(one, text.replace("Bo", "\n```")) == "its fence is closed before the end"
    again = filled(one, "SELECT id FROM guests WHERE name = '<redacted:who>'", {"who": "Bo"}, random.Random(0))
    assert again == text
    assert filled(one, again, {}, random.Random(0)) == text


STAY = {"guests": ["id", "name", "city"], "bookings": ["id", "guest_id", "price"], "shop.items": ["id", "name"]}


def stay(dialect):
    return code(language="sql", dialect=dialect, tables=STAY, statements=ALL)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgres", "WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets"),
        ("postgres", "SELECT s.x FROM s, (WITH s AS (SELECT 1 AS x) SELECT * FROM s) q"),
        ("postgres", "WITH a AS (SELECT id FROM b), b AS (SELECT id FROM guests) SELECT id FROM a"),
        ("postgres", "WITH secrets AS (SELECT * FROM secrets) DELETE FROM guests USING secrets"),
        ("postgres", "SELECT count(*) FROM guests HAVING nope > 1"),
        ("postgres", "SELECT city AS c FROM guests WHERE c = 'x'"),
        ("postgres", "SELECT city AS price FROM guests WHERE price = 'x'"),
        ("postgres", "SELECT c AS c FROM (SELECT city AS c FROM guests WHERE c = 'x') AS g"),
        ("postgres", "SELECT city AS c, name AS c FROM guests WHERE c = 'x'"),
        ("postgres", "SELECT city AS c FROM guests UNION SELECT city AS c FROM guests WHERE c = 'x'"),
        ("mysql", "SELECT name FROM (SELECT name, city AS c FROM guests WHERE c = 'x') AS g"),
        ("postgres", "SELECT guests.id.x FROM guests"),
        ("postgres", "SELECT name FROM guests UNION SELECT id, price FROM bookings"),
        ("postgres", "INSERT INTO guests (id) SELECT * FROM bookings"),
        ("postgres", "UPDATE guests SET name = 'a', name = 'b'"),
        ("postgres", "DELETE FROM guests LIMIT 1"),
        ("bigquery", "SELECT * EXCEPT (nope) FROM guests"),
        ("snowflake", "SELECT name FROM guests QUALIFY nope = 1"),
        ("mysql", "SELECT /*!50000 nope, */ name FROM guests"),
    ],
)
def test_what_only_looks_as_if_it_kept_to_the_schema_is_refused(dialect, text):
    assert problem(stay(dialect), text) is not None


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgres", "WITH guests AS (SELECT * FROM guests) SELECT * FROM guests"),
        ("postgres", "WITH RECURSIVE t AS (SELECT id FROM guests UNION ALL SELECT id FROM t) SELECT id FROM t"),
        ("postgres", "WITH a AS (SELECT id FROM guests), b AS (SELECT id FROM a) SELECT id FROM b"),
        ("postgres", "WITH x AS (SELECT id FROM guests) DELETE FROM guests USING x WHERE guests.id = x.id"),
        ("postgres", "SELECT city, count(*) AS n FROM guests GROUP BY city HAVING count(*) > 1 ORDER BY n"),
        ("postgres", "SELECT c FROM (SELECT city AS c FROM guests) AS g WHERE c = 'x'"),
        ("postgres", "SELECT name AS city FROM guests WHERE city = 'x'"),
        ("duckdb", "SELECT city AS c FROM guests WHERE c = 'x'"),
        ("postgres", "WITH g(c) AS (SELECT city FROM guests) SELECT upper(c) AS c FROM g WHERE c = 'x'"),
        ("postgres", "SELECT g.city FROM guests g GROUP BY g.city HAVING count(g.id) > 2 AND g.city <> 'x'"),
        ("postgres", "INSERT INTO guests SELECT * FROM guests"),
        ("postgres", "SELECT shop.items.name FROM shop.items"),
        ("bigquery", "SELECT * EXCEPT (name) FROM guests"),
        ("mysql", "DELETE FROM guests LIMIT 1"),
        ("snowflake", "SELECT name, row_number() OVER (ORDER BY id) AS r FROM guests QUALIFY r = 1"),
    ],
)
def test_what_keeps_to_the_schema_in_a_roundabout_way_is_kept(dialect, text):
    assert problem(stay(dialect), text) is None
