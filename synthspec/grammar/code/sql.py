"""SQL against a given schema."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from synthspec.grammar.code.marks import substituted, value_of
from synthspec.grammar.redacted import MARK
from synthspec.spec import Part

if TYPE_CHECKING:
    from sqlglot import exp

FENCE = "sql"

MAX_TEXT = 20_000  # characters that are read
MAX_COLUMNS = 2_000  # of all tables together

Statement = Literal["select", "insert", "update", "delete"]
_NAME = re.compile(r"[^\W\d][\w $-]*")
_CLAUSES = frozenset(
    {
        "conflict", "expression", "expressions", "from_", "limit", "order", "returning", "this", "using",
        "where", "with_",
    }
)  # fmt: skip
_JOIN = re.compile(r"\s*([^=]+)\.([^.=]+?)\s*=\s*([^=]+)\.([^.=]+?)\s*")

_NO_COLUMN = "it names a column that its tables do not have"
_ALIASES_IN_WHERE = frozenset({"clickhouse", "duckdb", "snowflake", "sqlite"})
_LIMITED_CHANGES = frozenset({"mysql", "sqlite"})  # dialects with DELETE … LIMIT

# Words of SQL that sqlglot reads without listing them.
_WORDS = frozenset(
    {
        "action", "ascending", "conflict", "cross", "days", "do", "exclude", "excluded", "first", "following",
        "hour", "last", "minute", "month", "next", "nothing", "nulls", "only", "others", "percent", "preceding",
        "replace", "restart", "row", "rows", "second", "share", "skip", "temporary", "ties", "unbounded",
        "work", "year", "zone",
    }
)  # fmt: skip


class Sql(Part):
    """One SQL statement on tables that are given."""

    language: Literal["sql"]
    dialect: Literal[
        "bigquery", "clickhouse", "databricks", "duckdb", "mysql", "oracle", "postgres", "redshift",
        "snowflake", "spark", "sqlite", "trino", "tsql",
    ] = Field("postgres", description="as sqlglot calls it")  # fmt: skip
    tables: dict[str, list[str] | dict[str, str]] = Field(
        min_length=1, description="each table's columns: a list of names, or a mapping of each to its type"
    )
    joins: list[str] | None = Field(
        None,
        description="what tables are joined on, as in `bookings.guest_id = guests.id`; by default columns such "
        "as guest_id of the same name, and guest_id with the id of guests",
    )
    statements: list[Statement] = Field(
        ["select"], min_length=1, description="select, insert, update, delete: those that may be written"
    )
    fence: bool = Field(False, description="whether it stands in a Markdown fence")


def rules(code: Sql) -> dict[str, str]:
    """The rules of what an engine is held to; see `synthspec.grammar.code.sqlgrammar`."""
    from synthspec.grammar.code import sqlgrammar

    return sqlgrammar.rules(_types(code), _joins(code), code.statements, code.dialect)


def problem(code: Sql, text: str) -> str | None:
    """Why a text is not one statement of the schema in the dialect; None if it is."""
    import sqlglot
    from sqlglot.errors import OptimizeError, ParseError, SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # its warnings quote the text
    if len(text) > MAX_TEXT:
        return f"it is longer than {MAX_TEXT:,} characters"
    if any(
        piece.kind == "comment" and text.startswith("/*!", piece.start) for piece in _pieces(code.dialect, text)
    ):
        return "it has a comment that MySQL runs"
    try:
        parsed = sqlglot.parse(text, dialect=code.dialect)
        statements = [one for one in parsed if one is not None and not isinstance(one, sqlglot.exp.Semicolon)]
        if len(statements) != 1:
            return f"there are {len(statements)} statements where one is asked for"
        return _Check(code).problem(statements[0])
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        where = f" (line {first['line']}, column {first['col']})" if first.get("line") else ""
        return f"it is not SQL of the dialect {code.dialect}{where}"
    except OptimizeError:
        return f"{_NO_COLUMN}, or that two of them have"
    except SqlglotError:
        return f"it is not SQL of the dialect {code.dialect}"
    except RecursionError:
        return "it is nested too deeply"


def values(code: Sql, text: str) -> list[tuple[int, int]]:
    """Where literals, comments and names of one's own stand: [start, end) in characters, without quotes."""
    names, words, functions = _vocabulary(code.dialect, _names(code))
    found = []
    for piece in _pieces(code.dialect, text):
        inside = text[piece.start : piece.end].lower()
        if piece.kind == "name" and inside in names:
            continue
        if piece.kind == "word":
            called = text[piece.end :].lstrip()[:1] == "("
            if inside in names or inside in words or (called and inside in functions):
                continue
            # A word at the end may be half of one.
            if piece.end == len(text) and any(
                word.startswith(inside) for vocabulary in (names, words, functions) for word in vocabulary
            ):
                continue
        if piece.start < piece.end:
            found.append((piece.start, piece.end))
    return found


