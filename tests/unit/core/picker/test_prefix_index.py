"""Who holds which prefix: longest match, what is forgotten first, and bounds."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.picker.prefix_index import COMMON_FROM, PrefixIndex, PrefixIndexConfig
from tests.support.pickers import sample, state

A, B, C = state("a"), state("b"), state("c")


def test_the_longest_held_prefix_of_each_endpoint() -> None:
    index = PrefixIndex(PrefixIndexConfig())
    index.add(A, (1, 2, 3, 4))
    index.add(B, (1, 2, 9))
    index.add(C, (7,))
    assert index.match((1, 2, 3, 4, 5)) == {A: 4, B: 2}
    assert index.match((7, 8)) == {C: 1}
    assert index.match((5,)) == {}
    assert index.match(()) == {}


def test_the_end_of_the_least_recently_sent_prompt_is_forgotten_first() -> None:
    index = PrefixIndex(PrefixIndexConfig(max_blocks_per_endpoint=4))
    index.add(A, (1, 2, 3))
    index.add(A, (1, 2, 4, 5))
    assert index.blocks_of(A) == 4
    assert index.match((1, 2, 4, 5)) == {A: 4}
    assert index.match((1, 2, 3)) == {A: 2}
    index.add(A, (8, 9))
    assert index.match((1, 2, 4, 5)) == {A: 2}


def test_an_engine_that_reports_a_small_cache_is_believed() -> None:
    index = PrefixIndex(PrefixIndexConfig(block_tokens=64))
    endpoint = state("small")
    endpoint.sample = sample(endpoint, kv_capacity=128)
    index.add(endpoint, (1, 2, 3, 4))
    assert index.blocks_of(endpoint) == 2


def test_all_endpoints_together_are_bounded() -> None:
    index = PrefixIndex(PrefixIndexConfig(max_blocks=100))
    for number in range(20):
        index.add(state(f"e{number}"), tuple(range(number * 1000, number * 1000 + 90)))
        assert len(index) <= 100


def test_a_removed_endpoint_leaves_nothing_behind() -> None:
    index = PrefixIndex(PrefixIndexConfig())
    index.add(A, (1, 2))
    index.add(B, (1,))
    index.discard(A)
    index.discard(A)
    assert index.match((1, 2)) == {B: 1}
    index.discard(B)
    assert len(index) == 0
    assert index._holders == {}


def test_what_very_many_hold_tells_nobody_apart() -> None:
    index = PrefixIndex(PrefixIndexConfig())
    many = [state(f"e{number}") for number in range(COMMON_FROM)]
    for endpoint in many:
        index.add(endpoint, (1, 2))
    index.add(many[5], (1, 2, 3))
    assert index.match((1, 2, 3, 4)) == {many[5]: 1}
    assert index.match((1, 2)) == {}


_prompts = st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 3), st.integers(1, 6)), max_size=20)


@given(_prompts, st.integers(1, 30))
def test_without_forgetting_it_equals_a_plain_search(
    prompts: list[tuple[object, int, int]], bound: int
) -> None:
    index = PrefixIndex(PrefixIndexConfig(max_blocks_per_endpoint=10_000))
    tight = PrefixIndex(PrefixIndexConfig(max_blocks_per_endpoint=bound))
    held: dict[object, set[int]] = {}
    for endpoint, family, length in prompts:
        hashes = tuple(family * 100 + block for block in range(length))
        index.add(endpoint, hashes)  # type: ignore[arg-type]
        tight.add(endpoint, hashes)  # type: ignore[arg-type]
        held.setdefault(endpoint, set()).update(hashes)
        assert all(tight.blocks_of(e) <= bound for e in (A, B, C))
        assert len(tight) == sum(tight.blocks_of(e) for e in (A, B, C))
    for family in range(4):
        asked = tuple(family * 100 + block for block in range(7))
        expected = {}
        for endpoint, blocks in held.items():
            depth = 0
            while depth < len(asked) and asked[depth] in blocks:
                depth += 1
            if depth:
                expected[endpoint] = depth
        assert index.match(asked) == expected
