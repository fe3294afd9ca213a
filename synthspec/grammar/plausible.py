"""Plain values as people write them: by the name of what they are, and by the formats of JSON Schema."""

from __future__ import annotations

import base64
import datetime
import json
import random
import re
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

POOL = 400  # different texts of a kind: drawing one from Faker each time would take too long

# What a value is about, by the last words of its name: Faker's name for it, and those words.
_KINDS = {
    "street_address": "address street street_address address_line address_line1 address_line2",
    "city": "city town location place destination origin departure arrival",
    "color_name": "color colour",
    "company": "company company_name organization organisation organization_name employer vendor",
    "country": "country country_name nationality",
    "country_code": "country_code",
    "currency_code": "currency currency_code",
    "date": "date day since until",
    "domain_name": "host hostname host_name domain domain_name",
    "file_name": "file filename file_name",
    "file_path": "path dir directory folder filepath file_path",
    "first_name": "first_name firstname given_name",
    "ipv4": "ip ip_address",
    "job": "job job_title occupation profession role",
    "language_code": "language language_code lang locale",
    "last_name": "last_name lastname surname family_name",
    "name": "full_name fullname customer_name contact_name person_name guest_name display_name author "
    "recipient sender owner",
    "phone_number": "phone phone_number mobile telephone fax",
    "phrase": "query q search search_term keyword keywords topic title subject",
    "postcode": "zip zipcode zip_code postcode postal_code post_code",
    "safe_email": "email e_mail email_address",
    "sentence": "description summary message body content text comment note notes reason prompt",
    "state": "state province region",
    "time": "time",
    "timezone": "timezone time_zone tz",
    "url": "url uri link website homepage endpoint webhook",
    "user_name": "username user_name login handle nickname",
}
_KIND_OF = {words: kind for kind, names in _KINDS.items() for words in names.split()}

# Usual numbers, by the last words of their name.
_RANGES = {
    "age": (18, 90),
    "day days": (1, 28),
    "hour hours": (0, 23),
    "id": (1, 99_999),
    "lat latitude": (-90, 90),
    "limit count quantity size num number guests people seats": (1, 50),
    "lng lon long longitude": (-180, 180),
    "minute minutes second seconds": (0, 59),
    "month": (1, 12),
    "page offset skip": (0, 20),
    "port": (1024, 65_535),
    "price amount cost total budget fee salary": (1, 2000),
    "ratio rate probability confidence score": (0, 1),
    "year": (1990, 2030),
}
_RANGE_OF = {words: limits for names, limits in _RANGES.items() for words in names.split()}


@lru_cache(maxsize=4096)
def texts_for(name: str, least: int, most: int) -> tuple[str, ...]:
    """Different texts that what is called `name` might be; empty if the name tells nothing.

    Args:
        least, most: characters that they may have.
    """
    kind = next((_KIND_OF[words] for words in _last_words(name) if words in _KIND_OF), None)
    return fitting(kind, least, most) if kind else ()


def range_for(name: str) -> tuple[int, int] | None:
    """The usual range of a number that is called `name`, if the name tells."""
    return next((_RANGE_OF[words] for words in _last_words(name) if words in _RANGE_OF), None)


@lru_cache(maxsize=4096)
def fitting(kind: str, least: int, most: int) -> tuple[str, ...]:
    """The texts of a kind that have so many characters."""
    return tuple(text for text in pool(kind) if least <= len(text) <= most)


@lru_cache(maxsize=64)
def pool(kind: str) -> tuple[str, ...]:
    """`POOL` texts of a kind, always the same."""
    from faker import Faker

    if kind == "phrase":
        dice = random.Random(0)
        return tuple(" ".join(dice.choices(words(), k=dice.randint(1, 3))) for _ in range(POOL))
    faker = Faker("en_US")
    faker.seed_instance(0)
    if kind == "date":  # Faker's own would depend on today
        return tuple(_date(random.Random(number)).isoformat() for number in range(POOL))
    draw = getattr(faker, kind)
    return tuple(str(draw()) for _ in range(POOL))


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """English words."""
    from faker import Faker

    return tuple(sorted(set(Faker("en_US").get_words_list())))


