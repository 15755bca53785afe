"""The scraper against real sockets: good servers, restarted ones, and everything a server can do wrong."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.clock import SystemClock
from extproc.config.endpoints import ScrapeConfig, ScrapeTls
from extproc.core.events import EndpointSampled
from extproc.core.types import EndpointId, EndpointSample
from extproc.runtime.scraper import Scraper
from extproc.tasks import TaskKeeper
from tests.support.engines import Handler, ModelServer, answer, metrics_page, served

GOOD = EndpointId("good")
BAD = EndpointId("bad")


def saying(*pieces: bytes, close: bool = True) -> Handler:
    """Answers each connection's first request with `pieces`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if not close:
            await reader.read()

    return handle


async def endless_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """100 MB of well-formed series that nobody wants."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n" + metrics_page())
    for _ in range(10_000):
        writer.write(b'other_total{x="y"} 1\n' * 500)
        await writer.drain()


class Watch:
    """Collects what the scraper tells, and waits for conditions on it."""

    def __init__(self) -> None:
        self.samples: list[EndpointSample] = []
        self.failures: list[tuple[EndpointId, str, bool]] = []
        self.restarted: list[EndpointId] = []
        self._changed = asyncio.Event()

    def post(self, event: EndpointSampled) -> None:
        self.samples.append(event.sample)
        self._changed.set()

    def on_scraped(self, endpoint_id: EndpointId) -> None: ...

    def on_scrape_failed(self, endpoint_id: EndpointId, reason: str, *, is_unreachable: bool) -> None:
        self.failures.append((endpoint_id, reason, is_unreachable))
        self._changed.set()

    def on_server_restarted(self, endpoint_id: EndpointId) -> None:
        self.restarted.append(endpoint_id)

    def of(self, endpoint_id: EndpointId) -> list[EndpointSample]:
        return [sample for sample in self.samples if sample.endpoint_id == endpoint_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def scraping(watch: Watch, **settings: object) -> AsyncIterator[Scraper]:
    problems: list[BaseException] = []
    keeper = TaskKeeper(lambda _name, error: problems.append(error))
    values = {
        "min_interval_s": 0.02,
        "busy_interval_s": 0.02,
        "max_interval_s": 0.1,
        "max_duty_fraction": 1.0,
    }
    config = ScrapeConfig(**{**values, **settings})  # type: ignore[arg-type]
    scraper = Scraper(
        config, clock=SystemClock(), post=watch.post, observer=watch, keeper=keeper, rng=random.Random(1)
    )
    try:
        yield scraper
    finally:
        scraper.close()
        await keeper.close()
    assert problems == []


async def test_samples_come_over_one_kept_connection_with_the_model_list() -> None:
    watch, server = Watch(), ModelServer()
    async with served(server) as address, scraping(watch) as scraper:
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.samples) >= 5 and watch.samples[-1].models is not None)
    assert server.connections == 1
    last = watch.samples[-1]
    assert (last.running_requests, last.max_model_len, last.models) == (1, 4096, {"base", "sql"})
    times = [sample.sampled_at for sample in watch.samples]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (saying(b"\x16\x03\x01\x02\x00garbage"), "not HTTP"),
        (
            saying(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + metrics_page()),
            "closed the connection",
        ),
        (saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"), "closed the connection"),
        (saying(answer(b"no such page", "404 Not Found")), "HTTP status 404"),
        (saying(answer(b"<html>hello</html>")), "none of the expected series"),
        (saying(), "closed the connection"),
        (saying(close=False), "no answer within"),
        (saying(b"HTTP/1.1 200 OK\r\n", close=False), "no answer within"),
        (saying(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000), "not HTTP"),
        (endless_page, "sent more than 1000000 bytes"),
    ],
)
async def test_a_bad_endpoint_is_bounded_counted_and_said_once_and_the_others_go_on(
    handler: Handler, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch, server = Watch(), ModelServer()
    caplog.set_level(logging.INFO)
    async with (
        served(handler) as bad,
        served(server) as good,
        scraping(watch, timeout_s=0.2, max_page_bytes=1_000_000) as scraper,
    ):
        scraper.follow(BAD, bad)
        await watch.until(lambda: bool(watch.failures))
        scraper.follow(GOOD, good)
        await watch.until(lambda: len(watch.failures) >= 3 and len(watch.of(GOOD)) >= 5)
        status = scraper.status(BAD)
    assert watch.of(BAD) == []
    assert all(expected in reason for _, reason, _ in watch.failures)
    assert status is not None
    assert (status.failures, status.age_s) == (len(watch.failures), None)
    assert sum("endpoint bad" in record.getMessage() for record in caplog.records) == 1


async def test_nobody_listening_is_unreachable_and_a_late_start_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watch()
    caplog.set_level(logging.INFO)
    async with served(ModelServer()) as address:
        pass
    async with scraping(watch) as scraper:
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.failures) >= 2)
        assert all(is_unreachable for _, _, is_unreachable in watch.failures)
        async with served(ModelServer(), port=int(address.split(":")[1])):
            await watch.until(lambda: bool(watch.samples))
    messages = [record.getMessage() for record in caplog.records if "endpoint good" in record.getMessage()]
    assert len(messages) == 2
    assert "cannot connect" in messages[0]
    assert "scraped again" in messages[1]


async def test_at_most_one_request_is_outstanding_and_a_slow_engine_is_asked_less() -> None:
    watch, server = Watch(), ModelServer()
    server.delay_s = 0.03
    async with (
        served(server) as address,
        scraping(watch, max_duty_fraction=0.3, max_interval_s=1.0) as scraper,
    ):
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.samples) >= 4)
        status = scraper.status(GOOD)
    assert server.connections == 1
    assert status is not None
    assert status.interval_s >= 0.03 / 0.3


async def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    watch, seen = Watch(), 0

    async def one_answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(metrics_page()))
        await reader.readuntil(b"\r\n\r\n")  # the next request is answered by closing

    async with served(one_answer_each) as address, scraping(watch, models_interval_s=0) as scraper:
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.samples) >= 4)
    assert watch.failures == []
    assert seen >= 4


async def test_idle_is_watched_slowly_until_a_dispatch() -> None:
    watch, server = Watch(), ModelServer()
    server.body = metrics_page(running=0)
    async with (
        served(server) as address,
        scraping(watch, max_interval_s=3600.0, busy_interval_s=0.03) as scraper,
    ):
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.samples) >= 4)
        status = scraper.status(GOOD)
        assert status is not None
        assert status.interval_s >= 0.2
        scraper.note_dispatch(GOOD)
        status = scraper.status(GOOD)
        assert status is not None
        assert status.interval_s == 0.03
        server.body = metrics_page(running=3)
        await watch.until(lambda: watch.samples[-1].running_requests == 3)


WITHOUT_COUNTERS = b"vllm:prompt_tokens_total"


@pytest.mark.parametrize(
    ("before", "after", "is_restart"),
    [
        (metrics_page(tokens=50), metrics_page(start=900.0, tokens=3), True),
        (metrics_page(tokens=50), metrics_page(start=900.0, tokens=60), False),  # another API process of it
        (metrics_page(start=0.0, tokens=50), metrics_page(start=0.0, tokens=3), True),
        (
            metrics_page().split(WITHOUT_COUNTERS)[0],
            metrics_page(start=900.0).split(WITHOUT_COUNTERS)[0],
            True,
        ),
        (
            metrics_page().split(WITHOUT_COUNTERS)[0],
            metrics_page(start=101.0).split(WITHOUT_COUNTERS)[0],
            False,
        ),
    ],
)
async def test_a_restarted_server_is_told_from_the_old_one(
    before: bytes, after: bytes, is_restart: bool
) -> None:
    watch, server = Watch(), ModelServer()
    server.body = before
    async with served(server) as address, scraping(watch) as scraper:
        scraper.follow(GOOD, address)
        await watch.until(lambda: len(watch.samples) >= 2)
        assert watch.restarted == []
        server.body = after
        seen = len(watch.samples)
        await watch.until(lambda: len(watch.samples) >= seen + 5)
    assert watch.restarted == [GOOD] * is_restart


async def test_a_removed_endpoint_posts_nothing_more() -> None:
    watch, server = Watch(), ModelServer()
    async with served(server) as address, served(ModelServer()) as other, scraping(watch) as scraper:
        scraper.follow(BAD, address)
        scraper.follow(GOOD, other)
        await watch.until(lambda: bool(watch.of(BAD)))
        scraper.remove(BAD)
        before, others = len(watch.of(BAD)), len(watch.of(GOOD))
        await watch.until(lambda: len(watch.of(GOOD)) > others + 3)
        assert len(watch.of(BAD)) == before
        assert scraper.status(BAD) is None


async def test_tls_with_the_right_and_the_wrong_authority_and_a_token(tmp_path: Path) -> None:
    certificate, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -keyout {key} -out {certificate}"
    subject = ["-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *subject], check=True, capture_output=True)
    token.write_text("sesame\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    watch, server = Watch(), ModelServer()
    trusting = ScrapeTls(ca_file=str(certificate))
    async with served(server, context) as address:
        async with scraping(watch, tls=trusting, authorization_file=str(token)) as scraper:
            scraper.follow(GOOD, address)
            await watch.until(lambda: len(watch.samples) >= 3)
        async with scraping(watch, tls=ScrapeTls()) as scraper:
            scraper.follow(BAD, address)
            await watch.until(lambda: bool(watch.failures))
    assert b"Authorization: Bearer sesame\r\n" in server.requests[0]
    assert "TLS failed" in watch.failures[0][1]
    assert watch.of(BAD) == []
