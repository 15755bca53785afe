"""Endpoints from DNS: every address behind a name, asked again when the answer's time to live is over.

An answer that says "no such name" or "no records" is an empty pool (a headless Service without ready pods
answers so); a server that does not answer, or fails, leaves the last list in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from extproc.clock import Clock
from extproc.config.endpoints import DnsDiscovery, EndpointEntry, join_address
from extproc.errors import ConfigError, Problem
from extproc.runtime.discovery.source import Publish, SourceHealth

_MAX_RETRY_S = 30.0
_DNS_PORT = 53


class _Answer(NamedTuple):
    """Records as text, and for how long they hold; no records: the server says that there are none."""

    records: tuple[tuple[str, int], ...]
    ttl_s: float


class DnsSource:
    """Resolves one name again and again."""

    def __init__(self, config: DnsDiscovery, clock: Clock) -> None:
        self.name = f"dns {config.record} {config.name}"
        self.health = SourceHealth(self.name)
        self._config = config
        self._clock = clock
        self._resolver = _resolver(config)

    async def run(self, publish: Publish) -> None:
        """See `Source`."""
        retry_s = self._config.min_ttl_s
        while True:
            now = self._clock.now()
            try:
                entries, ttl_s = await self.resolve()
            except _dns().exception.DNSException as error:
                self.health.fail(f"cannot be resolved: {error or type(error).__name__}")
                await self._clock.sleep_until(now + retry_s)
                retry_s = min(_MAX_RETRY_S, 2 * retry_s)
                continue
            retry_s = self._config.min_ttl_s
            self.health.succeed()
            publish(entries)
            await self._clock.sleep_until(
                now + min(max(ttl_s, self._config.min_ttl_s), self._config.max_ttl_s)
            )

    async def resolve(self) -> tuple[list[EndpointEntry], float]:
        """The endpoints now, and the shortest time to live among the answers in seconds."""
        config = self._config
        if config.record != "SRV":
            answers = [await self._ask(config.name, kind) for kind in _address_kinds(config.record)]
            assert config.port is not None
            hosts = [(address, config.port) for answer in answers for address, _ in answer.records]
            return self._entries(hosts), min(answer.ttl_s for answer in answers)
        targets = await self._ask(config.name, "SRV")
        hosts, ttl_s = [], targets.ttl_s
        for target, port in targets.records:
            for kind in _address_kinds("host"):
                answer = await self._ask(target, kind)
                hosts += [(address, port) for address, _ in answer.records]
                ttl_s = min(ttl_s, answer.ttl_s) if answer.records else ttl_s
        return self._entries(hosts), ttl_s

    def _entries(self, hosts: Sequence[tuple[str, int]]) -> list[EndpointEntry]:
        addresses = sorted({join_address(host, port) for host, port in hosts})
        return [
            EndpointEntry(name=f"{self._config.name}/{address}", address=address, labels=self._config.labels)
            for address in addresses
        ]

    async def _ask(self, name: str, kind: str) -> _Answer:
        try:
            answer = await self._resolver.resolve(name, kind, search=True, raise_on_no_answer=False)
        except _dns().resolver.NXDOMAIN:
            return _Answer((), self._config.min_ttl_s)
        if answer.rrset is None:
            return _Answer((), self._config.min_ttl_s)
        ttl_s = float(answer.chaining_result.minimum_ttl)
        if kind != "SRV":
            return _Answer(tuple((record.address, 0) for record in answer.rrset), ttl_s)
        first = min(record.priority for record in answer.rrset)
        targets = [record for record in answer.rrset if record.priority == first]
        return _Answer(tuple((record.target.to_text(), record.port) for record in targets), ttl_s)


def _address_kinds(record: str) -> tuple[str, ...]:
    return ("A", "AAAA") if record == "host" else (record,)


def _resolver(config: DnsDiscovery) -> Any:
    dns = _dns()
    resolver = dns.asyncresolver.Resolver(configure=not config.nameservers)
    if config.nameservers:
        hosts = [_split_nameserver(text) for text in config.nameservers]
        resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in hosts]
    resolver.lifetime = config.timeout_s
    resolver.timeout = config.timeout_s / 2
    return resolver


def _split_nameserver(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        return text, _DNS_PORT
    return host.strip("[]"), int(port)


def _dns() -> Any:
    """dnspython, which only this kind of discovery needs."""
    try:
        import dns.asyncresolver
        import dns.nameserver
    except ImportError as error:
        raise ConfigError(
            [
                Problem(
                    "endpoints.discovery",
                    "type: dns needs dnspython; install it with pip install 'extproc[dns]'",
                )
            ]
        ) from error
    return dns