def filled(code: Sql, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted statement with values; a mark outside of quotes becomes a literal."""
    result, at = "", 0
    for piece in _pieces(code.dialect, example):
        inside = example[piece.start : piece.end]
        result += example[at : piece.start]
        at = piece.end
        if piece.kind == "mark":
            mark = MARK.fullmatch(inside)
            result += _literal(code.dialect, value_of(mark, slots, dice, quoted=False)) if mark else inside
        else:
            result += substituted(inside, slots, dice, piece.escaped)
    return result + example[at:]


def mistakes(code: Sql) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the schema, as (place, sentence)."""
    from synthspec.grammar.code.sqlgrammar import MAX_TABLES

    types = _types(code)
    if len(types) > MAX_TABLES:
        yield ("tables",), f"are over {MAX_TABLES}; keep those that one purpose needs"
        return
    if sum(map(len, types.values())) > MAX_COLUMNS:
        yield ("tables",), f"have over {MAX_COLUMNS:,} columns together; keep those that one purpose needs"
        return
    for table, columns in types.items():
        parts = table.split(".")
        if len(parts) > 3 or not all(map(_NAME.fullmatch, parts)):
            yield ("tables", table), "is no name of a table; write letters, digits and _, as in shop.guests"
        if [name.lower() for name in types].count(table.lower()) > 1:
            yield ("tables", table), "stands twice, since SQL does not tell its letters apart; remove one"
        if not columns:
            yield ("tables", table), "has no columns; write at least one"
        lower = [name.lower() for name in code.tables[table]]
        for column in columns:
            if not _NAME.fullmatch(column):
                yield ("tables", table), "has a column whose name is none; write letters, digits and _"
            elif lower.count(column.lower()) > 1:
                yield ("tables", table), f"has the column {column} twice; remove one"
    for index, join in enumerate(code.joins or ()):
        sides = _JOIN.fullmatch(join)
        if not sides:
            yield ("joins", index), "is no join; write it as bookings.guest_id = guests.id"
            continue
        for table, column in ((sides[1], sides[2]), (sides[3], sides[4])):
            if table not in types:
                yield ("joins", index), f"there is no table {table}; there are {', '.join(types)}"
            elif column not in types[table]:
                yield ("joins", index), f"{table} has no column {column}; it has {', '.join(types[table])}"
        if sides[1] == sides[3]:
            yield ("joins", index), "joins a table with itself; write two tables"


def _types(code: Sql) -> dict[str, dict[str, str]]:
    return {
        table: columns if isinstance(columns, dict) else dict.fromkeys(columns, "")
        for table, columns in code.tables.items()
    }


def _names(code: Sql) -> frozenset[str]:
    """The names of tables, their parts, and columns, in small letters."""
    tables = [part for table in code.tables for part in table.lower().split(".")]
    return frozenset([*tables, *(name.lower() for columns in code.tables.values() for name in columns)])


def _joins(code: Sql) -> list[tuple[str, str, str, str]]:
    """Table, column, table, column of each join."""
    if code.joins is not None:
        found = [_JOIN.fullmatch(join) for join in code.joins]
        return [(sides[1], sides[2], sides[3], sides[4]) for sides in found if sides]
    joins = []
    tables = list(code.tables)
    for index, one in enumerate(tables):
        for other in tables[index + 1 :]:
            shared = [name for name in code.tables[one] if name in code.tables[other] and name.endswith("_id")]
            joins += [(one, name, other, name) for name in shared]
            for child, parent in ((one, other), (other, one)):
                short = parent.rpartition(".")[2]
                for column in code.tables[child]:
                    stem = column.removesuffix("_id")
                    plurals = (stem, f"{stem}s", f"{stem}es", f"{stem[:-1]}ies")
                    if column.endswith("_id") and short in plurals and "id" in code.tables[parent]:
                        joins.append((child, column, parent, "id"))
    return joins


class _Check:
    """Holds a statement to a schema.  Names are compared in small letters, as most databases do."""

    def __init__(self, code: Sql) -> None:
        self.statements = code.statements
        self.dialect = code.dialect
        self.columns = {
            table.lower(): {name.lower(): "text" for name in columns} for table, columns in code.tables.items()
        }

    def problem(self, tree: Any) -> str | None:
        from sqlglot import exp

        kinds = {exp.Insert: "insert", exp.Update: "update", exp.Delete: "delete"}
        written = [name for kind, name in kinds.items() if next(tree.find_all(kind), None)]
        if not isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete) or tree.find(exp.Command):
            return f"it is no statement of {', '.join(self.statements)}"
        for name in written or ["select"]:
            if name not in self.statements:
                return f"{name} is not allowed; {', '.join(self.statements)} is"
        if len(written) > 1 or (written and type(tree) not in kinds):
            return "a statement that writes stands inside of another"
        if tree.find(exp.Into):
            return "it writes into a table of its own"
        if any(not query.expressions for query in tree.find_all(exp.Select)):
            return "it selects nothing"
        for word in tree.find_all(exp.Identifier):
            word.set("this", word.this.lower())
            word.set("quoted", True)
        return self.tables(tree) or self.statement(tree)

    def tables(self, tree: exp.Query | exp.Insert | exp.Update | exp.Delete) -> str | None:
        """Every table is known, and becomes a name without dots."""
        from sqlglot import exp

        for table in list(tree.find_all(exp.Table)):
            if not isinstance(table.this, exp.Identifier):
                return "it reads from what is no table"
            name = ".".join(part.name for part in table.parts)
            if name in _common_names(table):
                continue
            if name not in self.columns:
                return "it names a table that there is not"
            if not table.alias and "." in name:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("db", None)
            table.set("catalog", None)
            table.set("this", exp.to_identifier(name, quoted=True))
        return None

    def statement(self, tree: Any) -> str | None:
        from sqlglot import exp

        if isinstance(tree, exp.Query):
            return self.query(tree)
        if {name for name, value in tree.args.items() if value} - _CLAUSES:
            return "it has a clause that cannot be checked"
        if self.dialect not in _LIMITED_CHANGES and (tree.args.get("limit") or tree.args.get("order")):
            return f"{self.dialect} has no LIMIT or ORDER BY here"
        if isinstance(tree, exp.Insert):
            return self.insert(tree)
        # As a query that reads all that the statement names.
        read = [one for pair in tree.expressions for one in (pair.this, pair.expression)]
        if isinstance(tree, exp.Update):
            if not all(
                isinstance(pair, exp.EQ) and isinstance(pair.this, exp.Column) for pair in tree.expressions
            ):
                return "it sets what is no column"
            if len({pair.this.name for pair in tree.expressions}) < len(tree.expressions):
                return "it sets a column twice"
            if any(pair.this.name not in self.columns.get(tree.this.name, ()) for pair in tree.expressions):
                return _NO_COLUMN
        query = exp.select(*([one.copy() for one in read] or ["1"])).from_(tree.this.copy())
        others = [
            *(tree.args.get("using") or ()),
            *([tree.args["from_"].this] if tree.args.get("from_") else []),
        ]
        for other in others:
            query = query.join(other.copy(), join_type="cross")
        if tree.args.get("returning"):
            query = query.select(*[one.copy() for one in tree.args["returning"].expressions])
        for clause in ("where", "with_", "order", "limit"):
            if tree.args.get(clause):
                query.set(clause, tree.args[clause].copy())
        return self.query(query)

    def insert(self, tree: exp.Insert) -> str | None:
        from sqlglot import exp

        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        known = self.columns.get(target.name)
        if known is None:
            return "it names a table that there is not"
        named = [one.name for one in tree.this.expressions] if isinstance(tree.this, exp.Schema) else [*known]
        conflict = tree.args.get("conflict")
        named_later = [one.name for one in conflict.find_all(exp.Column)] if conflict else []
        if not set(named) | set(named_later) <= set(known):
            return _NO_COLUMN
        if len(set(named)) < len(named):
            return "it names a column twice"
        source = tree.expression
        rows = (
            [row.expressions for row in source.expressions]
            if isinstance(source, exp.Values)
            else [source.selects]
            if isinstance(source, exp.Query) and not source.is_star
            else []
        )
        if any(len(row) != len(named) for row in rows):
            return "it gives a row another number of values than of columns"
        if isinstance(source, exp.Values):
            source = exp.select(*[value.copy() for row in rows for value in row])
        if not isinstance(source, exp.Query):
            return "it has a clause that cannot be checked"
        query = source.copy()
        if tree.args.get("with_"):
            query.set("with_", tree.args["with_"].copy())
        back = tree.args.get("returning")
        wrong = (
            self.query(exp.select(*[one.copy() for one in back.expressions]).from_(target.copy()))
            if back
            else None
        )
        return wrong or self.query(query, None if isinstance(tree.expression, exp.Values) else len(named))

    def query(self, query: exp.Query, columns: int | None = None) -> str | None:
        """Every column is one of its tables; OptimizeError if it is not.

        Args:
            columns: how many it must give; None: any.
        """
        from sqlglot import exp
        from sqlglot.optimizer.qualify_columns import qualify_columns, validate_qualify_columns
        from sqlglot.optimizer.qualify_tables import qualify_tables
        from sqlglot.schema import MappingSchema

        for one in query.find_all(exp.Column):
            owner = ".".join(part.name for part in one.parts[:-1])
            if isinstance(one.parent, exp.Dot) or (one.args.get("db") and owner not in self.columns):
                return "it reaches into a column"
        known = {name for table in self.columns.values() for name in table}
        for star in query.find_all(exp.Star):
            if any(one.name not in known for key in star.args for one in _identifiers(star.args[key])):
                return _NO_COLUMN
        schema = MappingSchema({**self.columns}, normalize=False)
        plain = qualify_tables(query)
        found = qualify_columns(plain.copy(), schema)
        validate_qualify_columns(found)
        if self.dialect not in _ALIASES_IN_WHERE:
            plain = qualify_columns(plain, schema, expand_alias_refs=False)
            if any(not one.table for where in plain.find_all(exp.Where) for one in where.find_all(exp.Column)):
                return "its WHERE reads a name that only its SELECT gives"
        for clause in found.find_all(exp.Having, exp.Qualify):
            select = clause.parent_select
            given = {one.alias_or_name for one in select.selects} if select else set()
            columns_here = (one for one in clause.find_all(exp.Column) if one.parent_select is select)
            if any(not one.table and one.name not in given for one in columns_here):
                return _NO_COLUMN
        for both in found.find_all(exp.SetOperation):
            if len(both.left.selects) != len(both.right.selects):
                return "its queries give different numbers of columns"
        if columns is not None and len(found.selects) != columns:
            return "it gives a row another number of values than of columns"
        return None


