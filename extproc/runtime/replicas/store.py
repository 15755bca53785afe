"""What the replicas of a pool share, in Redis or Valkey. It must not know what reports and grants mean.

Each step is one Lua script, hence atomic: nobody sees a half-written table, and a leader that was paused
can't write after another has taken over. Durations only, counted by Redis: clocks of machines may differ.

Keys, all in one cluster slot: `{extproc:POOL}:` + `alive:REPLICA` (its lease), `reports`, `grants`,
`shares` (hashes by replica), `leader` (`REPLICA:EPOCH`), `epoch`, and the channel `wake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis.asyncio
import redis.exceptions

from extproc.errors import ExtprocError

_REPORT = """
local alive, reports, grants, leader, epoch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local shares = KEYS[6]
local replica, report, lease_ms, leader_ms, share = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- A lease that ran out took its credits with it, whatever the replica still believes.
if redis.call('EXISTS', alive) == 0 then redis.call('HDEL', grants, replica) end
redis.call('SET', alive, '1', 'PX', lease_ms)
redis.call('HSET', reports, replica, report)
redis.call('HSET', shares, replica, share)
local holder = redis.call('GET', leader)
if not holder then
  holder = replica .. ':' .. redis.call('INCR', epoch)
  redis.call('SET', leader, holder, 'PX', leader_ms)
elseif string.sub(holder, 1, #replica + 1) == replica .. ':' then
  redis.call('PEXPIRE', leader, leader_ms)
end
return {redis.call('HGET', grants, replica), holder, redis.call('HGETALL', shares)}
"""

_TABLE = """
local reports = redis.call('HGETALL', KEYS[1])
local alive = {}
for index = 1, #reports, 2 do
  alive[#alive + 1] = redis.call('EXISTS', KEYS[3] .. reports[index])
end
return {reports, redis.call('HGETALL', KEYS[2]), alive}
"""

_WRITE = """
-- Fenced: only the leader of this very epoch writes.
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return 0 end
local writes = tonumber(ARGV[2])
for index = 3, 2 + 2 * writes, 2 do
  redis.call('HSET', KEYS[2], ARGV[index], ARGV[index + 1])
end
for index = 3 + 2 * writes, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[index])
  redis.call('HDEL', KEYS[2], ARGV[index])
  redis.call('HDEL', KEYS[5], ARGV[index])
end
if writes > 0 then redis.call('PUBLISH', KEYS[4], 'grants') end
return 1
"""

_LEAVE = """
redis.call('DEL', KEYS[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[6], ARGV[1])
local holder = redis.call('GET', KEYS[4])
if holder and string.sub(holder, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then redis.call('DEL', KEYS[4]) end
redis.call('PUBLISH', KEYS[5], 'left')
return 1
"""


class StoreError(ExtprocError):
    """Redis could not be reached, refused us, or answered too late; the message says which and what to do."""


def _translated(error: Exception) -> BaseException:
    """The error to raise. A cancelled call may end in an error of the client's: it stays cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return StoreError(f"redis: {error or type(error).__name__}")


def _text(data: bytes) -> str:
    """What another program has written there must not end this one's task; no replica has such a name."""
    return data.decode("utf-8", "replace")


class Answer(NamedTuple):
    """What a replica learns when it reports. `leader` is `REPLICA:EPOCH`; `shares` are by member."""

    grant: bytes | None
    leader: str
    shares: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Table:
    """Everything the leader needs: letters by replica, and who of them is alive."""

    reports: Mapping[str, bytes]
    grants: Mapping[str, bytes]
    alive: frozenset[str]


class ReplicaStore:
    """One replica's access to the shared table. All calls raise StoreError and nothing else."""

    def __init__(
        self, url: str, *, pool: str, replica: str, timeout_s: float, password: str | None = None
    ) -> None:
        options: dict[str, Any] = {} if password is None else {"password": password}
        self._redis = redis.asyncio.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # A late answer must fail now: the next period asks again with fresher figures.
            retry=None,
            **options,
        )
        self._replica = replica
        self._prefix = "{extproc:" + pool + "}:"
        self._url = url
        self._scripts = {
            text: self._redis.register_script(text) for text in (_REPORT, _TABLE, _WRITE, _LEAVE)
        }
        self.calls = 0

    def _key(self, name: str) -> str:
        return self._prefix + name

    async def _call(self, script: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        self.calls += 1
        try:
            return await self._scripts[script](keys=[self._key(key) for key in keys], args=list(args))
        except redis.exceptions.AuthenticationError as error:
            raise StoreError(
                f"redis refused the password ({error}): check redis_url or password_file"
            ) from error
        except (redis.exceptions.RedisError, OSError, TimeoutError, ValueError) as error:
            raise _translated(error) from error

    async def report(self, report: bytes, share: bytes, *, lease_s: float, leader_lease_s: float) -> Answer:
        """Renew this replica's lease, leave its report, take or renew the leadership if it is free.

        `share` is small: it goes to every other replica.
        """
        keys = [f"alive:{self._replica}", "reports", "grants", "leader", "epoch", "shares"]
        times = [int(lease_s * 1000), int(leader_lease_s * 1000)]
        grant, leader, shares = await self._call(_REPORT, keys, [self._replica, report, *times, share])
        names = [_text(name) for name in shares[::2]]
        return Answer(grant, _text(leader), dict(zip(names, shares[1::2], strict=True)))

    async def table(self) -> Table:
        reports, grants, alive = await self._call(_TABLE, ["reports", "grants", "alive:"], [])
        names = [_text(name) for name in reports[::2]]
        return Table(
            dict(zip(names, reports[1::2], strict=True)),
            dict(zip((_text(name) for name in grants[::2]), grants[1::2], strict=True)),
            frozenset(name for name, is_alive in zip(names, alive, strict=True) if is_alive),
        )

    async def write(self, leader: str, grants: Mapping[str, bytes], forget: Sequence[str]) -> bool:
        """Leave grants and forget departed replicas; False: another leads by now, nothing was written."""
        letters: list[str | bytes] = [part for item in grants.items() for part in item]
        keys = ["reports", "grants", "leader", "wake", "shares"]
        return bool(await self._call(_WRITE, keys, [leader, len(grants), *letters, *forget]))

    async def leave(self) -> None:
        """Give everything back: for a replica that has drained."""
        keys = [f"alive:{self._replica}", "reports", "grants", "leader", "wake", "shares"]
        await self._call(_LEAVE, keys, [self._replica])

    async def wake_others(self) -> None:
        """Tell the leader that somebody waits."""
        self.calls += 1
        try:
            await self._redis.publish(self._key("wake"), "waiting")
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            raise _translated(error) from error

    async def listen(self) -> AsyncGenerator[str, None]:
        """What is said on the channel: `grants`, `waiting` or `left`."""
        try:
            async with self._redis.pubsub() as channel:
                await channel.subscribe(self._key("wake"))
                while True:
                    message = await channel.get_message(ignore_subscribe_messages=True, timeout=None)
                    if message is not None:
                        yield _text(message["data"])
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            raise _translated(error) from error

    async def close(self) -> None:
        await self._redis.aclose()
