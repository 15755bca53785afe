"""Secrets are masked, and only secrets."""

from extproc.runtime.redaction import redact_id, redact_settings


def test_short_ids_are_shown_and_long_ones_shortened() -> None:
    assert redact_id("team-a") == "team-a"
    shown = redact_id("sk-0123456789abcdef0123456789abcdef")
    assert shown.startswith("sk-0…")
    assert "56789" not in shown
    assert redact_id("sk-0123456789abcdef0123456789abcdeF") != shown


def test_secret_settings_and_passwords_in_urls_are_masked() -> None:
    settings = {
        "admin": {"token_file": "/run/token", "token": "t0p"},
        "redis": "redis://user:pa55@host:6379/0",
        "api_key": "k",
        "max_tokens": 100,
        "prompt_tokens": 3,
        "headers": [{"secret": "s"}, {"secret": ""}, {"client-secret": "x"}],
    }
    assert redact_settings(settings) == {
        "admin": {"token_file": "/run/token", "token": "***"},
        "redis": "redis://***@host:6379/0",
        "api_key": "***",
        "max_tokens": 100,
        "prompt_tokens": 3,
        "headers": [{"secret": "***"}, {"secret": ""}, {"client-secret": "***"}],
    }