def word(dice: random.Random) -> str:
    known = words()
    return known[int(dice.random() * len(known))]


def content(dice: random.Random, *, json_text: bool, base_64: bool) -> str:
    """A text that holds words: as JSON, in base 64, or both."""
    text = json.dumps({word(dice): word(dice)}) if json_text else f"{word(dice)} {word(dice)}"
    return base64.b64encode(text.encode()).decode() if base_64 else text


def _last_words(name: str) -> list[str]:
    """The last three words of a name as `one_two_three`, the last two, and the last."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[-60:]).lower()
    words = re.findall(r"[a-z0-9]+", snake)[-3:]
    return ["_".join(words[first:]) for first in range(len(words))]


def _date(dice: random.Random) -> datetime.date:
    return datetime.date(2024, 1, 1) + datetime.timedelta(days=int(dice.random() * 1096))


def _time(dice: random.Random) -> str:
    return f"{dice.randrange(24):02}:{dice.randrange(0, 60, 5):02}:{dice.randrange(60):02}Z"


def _duration(dice: random.Random) -> str:
    return (
        f"P{dice.randint(1, 30)}D" if dice.random() < 0.5 else f"PT{dice.randint(1, 23)}H{dice.randint(1, 59)}M"
    )


def _host(dice: random.Random) -> str:
    return f"{_plain(dice)}.example.{dice.choice(('org', 'com', 'net'))}"


def _plain(dice: random.Random) -> str:
    return re.sub(r"[^a-z]", "", word(dice).lower()) or "word"


def _email(dice: random.Random) -> str:
    name = dice.choice(pool("first_name")).lower()
    return f"{name}{dice.randint(1, 99)}@example.{dice.choice(('org', 'com', 'net'))}"


def _uri(dice: random.Random) -> str:
    return f"https://{_host(dice)}/{_plain(dice)}/{dice.randint(1, 999)}"


def _uuid(dice: random.Random) -> str:
    return str(UUID(int=dice.getrandbits(128), version=4))


# Formats that the validator asserts, and a few that it leaves alone.
FORMATS: dict[str, Callable[[random.Random], str]] = {
    "date": lambda dice: _date(dice).isoformat(),
    "date-time": lambda dice: f"{_date(dice).isoformat()}T{_time(dice)}",
    "time": _time,
    "duration": _duration,
    "email": _email,
    "idn-email": _email,
    "hostname": _host,
    "idn-hostname": _host,
    "ipv4": lambda dice: f"192.0.2.{dice.randint(1, 254)}",
    "ipv6": lambda dice: f"2001:db8::{dice.randint(1, 0xFFFF):x}",
    "uri": _uri,
    "iri": _uri,
    "url": _uri,
    "uri-reference": lambda dice: f"/{_plain(dice)}/{dice.randint(1, 999)}",
    "iri-reference": lambda dice: f"/{_plain(dice)}/{dice.randint(1, 999)}",
    "uri-template": lambda dice: f"/{_plain(dice)}/{{{_plain(dice)}}}",
    "uuid": _uuid,
    "json-pointer": lambda dice: f"/{_plain(dice)}/{dice.randint(0, 9)}",
    "relative-json-pointer": lambda dice: f"{dice.randint(0, 3)}/{_plain(dice)}",
    "regex": lambda dice: f"^{_plain(dice)}[0-9]{{1,{dice.randint(2, 9)}}}$",
    "phone": lambda dice: dice.choice(pool("phone_number")),
    "byte": lambda dice: content(dice, json_text=False, base_64=True),
    "color": lambda dice: f"#{dice.getrandbits(24):06x}",
}
