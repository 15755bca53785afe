"""Hashes of a prompt's beginning."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.formats.openai import ApiKind, ParsedBody, parse_body
from extproc.formats.prefix import prefix_hashes


def parsed(kind: ApiKind, body: bytes) -> ParsedBody:
    found = parse_body(kind, body)
    assert isinstance(found, ParsedBody)
    return found


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_common_blocks_are_the_common_beginning(shared: bytes, first: bytes, second: bytes) -> None:
    one, two = prefix_hashes("m", [shared, first], 16, 100), prefix_hashes("m", [shared + second], 16, 100)
    text_one, text_two = shared + first, shared + second
    equal = 0
    while equal < min(len(one), len(two)) and text_one[: 16 * (equal + 1)] == text_two[: 16 * (equal + 1)]:
        equal += 1
    assert one[:equal] == two[:equal]
    assert not set(one[equal:]) & set(two[equal:])


def test_only_whole_blocks_count_and_only_so_many() -> None:
    assert prefix_hashes("m", [b"x" * 31], 16, 10) == prefix_hashes("m", [b"x" * 16], 16, 10)
    assert len(prefix_hashes("m", [b"x" * 10_000], 16, 10)) == 10
    assert prefix_hashes("m", [], 16, 10) == ()


def test_the_seed_keeps_equal_prompts_apart() -> None:
    assert prefix_hashes("a|", [b"x" * 64], 16, 9)[0] != prefix_hashes("b|", [b"x" * 64], 16, 9)[0]


def test_the_next_turn_of_a_conversation_continues_the_last_ones_hashes() -> None:
    turn = b'{"messages":[{"role":"system","content":"' + b"s" * 200 + b'"},{"role":"user","content":"hi"}'
    first = parsed(ApiKind.CHAT, turn + b"]}")
    later = parsed(
        ApiKind.CHAT, turn + b',{"role":"assistant","content":"yes"},{"role":"user","content":"no"}]}'
    )
    hashes = [prefix_hashes("m", map(bytes, body.prompt_parts), 32, 99) for body in (first, later)]
    assert len(hashes[0]) >= 6
    assert hashes[1][: len(hashes[0]) - 1] == hashes[0][:-1]


def test_tools_and_system_come_before_the_messages_as_templates_print_them() -> None:
    body = b'{"messages":[1],"system":"s","tools":[2],"cache_salt":"pepper"}'
    found = parsed(ApiKind.MESSAGES, body)
    assert [bytes(part) for part in found.prompt_parts] == [b"[2]", b'"s"', b"[1]"]
    assert found.cache_salt == "pepper"
    assert bytes(parsed(ApiKind.COMPLETIONS, b'{"prompt":"p"}').prompt_parts[0]) == b'"p"'