def _common_names(table: exp.Table) -> set[str]:
    """The common table expressions that a table's name may mean where it stands."""
    from sqlglot import exp

    names: set[str] = set()
    node: Any = table
    while node.parent is not None:
        above = node.parent
        if isinstance(above, exp.With):  # inside of one: those before it, or all if they may name themselves
            listed = above.expressions
            seen = listed if above.args.get("recursive") else listed[: _place_of(node, listed)]
        else:
            shared = above.args.get("with_")
            seen = shared.expressions if shared is not None and shared is not node else []
        names |= {common.alias for common in seen}
        node = above
    return names


def _place_of(node: Any, listed: list[Any]) -> int:
    return next(index for index, one in enumerate(listed) if one is node)


def _identifiers(value: Any) -> Iterator[Any]:
    """What `* EXCEPT (…)` and the like name."""
    from sqlglot import exp

    for one in value if isinstance(value, list) else []:
        inner = one.this if isinstance(one, exp.Alias) else one
        if isinstance(inner, exp.Identifier | exp.Column):
            yield inner


@dataclass(frozen=True)
class _Piece:
    """A stretch of SQL that is not plain structure: [start, end) in characters, without quotes.

    Args:
        kind: text, name (in quotes), word, number, comment or mark.
        quote: what ends it, where it stands in quotes.
        backslash: whether a backslash escapes in it.
    """

    kind: str
    start: int
    end: int
    quote: str = ""
    backslash: bool = False

    def escaped(self, value: str) -> str:
        """A value as it is written inside."""
        if self.kind == "comment":
            return " ".join(value.replace("*/", "").split())
        if self.backslash:
            value = value.replace("\\", "\\\\").replace("\n", "\\n")
        return (
            value.replace(self.quote, f"\\{self.quote}" if self.backslash else self.quote * 2)
            if self.quote
            else value
        )


