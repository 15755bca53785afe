"""The admin port cannot be opened to other machines by accident."""

import pytest

from extproc.config.admin import AdminConfig
from extproc.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert AdminConfig(host=host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", ""])
def test_elsewhere_needs_a_token_or_client_certificates(host: str) -> None:
    with pytest.raises(ConfigError, match="token_file or client_ca_file"):
        AdminConfig(host=host)
    assert AdminConfig(host=host, token_file="/run/token").token_file
    AdminConfig(host=host, tls_cert_file="c", tls_key_file="k", client_ca_file="ca")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        AdminConfig(host="0.0.0.0", port=70000, tls_cert_file="c", client_ca_file=None)
    assert [problem.path for problem in caught.value.problems] == ["port", "tls_key_file", "host"]
