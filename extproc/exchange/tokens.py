"""What a prompt costs in tokens without a tokenizer: bytes over a ratio that is learnt per model.

    tokens = ceil(text bytes / ratio) + ids given as ids + media by rule

The ratio starts at the configured bytes per token and follows what engines report in `usage`: an
exponential mean over requests, weighted by their size, kept between 1 and 16. Pure: no clock, no
randomness.
"""

from __future__ import annotations

import math

from extproc.exchange.settings import TokenConfig
from extproc.formats.media import Media, MediaKind
from extproc.formats.prompt import PromptSize

MIN_RATIO = 1.0
MAX_RATIO = 16.0
MAX_MODELS = 256
"""Ratios are kept for so many models; the one learnt longest ago makes room."""

MAX_OPAQUE_TOKENS = 8192
"""Ceiling of the cost of a body that isn't read: uploaded audio is large, and few tokens."""

_WEIGHT = 0.05
_FULL_WEIGHT_BYTES = 256
"""Shorter prompts say little about the ratio: the chat template's own tokens drown them."""


class TokenEstimator:
    """Estimates prompts and learns from what engines counted. One per process, shared by all streams."""

    def __init__(self, config: TokenConfig) -> None:
        self._config = config
        self._ratios: dict[str, float] = {}

    def ratio(self, model: str) -> float:
        """Bytes per token assumed for `model`."""
        return self._ratios.get(model, self._config.bytes_per_token)

    def estimate(self, model: str, prompt: PromptSize) -> int:
        """Tokens of a prompt; exact when it was given as token ids."""
        tokens = prompt.token_ids
        if prompt.text_bytes:
            tokens += math.ceil(prompt.text_bytes / self.ratio(model))
        for media in prompt.media:
            tokens += self._media_tokens(media)
        return tokens

    def estimate_opaque(self, size_bytes: int) -> int:
        """Tokens assumed for a body that isn't looked into."""
        return min(math.ceil(size_bytes / self._config.bytes_per_token), MAX_OPAQUE_TOKENS)

    def learn(self, model: str, prompt: PromptSize, prompt_tokens: int) -> None:
        """The engine counted `prompt_tokens` for this prompt. Prompts with ids or media teach nothing."""
        if not self._config.learn_ratio or not model or prompt_tokens <= 0:
            return
        if not prompt.text_bytes or prompt.token_ids or prompt.media:
            return
        seen = min(max(prompt.text_bytes / prompt_tokens, MIN_RATIO), MAX_RATIO)
        weight = _WEIGHT * min(prompt.text_bytes / _FULL_WEIGHT_BYTES, 1.0)
        ratio = self._ratios.pop(model, self._config.bytes_per_token)
        if len(self._ratios) >= MAX_MODELS:
            del self._ratios[next(iter(self._ratios))]
        self._ratios[model] = ratio + weight * (seen - ratio)

    def _media_tokens(self, media: Media) -> int:
        config = self._config
        match media.kind:
            case MediaKind.IMAGE:
                if media.pixels is None:
                    return config.image_tokens
                tokens = math.ceil(media.pixels / config.pixels_per_image_token)
                return min(max(tokens, 1), config.max_image_tokens)
            case MediaKind.AUDIO:
                return config.audio_tokens
            case MediaKind.VIDEO:
                return config.video_tokens
            case MediaKind.DOCUMENT:
                return config.document_tokens
