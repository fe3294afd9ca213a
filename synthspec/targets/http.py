"""One server over HTTP: JSON in, JSON out, and every way in which that can fail."""

from __future__ import annotations

import json
import os
from typing import Any

import aiohttp

from synthspec.errors import UserError
from synthspec.targets.fleet import Busy, Fault, Unfit
from synthspec.yamlfile import brief

CONNECT = 10.0  # seconds to reach a server
IDLE = 3.0  # seconds that an unused connection is kept; vLLM and SGLang hang up after five
MAX_BYTES = 1 << 30  # of an answer: features are long


class Server:
    """A server, and the connections to it that are kept open.

    Args:
        url: without a path.
        key: sent as a bearer token; it appears nowhere else.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def call(self, method: str, path: str, body: Any = None, within: float = 60.0) -> tuple[Any, bool]:
        """The answer to one call, and whether the connection was new.

        Raises:
            Fault: no answer, or none that can be read.
            Busy: the server asks for patience.
            Unfit: it refuses this very call.
            UserError: it refuses the key.
        """
        seen: dict[str, bool] = {}
        try:
            async with self._open().request(
                method,
                f"{self.url}{path}",
                json=body,
                timeout=aiohttp.ClientTimeout(total=within, sock_connect=CONNECT),
                trace_request_ctx=seen,
                allow_redirects=False,
            ) as response:
                content = await _limited(response)
                status, headers = response.status, response.headers
        except TimeoutError:
            raise Fault(f"it gives no answer in {within:.0f} s") from None
        except aiohttp.ClientConnectorError as error:
            why = os.strerror(error.os_error.errno) if error.os_error.errno else "no such address"
            raise Fault(f"it cannot be reached ({why})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Fault(f"it broke off ({type(error).__name__})") from None
        if 300 <= status < 400:
            raise UserError(f"the server {self.url} sends its callers elsewhere ({status}): give that address")
        if status >= 400:
            _refused(self.url, status, content, headers.get("Retry-After", ""))
        try:
            return json.loads(content), "new" in seen
        except (ValueError, RecursionError):
            raise Fault("its answer is no JSON") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_note_new)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
                headers=self._headers,
                trace_configs=[trace],
            )
        return self._session


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_chunked(1 << 16):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise Fault(f"its answer has over {MAX_BYTES:,} bytes")
    return b"".join(pieces)


async def _note_new(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx["new"] = True


def _refused(url: str, status: int, content: bytes, retry_after: str) -> None:
    """Raise what an HTTP status means."""
    if status in (429, 503):
        wait = float(retry_after) if retry_after.isdecimal() else 1.0
        raise Busy(f"it answers {status}", min(wait, 30.0))
    if status in (401, 403):
        raise UserError(f"the server {url} refuses the key, or none, with {status}: give the one that it wants")
    if status == 408 or status >= 500:
        raise Fault(f"it answers {status}")
    raise Unfit(f"it answers {status}{_message(content)}")


def _message(content: bytes) -> str:
    try:
        told = json.loads(content)
        told = told.get("error", told)
        return f" ({brief(str(told['message']))})"
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
