"""The admin port with client certificates: a stranger gets no answer at all."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from extproc.config.admin import AdminConfig
from extproc.errors import ConfigError
from extproc.runtime.admin import AdminServer
from tests.support.admin import FakeAdminSource


class Pki(NamedTuple):
    """A certificate authority with a server and a client, all new."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True, timeout=30)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test-ca", cwd=tmp_path)
    (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", cwd=tmp_path
        )
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-extfile", "san", "-out", f"{name}.crt", cwd=tmp_path)
    pairs = [(tmp_path / f"{name}.crt", tmp_path / f"{name}.key") for name in ("server", "client")]
    return Pki(tmp_path / "ca.crt", pairs[0], pairs[1])


@pytest.fixture
async def url(pki: Pki) -> AsyncIterator[str]:
    config = AdminConfig(
        host="127.0.0.1",
        port=0,
        tls_cert_file=str(pki.server[0]),
        tls_key_file=str(pki.server[1]),
        client_ca_file=str(pki.ca),
    )
    server = AdminServer(config, FakeAdminSource())
    yield f"https://127.0.0.1:{await server.start()}"
    await server.stop()


async def status(url: str, context: ssl.SSLContext) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics", ssl=context) as answer:
        return answer.status


async def test_a_client_with_a_certificate_is_served(url: str, pki: Pki) -> None:
    context = ssl.create_default_context(cafile=str(pki.ca))
    context.load_cert_chain(*map(str, pki.client))
    assert await status(url, context) == 200


async def test_a_client_without_one_is_not(url: str, pki: Pki) -> None:
    context = ssl.create_default_context(cafile=str(pki.ca))
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await status(url, context)


async def test_a_file_that_is_no_certificate_is_a_clear_error(pki: Pki) -> None:
    config = AdminConfig(port=0, tls_cert_file=str(pki.ca), tls_key_file=str(pki.client[1]))
    with pytest.raises(ConfigError, match="cannot be used"):
        await AdminServer(config, FakeAdminSource()).start()
