"""TLS and mutual TLS of the gRPC port, with certificates that are read again when their files change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import grpc

from extproc.clock import Clock
from extproc.config.server import TlsConfig
from extproc.errors import ConfigError, Problem

logger = logging.getLogger(__name__)


class _Files(NamedTuple):
    key: bytes
    certificate: bytes
    client_ca: bytes | None


def build_credentials(config: TlsConfig, clock: Clock) -> grpc.ServerCredentials:
    """Credentials that follow the files. Raises ConfigError when they can't be read at the start."""
    try:
        first = _read(config)
    except OSError as error:
        raise ConfigError([Problem("server.tls", str(error))]) from error
    watcher = _Watcher(config, first, clock)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        watcher.fetch,  # type: ignore[arg-type]  # None means "no change"
        require_client_authentication=config.client_ca_file is not None,
    )


class _Watcher:
    """Called by gRPC at each handshake, from whatever thread; looks at the files now and then."""

    def __init__(self, config: TlsConfig, current: _Files, clock: Clock) -> None:
        self._config = config
        self._current = current
        self._clock = clock
        self._looked_at = clock.now()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificate, or None to go on with the present one."""
        now = self._clock.now()
        if now < self._looked_at + self._config.reload_interval_s:
            return None
        self._looked_at = now
        try:
            found = _read(self._config)
        except OSError as error:
            logger.warning("the TLS files can't be read; the present certificate stays in use: %s", error)
            return None
        if found == self._current:
            return None
        self._current = found
        logger.info("the TLS certificate was read again")
        return _configuration(found)


def _read(config: TlsConfig) -> _Files:
    client_ca = config.client_ca_file
    return _Files(
        key=Path(config.key_file).read_bytes(),
        certificate=Path(config.cert_file).read_bytes(),
        client_ca=Path(client_ca).read_bytes() if client_ca is not None else None,
    )


def _configuration(files: _Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)
