"""What clients see when Envoy itself must answer: OpenAI-shaped JSON instead of a line of text.

Envoy answers by itself when extproc or a server can't be reached, or a limit of its own is hit. Answers of
extproc pass unchanged: they are told apart by the details that extproc puts on them.
"""

from __future__ import annotations

from typing import Any

from extproc.exchange.names import UNREACHABLE

OWN_REPLY_PREFIX = "extproc_"
"""How the response code details of extproc's own answers begin (see `extproc.wire.codec`)."""

_CEL = "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
_DETAILS = "response.code_details"
_RETRY_AFTER = {
    "header": {"key": "retry-after", "value": "1"},
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}
_IS_UNREACHABLE = f"{_DETAILS}.contains('connection_failure') || {_DETAILS}.contains('connection_timeout')"
_UNREACHABLE = {
    "header": {"key": UNREACHABLE, "value": "true"},
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}


def local_reply_config() -> dict[str, Any]:
    """`local_reply_config` of the HttpConnectionManager; the first mapper that matches is used."""
    unavailable = _json(
        "the model server could not be reached or broke off: try again",
        "server_error",
        "upstream_unavailable",
    )
    return {
        "mappers": [
            {
                "filter": _when(f"{_DETAILS}.startsWith('ext_proc_error')"),
                "status_code": 503,
                "headers_to_add": [_RETRY_AFTER],
                "body_format_override": _json(
                    "flow control is not available: try again", "server_error", "processor_unavailable"
                ),
            },
            {
                "filter": _when(_IS_UNREACHABLE),
                "headers_to_add": [_RETRY_AFTER, _UNREACHABLE],
                "body_format_override": unavailable,
            },
            {
                "filter": _when(f"{_DETAILS}.startsWith('upstream_')"),
                "headers_to_add": [_RETRY_AFTER],
                "body_format_override": unavailable,
            },
            {
                "filter": _when(f"!{_DETAILS}.startsWith('{OWN_REPLY_PREFIX}')"),
                "body_format_override": _json("%LOCAL_REPLY_BODY%", "gateway_error", "%RESPONSE_CODE%"),
            },
        ]
    }


def _when(expression: str) -> dict[str, Any]:
    name = "envoy.access_loggers.extension_filters.cel"
    return {"extension_filter": {"name": name, "typed_config": {"@type": _CEL, "expression": expression}}}


def _json(message: str, kind: str, code: str) -> dict[str, Any]:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"json_format": {"error": error}, "content_type": "application/json"}
