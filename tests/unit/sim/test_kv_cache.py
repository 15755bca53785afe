"""Blocks of the KV cache: what is shared, what is evicted first, and that nothing is counted twice."""

from extproc.sim.kv_cache import KvCache, SymbolicContent

BLOCK = 16


def hold(cache: KvCache, content: SymbolicContent, tokens: int) -> int:
    """Run a sequence of `tokens` tokens from start to end; returns how many of its blocks were cached."""
    match = cache.match(content, tokens)
    holding = cache.open(match, tokens)
    cache.grow(holding, -(-tokens // BLOCK) - holding.blocks)
    cache.close(holding, content, tokens)
    return match.blocks


def test_an_ended_sequence_stays_cached_in_whole_blocks_and_costs_no_free_block() -> None:
    cache = KvCache(100, BLOCK, has_prefix_cache=True)
    assert hold(cache, SymbolicContent(1), 100) == 0
    assert (cache.free_blocks, cache.used_blocks) == (100, 0)
    assert hold(cache, SymbolicContent(1), 100) == 6
    assert hold(cache, SymbolicContent(2), 100) == 0


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    cache = KvCache(100, BLOCK, has_prefix_cache=True)
    hold(cache, SymbolicContent(1), 96)
    assert cache.match(SymbolicContent(1), 96).blocks == 5
    assert cache.match(SymbolicContent(1), 97).blocks == 6


def test_a_shared_prefix_is_held_once_while_several_run() -> None:
    cache = KvCache(100, BLOCK, has_prefix_cache=True)
    first, second = (SymbolicContent(own, prefix_key=9, prefix_tokens=64) for own in (1, 2))
    holding = cache.open(cache.match(first, 80), 80)
    cache.grow(holding, 5)
    cache.publish(holding, first, 80)
    match = cache.match(second, 80)
    assert (match.blocks, match.idle_blocks) == (4, 0)
    other = cache.open(match, 80)
    cache.grow(other, 1)
    assert cache.used_blocks == 6
    cache.close(holding, first, 80)
    assert cache.used_blocks == 5
    cache.close(other, second, 80)
    assert cache.used_blocks == 0


def test_the_least_recently_used_goes_first_and_its_tail_before_its_head() -> None:
    cache = KvCache(20, BLOCK, has_prefix_cache=True)
    hold(cache, SymbolicContent(1), 8 * BLOCK)
    hold(cache, SymbolicContent(2), 8 * BLOCK)
    hold(cache, SymbolicContent(3), 8 * BLOCK)  # 24 blocks of content in 20: four of the oldest must go
    assert cache.match(SymbolicContent(1), 8 * BLOCK + 1).blocks == 4
    assert cache.match(SymbolicContent(2), 8 * BLOCK + 1).blocks == 8


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    cache = KvCache(20, BLOCK, has_prefix_cache=False)
    assert hold(cache, SymbolicContent(1), 100) == 0
    assert hold(cache, SymbolicContent(1), 100) == 0
    assert (cache.queried_tokens, cache.hit_tokens) == (0, 0)
