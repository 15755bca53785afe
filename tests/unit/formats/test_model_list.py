"""What a model server says of its models."""

import pytest

from extproc.formats.model_list import parse_model_list


def test_names_adapters_and_context_length() -> None:
    listed = parse_model_list(
        b'{"object":"list","data":[{"id":"base","max_model_len":4096,"parent":null,"x":1},'
        b'{"id":"sql","max_model_len":null,"parent":"base"}]}'
    )
    assert listed is not None
    assert (listed.models, listed.loras, listed.max_model_len) == ({"base", "sql"}, {"sql"}, 4096)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"data":[{"id":5}]}', b'{"detail":"Not Found"}', b"\xff", b"[1"]
)
def test_something_else_is_none(body: bytes) -> None:
    assert parse_model_list(body) is None
