"""Many workers, one pool of requests: who answers what, how much at once, and what happens when one fails."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from synthspec.errors import Stopped, SynthspecError, UserError

Row = dict[str, Any]
Result = TypeVar("Result")

START, MOST = 16, 1024  # requests in flight at one worker
REST = 0.25  # seconds after a failure, twice as long after each in a row
TRIES = 4  # of a request, each on another worker where there is one
FEW = 8  # refusals before anything else say that no request will be taken
FIRST = 600.0  # seconds for an answer while nothing is known about a worker's speed
OVERTIME = 10  # times the slowest pace seen, before an answer counts as hung
STALE = 3  # times the time that another worker needs, before it is asked too


@dataclass(frozen=True)
class Answered:
    """What a worker wrote.

    Args:
        ids: token ids, the end token included.
        finish_reason: `stop` or `length`.
        logprobs: of each token, where they were asked for.
        fresh: the connection was new, so another server than before may have answered.
    """

    ids: list[int]
    finish_reason: str
    logprobs: list[float] | None = None
    fresh: bool = False


class Fault(Exception):
    """A worker failed; another, or the same one later, may answer the request."""


class Busy(Fault):
    """A worker is well, and has too much to do.

    Args:
        wait: seconds that it asks for.
    """

    def __init__(self, why: str, wait: float = 1.0) -> None:
        super().__init__(why)
        self.wait = wait


class Unfit(Exception):
    """A worker will not answer this request, and neither will another."""


class Worker(Protocol):
    """An engine that answers requests."""

    name: str

    async def meet(self) -> Mapping[str, Any]:
        """Check that it is the spec's target, and give the facts that all workers must share.

        Raises:
            UserError: it is not.
            Fault: it does not answer.
        """

    async def ask(self, row: Row, within: float) -> Answered:
        """Answer one request.

        Args:
            row: of `samples.schema.REQUESTS`.
            within: seconds after which it counts as hung.

        Raises:
            Fault, Busy, Unfit: no answer.
        """

    async def close(self) -> None: ...


@dataclass(eq=False)
class _Job:
    """A request, until it has its answer."""

    row: Row
    done: asyncio.Future[Answered | None]
    tries: int = 0
    faulty: set[int] = field(default_factory=set)  # places of the workers that failed at it
    flights: dict[int, tuple[float, asyncio.Task[None]]] = field(default_factory=dict)  # since when, by place

    @property
    def key(self) -> str:
        """Requests of one key begin alike: a worker that read one has most of the next in its cache."""
        return str(self.row["grammar"] or self.row["set"] or self.row["purpose"])


@dataclass(eq=False)
class _Lane:
    """A worker, and what is known about its speed and health."""

    place: int
    worker: Worker
    limit: float = START
    flying: int = 0
    key: str | None = None
    pace: float | None = None  # seconds a token, smoothed
    slowest: float = 0.0  # seconds a token, the most of late
    rate: float = 0.0  # tokens a second, in the last window
    window: tuple[float, int, int] | None = None  # its beginning, its answers and its tokens
    full: bool = False  # as many in flight as the limit allows, since the window began
    rests: bool = False
    failures: int = 0  # in a row
    met: float = -1.0  # when it last proved to be the spec's target
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: str = ""  # why it last failed

    def within(self, row: Row) -> float:
        """Seconds that an answer may take."""
        if self.pace is None:
            return FIRST
        return 30 + OVERTIME * self.slowest * (int(row["max_new_tokens"]) + 8)

    def answered(self, seconds: float, tokens: int, now: float) -> None:
        """Learn from an answer; allow more at once as long as that gives more tokens a second.

        Where it does not, the latency of a token has risen by as much as was added, and what is added waits.
        """
        pace = seconds / (tokens + 8)  # a prompt costs time too
        self.pace = pace if self.pace is None else 0.9 * self.pace + 0.1 * pace
        self.slowest = max(pace, 0.98 * self.slowest)
        self.failures = 0
        begun, answers, written = self.window or (now - seconds, 0, 0)
        answers, written = answers + 1, written + tokens
        self.window = begun, answers, written
        if answers < max(8, self.limit) or now <= begun:
            return
        rate = written / (now - begun)
        if self.full and rate > 1.05 * self.rate:
            self.limit, self.rate = min(1.5 * self.limit, MOST), rate
        elif self.full and rate < 0.9 * self.rate:
            self.limit, self.rate = max(1.0, self.limit / 1.5), rate
        self.window, self.full = (now, 0, 0), False


class Fleet:
    """Workers that answer requests from any number of threads, in an event loop of their own.

    Requests are kept in one pool, and a worker takes one when it has room: of those that begin like the ones
    it had, if there are any. What fails is asked again, elsewhere where there is another worker; a worker that
    failed rests, and proves anew that it is the spec's target. When the pool is empty, a worker with nothing
    to do also takes what another has had for too long; the first answer counts.

    Args:
        workers: all with the same target.
        patience: seconds without a sign from any worker after which the fleet gives up.
    """

    def __init__(self, workers: Sequence[Worker], patience: float = 120.0) -> None:
        self._lanes = [_Lane(place, worker) for place, worker in enumerate(workers)]
        self._patience = patience
        self._pool: dict[str, deque[_Job]] = defaultdict(deque)
        self._flying: set[_Job] = set()
        self._ended: SynthspecError | None = None
        self._answers = self._refusals = 0
        self._shared: tuple[str, Mapping[str, Any]] | None = None  # a worker's name, and its facts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="fleet")
        self._sign = 0.0  # when a worker was last well

    def __enter__(self) -> Fleet:
        """Meet every worker that answers.

        Raises:
            UserError: one is not the spec's target, or differs from another.
            Stopped: none answers.
        """
        self._thread.start()
        try:
            self._in_loop(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def silent(self) -> list[str]:
        """Workers that have not answered yet, and why."""
        return [f"{lane.worker.name}: {lane.told}" for lane in self._lanes if lane.met < 0]

    def ask(self, rows: Sequence[Row], tick: Callable[[int], None] = lambda n: None) -> list[Answered | None]:
        """Answers to requests, in their order; None where no worker could give one.

        Raises:
            UserError: a worker is not, or no longer, the spec's target.
            Stopped: no worker answers any more.
        """
        return self._in_loop(self._ask(rows, tick))

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _start(self) -> None:
        self._sign = self._loop.time()
        found = await asyncio.gather(*map(self._meet, self._lanes), return_exceptions=True)
        for lane, one in zip(self._lanes, found, strict=True):
            if isinstance(one, Fault):
                self._rest(lane, one, 1.0)
            elif one is not None:
                raise one
        while all(lane.met < 0 for lane in self._lanes):
            if self._ended:
                raise self._ended
            self._give_up_if_silent()
            await asyncio.sleep(0.05)
        self._ticker = asyncio.create_task(self._watch())

    async def _stop(self) -> None:
        self._end(Stopped("the workers are let go"))
        if hasattr(self, "_ticker"):
            self._ticker.cancel()
        await asyncio.gather(*(lane.worker.close() for lane in self._lanes), return_exceptions=True)

    async def _ask(self, rows: Sequence[Row], tick: Callable[[int], None]) -> list[Answered | None]:
        if self._ended:
            raise self._ended
        jobs = [_Job(row, self._loop.create_future()) for row in rows]
        for job in jobs:
            job.done.add_done_callback(lambda _: tick(1))
            self._pool[job.key].append(job)
        self._dispatch()
        try:
            return await asyncio.gather(*(job.done for job in jobs))
        except BaseException:
            for job in jobs:  # nobody waits for them any more
                if job in self._pool.get(job.key, ()):
                    self._pool[job.key].remove(job)
                job.done.cancel()
                self._recall(job)
            raise

    def _dispatch(self) -> None:
        """Send what can be sent, one request to each worker in turn."""
        sent = not self._ended
        while sent:
            sent = False
            for lane in self._lanes:
                if lane.rests or lane.met < 0:
                    continue
                if lane.flying >= int(lane.limit):
                    lane.full = True
                elif (job := self._next(lane)) is not None:
                    self._send(lane, job)
                    sent = True

    def _next(self, lane: _Lane) -> _Job | None:
        held = {other.key for other in self._lanes if other is not lane and other.flying}
        keys = sorted(self._pool, key=lambda key: (key != lane.key, key in held, -len(self._pool[key])))
        others_well = any(other is not lane and not other.rests and other.met >= 0 for other in self._lanes)
        for key in keys:
            waiting = self._pool[key]
            for _ in range(len(waiting)):
                job = waiting.popleft()
                if not (others_well and lane.place in job.faulty):
                    if not waiting:
                        del self._pool[key]
                    lane.key = key
                    return job
                waiting.append(job)
        return self._stale(lane)

    def _stale(self, lane: _Lane) -> _Job | None:
        """A request that another worker has had for longer than this one would need for it."""
        if lane.pace is None:
            return None
        now = self._loop.time()
        for job in self._flying:
            if len(job.flights) == 1 and lane.place not in job.flights and lane.place not in job.faulty:
                ((since, _),) = job.flights.values()
                if now - since > 1 + STALE * lane.pace * (job.row["max_new_tokens"] + 8):
                    return job
        return None

    def _send(self, lane: _Lane, job: _Job) -> None:
        lane.flying += 1
        self._flying.add(job)
        job.flights[lane.place] = self._loop.time(), asyncio.create_task(self._fly(lane, job))

    async def _fly(self, lane: _Lane, job: _Job) -> None:
        begun = self._loop.time()
        try:
            answered = await lane.worker.ask(job.row, lane.within(job.row))
            now = self._loop.time()
            if answered.fresh:
                await self._meet(lane, now)
        except Busy as busy:
            lane.limit = max(1.0, lane.limit / 2)
            self._sign = self._loop.time()
            self._land(lane, job)
            self._again(job)
            self._rest(lane, busy, busy.wait, well=True)
        except Fault as fault:
            self._land(lane, job)
            self._failed(lane, job, fault)
        except Unfit as refusal:
            self._land(lane, job)
            self._refused(lane, job, refusal)
        except SynthspecError as error:
            self._land(lane, job)
            self._end(error)
        except asyncio.CancelledError:
            self._land(lane, job)
        else:
            self._sign = now
            self._answers += 1
            lane.answered(now - begun, len(answered.ids), now)
            self._land(lane, job)
            self._give(job, answered)
        self._dispatch()

    def _land(self, lane: _Lane, job: _Job) -> None:
        lane.flying -= 1
        job.flights.pop(lane.place, None)
        if not job.flights:
            self._flying.discard(job)

    def _give(self, job: _Job, answered: Answered | None) -> None:
        if not job.done.done():
            job.done.set_result(answered)
        self._recall(job)

    def _recall(self, job: _Job) -> None:
        for _, task in [*job.flights.values()]:
            task.cancel()

    def _again(self, job: _Job) -> None:
        if not job.flights and not job.done.done():
            self._pool[job.key].appendleft(job)

    def _failed(self, lane: _Lane, job: _Job, fault: Fault) -> None:
        job.tries += 1
        job.faulty.add(lane.place)
        if len(job.faulty) == len(self._lanes):
            job.faulty.clear()
        if job.tries >= TRIES and not job.flights:
            self._give(job, None)
        else:
            self._again(job)
        lane.failures += 1
        lane.limit = max(1.0, lane.limit / 2)
        self._rest(lane, fault, min(REST * 2**lane.failures, 15.0))

    def _refused(self, lane: _Lane, job: _Job, refusal: Unfit) -> None:
        self._refusals += 1
        if self._refusals >= FEW and not self._answers:
            self._end(UserError(f"the worker {lane.worker.name} refuses every request: {refusal}"))
        self._give(job, None)

    def _rest(self, lane: _Lane, fault: Fault, seconds: float, *, well: bool = False) -> None:
        """Leave a worker alone for some time; if it was not well, it must prove anew who it is."""
        lane.told = str(fault)
        if lane.rests:
            return
        lane.rests = True
        self._loop.call_later(seconds, lambda: asyncio.ensure_future(self._wake(lane, well)))

    async def _wake(self, lane: _Lane, well: bool) -> None:
        lane.rests = False
        if not well and not self._ended:
            try:
                await self._meet(lane, self._loop.time())
            except Fault as fault:
                lane.failures += 1
                self._rest(lane, fault, min(REST * 2**lane.failures, 15.0))
            except SynthspecError as error:
                self._end(error)
        self._dispatch()

    async def _meet(self, lane: _Lane, since: float = 0.0) -> None:
        """Have a worker prove that it is the spec's target, unless it did so after `since`."""
        async with lane.lock:
            if lane.met >= since and lane.met >= 0:
                return
            begun = self._loop.time()
            facts = await lane.worker.meet()
            if self._shared is None:
                self._shared = lane.worker.name, facts
            for key, value in self._shared[1].items():
                if facts.get(key) != value:
                    raise UserError(
                        f"worker.urls: {lane.worker.name} differs from {self._shared[0]}: its {key} is "
                        f"{facts.get(key)}, the other's is {value}; start them alike"
                    )
            lane.met = self._sign = begun

    async def _watch(self) -> None:
        while not self._ended:
            await asyncio.sleep(0.5)
            self._give_up_if_silent()
            self._dispatch()

    def _give_up_if_silent(self) -> None:
        waits = self._flying or any(self._pool.values()) or all(lane.met < 0 for lane in self._lanes)
        well = any(lane.flying for lane in self._lanes)
        if waits and not well and self._loop.time() - self._sign > self._patience:
            told = "; ".join(f"{lane.worker.name}: {lane.told or 'no answer'}" for lane in self._lanes)
            self._end(Stopped(f"no worker answers ({told}); bring one up, then run the same command again"))

    def _end(self, error: SynthspecError) -> None:
        """Nothing is asked any more; who waits gets the error."""
        self._ended = self._ended or error
        waiting = [*self._flying, *(job for jobs in self._pool.values() for job in jobs)]
        self._pool.clear()
        for job in waiting:
            if not job.done.done():
                job.done.set_exception(self._ended)
            self._recall(job)