def _pieces(dialect: str, text: str) -> Iterator[_Piece]:
    for found in _scanner(dialect).finditer(text):
        group = found.lastgroup or ""
        if group in _quotes(dialect):
            opened, closed, slashes = _quotes(dialect)[group]
            start = found.start() + len(opened)
            end = found.end() - len(closed) * (found[f"end_{group}"] == closed)
            yield _Piece(group.rstrip("0123456789"), start, end, closed, slashes)
        elif group == "dollars":
            tag = len(found["tag"]) + 2
            whole = len(found[0]) >= 2 * tag and found[0].endswith(found[0][:tag])
            yield _Piece("text", found.start() + tag, found.end() - tag * whole)
        elif group != "other":
            yield _Piece(group, found.start(), found.end())


@lru_cache(maxsize=32)
def _quotes(dialect: str) -> dict[str, tuple[str, str, bool]]:
    """By the name of the scanner's group: what opens and closes a text or name, and if backslashes escape."""
    from sqlglot import Dialect

    tokenizer = Dialect.get_or_raise(dialect).tokenizer_class
    names = [(one, one) if isinstance(one, str) else (one[0], one[1]) for one in tokenizer.IDENTIFIERS]
    taken = {opened for opened, _ in names}
    texts = sorted((str(one) for one in tokenizer.QUOTES if one not in taken), key=len, reverse=True)
    escaping = [(one[0], one[1]) for one in tokenizer.BYTE_STRINGS if one[0] in ("e'", "E'")]
    groups: list[tuple[str, str, str, bool]] = [
        *[("text", opened, closed, True) for opened, closed in escaping],
        *[("text", one, one, "\\" in tokenizer.STRING_ESCAPES) for one in texts],
        *[("name", opened, closed, "\\" in tokenizer.IDENTIFIER_ESCAPES) for opened, closed in names],
    ]
    return {f"{kind}{index}": (first, last, slash) for index, (kind, first, last, slash) in enumerate(groups)}


