"""What of SQL an engine is held to: a useful part of it, over the tables and columns given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from string import ascii_lowercase, digits

from synthspec.grammar.code.gbnf import COMMA, PLAIN, name_but, one_of, row, said

MAX_TABLES = 100
MAX_READ = 1_000  # columns of all tables, and of all sets of tables that are joined, counted for each
MAX_JOINED = 3  # tables of a query
MAX_STRING = 60  # characters

# Words that databases take for no name without quotes, whatever sqlglot thinks of them.
_RESERVED = frozenset(
    {
        "all", "and", "any", "as", "asc", "between", "both", "by", "case", "cast", "check", "column",
        "constraint", "create", "cross", "current", "default", "delete", "desc", "distinct", "drop", "else",
        "end", "except", "exists", "false", "fetch", "for", "foreign", "from", "full", "grant", "group",
        "having", "in", "index", "inner", "insert", "intersect", "into", "is", "join", "key", "left", "like",
        "limit", "natural", "not", "null", "offset", "on", "or", "order", "outer", "primary", "range", "rank",
        "references", "right", "row", "rows", "select", "set", "some", "table", "then", "to", "true", "union",
        "unique", "update", "user", "using", "values", "when", "where", "window", "with",
    }
)  # fmt: skip
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NUMBERS = ("int", "num", "dec", "float", "double", "real", "serial", "money", "byte")
_TEXTS = ("char", "text", "string", "clob", "enum", "uuid")


@dataclass(frozen=True)
class Column:
    """A column as a query writes it.

    Args:
        family: number, text, date, time, truth, or any where its type is not known.
    """

    text: str
    family: str


def family(type_: str, dialect: str) -> str:
    """What literals a column of a type is compared with."""
    name = type_.lower()
    if name.startswith("bool"):
        return "number" if dialect in ("tsql", "oracle") else "truth"
    if name.startswith(("timestamp", "datetime")):
        return "time"
    if name.startswith("date"):
        return "date"
    if any(part in name for part in _TEXTS):
        return "text"
    if any(part in name for part in _NUMBERS):
        return "number"
    return "any"


def rules(
    tables: Mapping[str, Mapping[str, str]],
    joins: Sequence[tuple[str, str, str, str]],
    statements: Sequence[str],
    dialect: str,
) -> dict[str, str]:
    """The rules of the grammar, `root` first.

    Args:
        tables: types by column (empty where they are not known) by table.
        joins: table, column, table, column that are equal in a join.
        statements: of select, insert, update and delete.
    """
    return _Writer(tables, joins, dialect).all(statements)


class _Writer:
    """Writes the rules of one schema, each once."""

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, str]],
        joins: Sequence[tuple[str, str, str, str]],
        dialect: str,
    ) -> None:
        self.dialect = dialect
        self.joins = joins
        self.order = list(tables)
        self.names = {table: written(table, dialect, table=True) for table in tables}
        self.columns = {
            table: [Column(written(name, dialect), family(type_, dialect)) for name, type_ in columns.items()]
            for table, columns in tables.items()
        }
        self.rules: dict[str, str] = {}

    def all(self, statements: Sequence[str]) -> dict[str, str]:
        self.rules["root"] = ""
        self.literals()
        options: list[str] = []
        if "select" in statements:
            options += [self.select(tables) for tables in self.sources()]
        for index, table in enumerate(self.order):
            if "insert" in statements:
                options.append(self.insert(index, table))
            if "update" in statements:
                options.append(self.update(index, table))
            if "delete" in statements:
                where = self.where((table,), subqueries=True)
                options.append(f"{said(f'DELETE FROM {self.names[table]}')} ws {said('WHERE ')} {where}")
        self.rules["root"] = f'({" | ".join(options)}) ";"?'
        return self.rules

    def literals(self) -> None:
        from sqlglot import Dialect

        escapes = Dialect.get_or_raise(self.dialect).tokenizer_class.STRING_ESCAPES
        quote, escaped = said("'"), "''" if "'" in escapes else "\\'"
        self.rules |= {
            "ws": r"[ \n]",
            "count": "[1-9] [0-9]{0,3}",
            "number": '"-"? ("0" | [1-9] [0-9]{0,8}) ("." [0-9]{1,4})?',
            "text": rf"""{quote} ([^'\\{PLAIN}] | {said(escaped)}){{0,{MAX_STRING}}} {quote}""",
            "day": '[12] [0-9] [0-9] [0-9] "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])',
            "date": f"{quote} day {quote}",
            "time": f'{quote} day (" " ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9])? {quote}',
            "truth": one_of(("TRUE", "FALSE")),
            "any": "number | text",
            "alias": name_but(_RESERVED, ascii_lowercase, f"{ascii_lowercase}{digits}_", "tail"),
            "tail": "[a-z0-9_]{0,16}",
        }

    def sources(self) -> list[tuple[str, ...]]:
        """Tables, and sets of tables that joins tie together, the smaller ones first, while there is room."""
        found: list[tuple[str, ...]] = []
        read = 0
        for size in range(1, MAX_JOINED + 1):
            for tables in combinations(self.order, size):
                if size > 1 and not self.joined(tables):
                    continue
                read += sum(len(self.columns[table]) for table in tables)
                if size > 1 and read > MAX_READ:
                    return found
                found.append(tables)
        return found

    def joined(self, tables: Sequence[str]) -> str:
        """What stands behind FROM, of all ways to join the tables one after the other; empty if none does."""
        ways = []
        for first in tables if len(tables) > 1 else ():
            ways += self.chains((first,), tables, said(self.names[first]))
        return " | ".join(ways)

    def chains(self, done: tuple[str, ...], tables: Sequence[str], so_far: str) -> list[str]:
        if len(done) == len(tables):
            return [so_far]
        found = []
        for one, left, other, right in self.joins:
            for inside, old, new, fresh in ((one, left, other, right), (other, right, one, left)):
                if inside in done and new in tables and new not in done:
                    sides = self.qualified(inside, old), self.qualified(new, fresh)
                    on = one_of((" = ".join(sides), " = ".join(sides[::-1])))
                    step = f"{so_far} ws join {said(f'{self.names[new]} ON ')} {on}"
                    found += self.chains((*done, new), tables, step)
        if found:
            self.rules["join"] = one_of(("JOIN ", "LEFT JOIN "))
        return found

    def qualified(self, table: str, column: str) -> str:
        return f"{self.names[table].rpartition('.')[2]}.{written(column, self.dialect)}"

    def known(self, tables: Sequence[str]) -> list[Column]:
        """The columns of some tables, with their table where there are several."""
        if len(tables) == 1:
            return self.columns[tables[0]]
        return [
            Column(f"{self.names[table].rpartition('.')[2]}.{column.text}", column.family)
            for table in tables
            for column in self.columns[table]
        ]

    def number_of(self, tables: Sequence[str]) -> str:
        return "-".join(str(self.order.index(table)) for table in tables)

    def select(self, tables: tuple[str, ...]) -> str:
        """The rule of all queries on some tables."""
        mark = self.number_of(tables)
        columns = self.known(tables)
        names = [column.text for column in columns]
        numbers = [column.text for column in columns if column.family in ("number", "any")]
        source = f"from-{mark}"
        self.rules[source] = self.joined(tables) or said(self.names[tables[0]])
        top, limit = self.limits()
        named = f"({said(' AS ')} alias)?"
        self.rules[f"col-{mark}"] = one_of(names)
        sums = [f'{one_of(("SUM(", "AVG("))} {one_of(numbers)} ")"'] if numbers else []
        self.rules[f"sum-{mark}"] = " | ".join([said("COUNT(*)"), *sums])
        self.rules[f"agg-{mark}"] = f'sum-{mark} | {one_of(("COUNT(DISTINCT ", "MIN(", "MAX("))} col-{mark} ")"'
        self.rules[f"aggs-{mark}"] = row(f"agg-{mark} {named}", COMMA, 3)
        where = f"(ws {said('WHERE ')} {self.where(tables, subqueries=True)})?"
        self.rules[f"body-{mark}"] = f"ws {said('FROM ')} {source} {where}"
        self.rules[f"order-{mark}"] = f"ws {said('ORDER BY ')} {row(f'col-{mark} way', COMMA, 3)}"
        self.rules["way"] = f"{one_of((' ASC', ' DESC'))}?"
        having = f"(ws {said('HAVING ')} sum-{mark} compare number)?"
        groups = []
        for index, column in enumerate(names):
            self.rules[f"group-{mark}-{index}"] = (
                f"{said(f'{column}, ')} aggs-{mark} body-{mark} ws {said(f'GROUP BY {column}')} {having} "
                f"(ws {said('ORDER BY ')} (agg-{mark} | {said(column)}) way)?"
            )
            groups.append(f"group-{mark}-{index}")
        items = row(f"col-{mark} {named}", COMMA, 8)
        self.rules[f"select-{mark}"] = (
            f'{said("SELECT ")} {top} (("*" | {items}) body-{mark} order-{mark}? | {" | ".join(groups)})'
            f" {limit}"
            f" | {said('SELECT DISTINCT ')} {row(f'col-{mark}', COMMA, 4)} body-{mark} {limit}"
            f" | {said('SELECT ')} aggs-{mark} body-{mark}"
        )
        return f"select-{mark}"

    def limits(self) -> tuple[str, str]:
        """What limits the rows, in front of the columns and behind all."""
        if self.dialect == "tsql":
            return f'({said("TOP ")} count " ")?', ""
        if self.dialect == "oracle":
            return "", f"(ws {said('FETCH FIRST ')} count {said(' ROWS ONLY')})?"
        return "", f"(ws {said('LIMIT ')} count)?"

    def where(self, tables: tuple[str, ...], *, subqueries: bool) -> str:
        """The rule of the conditions on some tables."""
        mark = self.number_of(tables)
        name = f"where-{mark}" if subqueries else f"plain-{mark}"
        if name in self.rules:
            return name
        self.rules["compare"] = one_of((" = ", " <> ", " < ", " <= ", " > ", " >= "))
        test = f"test-{mark}"
        self.rules[test] = " | ".join(self.tests(self.known(tables)))
        one = test
        if subqueries:
            one = f"either-{mark}"
            self.rules[one] = " | ".join([test, *self.subqueries(tables)])
        both = f"ws {one_of(('AND ', 'OR '))}"
        bracket = f'"(" {row(test, said(" OR "), 3)} ")"'
        self.rules[name] = row(f"({said('NOT ')}? {one} | {bracket})" if subqueries else one, both, 4)
        return name

    def subqueries(self, tables: tuple[str, ...]) -> list[str]:
        """Tests against other rows: of a table that a join leads to, or of all rows of the same table."""
        found = []
        for one, left, other, right in self.joins:
            for inside, old, new, fresh in ((one, left, other, right), (other, right, one, left)):
                if inside in tables:
                    name = self.reference(tables, inside, old)
                    inner = self.subquery(said(written(fresh, self.dialect)), new)
                    found.append(f'{said(name)} {one_of((" IN (", " NOT IN ("))} {inner} ")"')
        for table in tables:
            numbers = [column.text for column in self.columns[table] if column.family == "number"]
            if numbers:
                outer = one_of(column.text for column in self.known(tables) if column.family == "number")
                inner = self.subquery(f'{one_of(("AVG(", "MIN(", "MAX("))} {one_of(numbers)} ")"', table)
                found.append(f'{outer} compare "(" {inner} ")"')
        return found

    def subquery(self, item: str, table: str) -> str:
        where = self.where((table,), subqueries=False)
        return f"{said('SELECT ')} {item} {said(f' FROM {self.names[table]}')} ({said(' WHERE ')} {where})?"

    def reference(self, tables: tuple[str, ...], table: str, column: str) -> str:
        return self.qualified(table, column) if len(tables) > 1 else written(column, self.dialect)

    def tests(self, columns: Iterable[Column]) -> list[str]:
        by_family: dict[str, list[str]] = {}
        for column in columns:
            by_family.setdefault(column.family, []).append(column.text)
        found = [f'{one_of(name for names in by_family.values() for name in names)} " IS " "NOT "? "NULL"']
        for kind, names in by_family.items():
            one = one_of(names)
            if kind == "truth":
                found.append(f'{one} " = " truth')
                continue
            found.append(f"{one} compare {kind}")
            found.append(f'{one} {one_of((" IN (", " NOT IN ("))} {row(kind, COMMA, 8)} ")"')
            if kind in ("text", "any"):
                found.append(f"{one} {one_of((' LIKE ', ' NOT LIKE '))} text")
            if kind != "text":
                found.append(f'{one} " BETWEEN " {kind} " AND " {kind}')
        return found

    def insert(self, index: int, table: str) -> str:
        """The rule of new rows: of all columns, or of all but the first, which databases often count up."""
        columns = self.columns[table]
        options = []
        for some in (columns, columns[1:]) if len(columns) > 1 else (columns,):
            names = ", ".join(column.text for column in some)
            values = ' ", " '.join(f'({column.family} | "NULL")' for column in some)
            rows = row(f'"(" {values} ")"', COMMA, 4)
            options.append(f"{said(f'INSERT INTO {self.names[table]} ({names})')} ws {said('VALUES ')} {rows}")
        self.rules[f"insert-{index}"] = " | ".join(options)
        return f"insert-{index}"

    def update(self, index: int, table: str) -> str:
        """The rule of changes: each column at most once, in the order of the table."""
        columns = self.columns[table]
        rest = ""
        for number in reversed(range(len(columns))):
            column = columns[number]
            name = f"set-{index}-{number}"
            one = f'{said(f"{column.text} = ")} ({column.family} | "NULL")'
            self.rules[name] = f'{one} (", " {rest})? | {rest}' if rest else one
            rest = name
        where = self.where((table,), subqueries=True)
        return f'{said(f"UPDATE {self.names[table]}")} ws "SET " {rest} ws "WHERE " {where}'


@lru_cache(maxsize=4096)
def written(name: str, dialect: str, *, table: bool = False) -> str:
    """A name as the dialect writes it, in quotes only where it needs them."""
    import sqlglot
    from sqlglot import exp

    if table and "." in name:
        return ".".join(written(part, dialect) for part in name.split("."))
    if _PLAIN_NAME.fullmatch(name) and name.lower() not in _RESERVED:
        try:
            query = sqlglot.parse_one(f"SELECT {name} FROM {name}", dialect=dialect)
            column, source = query.expressions[0], query.find(exp.Table)
            if isinstance(column, exp.Column) and column.name == name and source and source.name == name:
                return name
        except sqlglot.errors.SqlglotError:
            pass
    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)
