"""A small name server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Answers from `records` ((name, type) to (ttl, texts)); `failure` answers everything with that code."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.failure: dns.rcode.Rcode | None = None
        self.is_silent = False
        self.questions = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.questions += 1
        if self.is_silent:
            return
        query = dns.message.from_wire(data)
        question = query.question[0]
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        if self.failure is not None:
            response.set_rcode(self.failure)
        elif (name, kind) in self.records:
            ttl, texts = self.records[name, kind]
            response.answer.append(dns.rrset.from_text_list(name, ttl, "IN", kind, texts))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(response.to_wire(), addr)  # type: ignore[attr-defined]


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server, "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    finally:
        transport.close()
