"""What is learnt and sampled across requests: bytes per token, and which responses are watched."""

from __future__ import annotations

import random
from collections import deque

from extproc.exchange.observation import ObservationSampler, ResponseObserver
from extproc.exchange.settings import ObservationConfig, TokenConfig
from extproc.exchange.tokens import MAX_MODELS, TokenEstimator
from extproc.formats.media import Media, MediaKind
from extproc.formats.prompt import PromptSize


def test_the_ratio_follows_the_engine_per_model() -> None:
    estimator = TokenEstimator(TokenConfig())
    prompt = PromptSize(text_bytes=3000, text_parts=1)
    assert estimator.estimate("m", prompt) == 750
    for _ in range(200):
        estimator.learn("m", prompt, prompt_tokens=1000)
    assert abs(estimator.estimate("m", prompt) - 1000) < 10
    assert estimator.estimate("other", prompt) == 750


def test_absurd_counts_and_many_models_stay_bounded() -> None:
    estimator = TokenEstimator(TokenConfig())
    for tokens in (1, 10**9, 0, -5):
        for _ in range(500):
            estimator.learn("m", PromptSize(text_bytes=3000), tokens)
        assert 1.0 <= estimator.ratio("m") <= 16.0
    for number in range(3 * MAX_MODELS):
        estimator.learn(f"m{number}", PromptSize(text_bytes=3000), 100)
    assert len(estimator._ratios) == MAX_MODELS


def test_ids_and_media_are_counted_by_rule() -> None:
    estimator = TokenEstimator(TokenConfig())
    image = Media(MediaKind.IMAGE, 640 * 480)
    prompt = PromptSize(
        text_bytes=8, token_ids=3, media=(image, Media(MediaKind.IMAGE), Media(MediaKind.AUDIO))
    )
    assert estimator.estimate("m", prompt) == 2 + 3 + 300 + 225 + 500
    huge = PromptSize(media=(Media(MediaKind.IMAGE, 10**12),))
    assert estimator.estimate("m", huge) == 16384
    assert estimator.estimate_opaque(20 << 20) == 8192


def watch(sampler: ObservationSampler, per_s: float, start: float, seconds: int, chunks: int) -> int:
    """How many are watched at this rate, when each answer of so many chunks takes a second."""
    watched, running = 0, deque[float]()
    for number in range(int(per_s * seconds)):
        now = start + number / per_s
        while running and running[0] <= now:
            running.popleft()
            sampler.ended(chunks)
        if sampler.wants(now):
            watched += 1
            running.append(now + 1.0)
    for _ in running:
        sampler.ended(chunks)
    return watched


def test_few_responses_are_all_watched_and_many_by_share_within_a_budget_of_chunks() -> None:
    sampler = ObservationSampler(
        ObservationConfig(fraction=0.01, all_below_per_s=5, max_chunks_per_s=100), random.Random(1).random
    )
    assert watch(sampler, 1, 0.0, 20, chunks=10) == 20
    assert 20 <= watch(sampler, 50, 100.0, 100, chunks=10) <= 90  # 1% of 5,000
    for chunks in (10, 100, 1000):
        start = 10_000.0 + chunks * 10
        watched = watch(sampler, 2000, start, 100, chunks)
        assert 0.5 <= watched * chunks / (100 * 100) <= 1.6, chunks  # however long answers are


def test_a_response_is_read_alike_whatever_the_cuts() -> None:
    """Field bugs 58, 65, 74: usage, end and tokens do not depend on how the bytes arrive."""
    text = (
        'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        'data: {"choices":[{"delta":{"content":"😀"}}]}\r\n\r\n: ping\n\n'
        'data:{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
        'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    ).encode()
    for cut in range(len(text) + 1):
        observer = ResponseObserver("text/event-stream", 1 << 20)
        observer.feed(text[:cut], False, 1.0)
        observer.feed(text[cut:], True, 2.0)
        assert observer.usage is not None
        assert (observer.usage.prompt_tokens, observer.usage.output_tokens) == (5, 2)
        assert (observer.counted_tokens, observer.is_complete) == (2, True)


def test_field_bug_064_an_oversize_event_costs_itself_alone() -> None:
    observer = ResponseObserver("text/event-stream", 4096)
    observer.feed(b"data: " + b"x" * 2_000_000 + b"\n\n", False, 1.0)
    observer.feed(b'data: {"choices":[],"usage":{"completion_tokens":9}}\n\n', True, 2.0)
    assert observer.output_tokens == 9
