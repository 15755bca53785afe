"""The JSON objects of the Files and Batches API, in OpenAI's shape, and checks of a batch's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from extproc.batch.intake import ENDPOINTS
from extproc.batch.job import Counts, Job, JobState, parse_window
from extproc.batch.stores.contract import FileRecord

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


TOTAL_NAMES = (
    "attempts",
    "evictions",
    "output_tokens",
    "resumed_tokens",
    "redone_tokens",
    "restarts",
)
"""What `Turn` adds up per job; always all of them in the batch object."""


class ApiError(Exception):
    """A request that is answered with an error object; `status` is the HTTP status."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": "invalid_request_error" if status < 500 else "server_error",
                "param": param,
                "code": code,
            }
        }


def file_object(record: FileRecord) -> dict[str, object]:
    """OpenAI's file object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": int(record.created_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
    }


def batch_object(job: Job, counts: Counts, totals: Mapping[str, int]) -> dict[str, object]:
    """OpenAI's batch object; what it has no field for is under `extproc`."""
    errors = {"object": "list", "data": [asdict(error) for error in job.errors]} if job.errors else None
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.endpoint,
        "errors": errors,
        "input_file_id": job.input_file_id,
        "completion_window": job.completion_window,
        "status": job.state.value,
        "output_file_id": job.output_file_id,
        "error_file_id": job.error_file_id,
        "created_at": int(job.created_at),
        "expires_at": int(job.deadline),
        **{name: _seconds(getattr(job, name)) for name in _TIMES},
        "request_counts": {
            "total": job.total,
            "completed": counts.succeeded,
            "failed": counts.failed + (counts.dropped if job.state is JobState.EXPIRED else 0),
        },
        "metadata": job.metadata or None,
        "extproc": {"counts": asdict(counts), "totals": {**dict.fromkeys(TOTAL_NAMES, 0), **totals}},
    }


_TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def list_object(data: list[dict[str, object]], *, has_more: bool = False) -> dict[str, object]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def checked_text(given: Mapping[str, object], name: str) -> str:
    """A required string parameter."""
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(400, f"{name} is required and must be a string", param=name)
    return value


def checked_endpoint(given: Mapping[str, object]) -> str:
    """The endpoint of all lines of the batch."""
    endpoint = checked_text(given, "endpoint")
    if endpoint not in ENDPOINTS:
        raise ApiError(400, f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    return endpoint


def checked_window(given: Mapping[str, object]) -> tuple[str, float]:
    """The completion window and its seconds."""
    window = checked_text(given, "completion_window")
    seconds = parse_window(window)
    if seconds is None:
        message = "completion_window must be a duration such as 24h, 90m or 45s"
        raise ApiError(400, message, param="completion_window")
    return window, seconds


def checked_metadata(given: Mapping[str, object]) -> dict[str, str]:
    """Up to 16 pairs of short strings."""
    metadata = given.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or len(metadata) > MAX_METADATA_PAIRS:
        message = f"metadata must be an object of at most {MAX_METADATA_PAIRS} pairs"
        raise ApiError(400, message, param="metadata")
    for key, value in metadata.items():
        is_short = isinstance(value, str) and len(value) <= MAX_METADATA_VALUE_CHARS
        if not is_short or len(key) > MAX_METADATA_KEY_CHARS:
            message = (
                f"metadata keys have at most {MAX_METADATA_KEY_CHARS} characters,"
                f" values are strings of at most {MAX_METADATA_VALUE_CHARS}"
            )
            raise ApiError(400, message, param="metadata")
    return dict(metadata)