@lru_cache(maxsize=32)
def _scanner(dialect: str) -> re.Pattern[str]:
    from sqlglot import Dialect

    lines = [
        re.escape(one) for one in Dialect.get_or_raise(dialect).tokenizer_class.COMMENTS if isinstance(one, str)
    ]
    quoted = []
    for group, (opened, closed, slashes) in _quotes(dialect).items():
        first, last = re.escape(opened), re.escape(closed)
        slash = r"\\(?:.|\Z)|" if slashes else ""
        twice = f"{last}{last}|" if len(closed) == 1 else ""
        quoted.append(rf"(?P<{group}>{first}(?:{slash}{twice}(?!{last}).)*+(?P<end_{group}>{last}|\Z))")
    mark = MARK.pattern.replace("((?!\\?)", "(?:").replace("([^", "(?:[^")
    return re.compile(
        rf"(?P<mark>{mark})|(?P<comment>(?:{'|'.join(lines)})[^\n]*|/\*.*?(?:\*/|\Z))|{'|'.join(quoted)}|"
        r"(?P<dollars>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))|"
        r"(?P<word>[^\W\d][\w$]*)|(?P<number>(?:(?<![^\s(,=<>])-)?(?:\d[\w.]*|\.\d\w*))|(?P<other>.)",
        re.DOTALL,
    )


@lru_cache(maxsize=64)
def _vocabulary(dialect: str, names: frozenset[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Words that are nobody's own, in small letters: the schema's names, keywords, functions."""
    from sqlglot import Dialect, exp

    own = Dialect.get_or_raise(dialect)
    keywords = {
        word for phrase in own.tokenizer_class.KEYWORDS for word in re.findall(r"[a-z_]\w*", phrase.lower())
    }
    types = {one.value.lower() for one in exp.DType}
    functions = frozenset(name.lower() for name in own.parser_class.FUNCTIONS)
    return names, frozenset(keywords | types | _WORDS), functions


def _literal(dialect: str, value: Any) -> str:
    from sqlglot import exp

    if isinstance(value, bool) and dialect in ("tsql", "oracle"):
        value = int(value)
    return str(exp.convert(value).sql(dialect=dialect))
