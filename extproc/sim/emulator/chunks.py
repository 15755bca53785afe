"""JSON of answers in vLLM's exact shapes: stream chunks and whole bodies, for both routes. Pure.

A stream chunk is put together from pieces encoded once per choice, since one is made for every token.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extproc.sim.emulator.answer import Answer, Delta
from extproc.sim.emulator.request import Generation

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def _json(value: object) -> bytes:
    return _encode(value)


class StreamShape:
    """Chunks of one choice of a streamed answer."""

    __slots__ = ("_answer", "_head", "_is_chat", "_open", "_request", "_tail", "_was_first")

    def __init__(self, request: Generation, answer: Answer, response_id: str, created: int) -> None:
        self._request = request
        self._answer = answer
        self._is_chat = request.kind == "chat"
        self._was_first = False
        kind = b"chat.completion.chunk" if self._is_chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[{"index":%d,' % (
            _json(response_id),
            kind,
            created,
            _json(request.model),
            answer.index,
        )

    def opening(self) -> bytes:
        """What precedes the first token: the role chunk of a chat (it carries no token), else nothing."""
        if not self._is_chat:
            return b""
        ids = self._prompt_ids()
        prompt = b',"prompt_token_ids":%b,"prompt_text":null' % _json(ids) if ids is not None else b""
        return (
            self._head
            + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b}\n\n'
            % prompt
        )

    def chunk(self, delta: Delta, logprobs: object = None) -> bytes:
        """The chunk of one token."""
        finish = b'"%b"' % delta.finish_reason.encode() if delta.finish_reason else b"null"
        if self._is_chat:
            return self._chat_chunk(delta, finish, logprobs)
        ids = self._request.returns_token_ids
        prompt = b"null"
        if not self._was_first:
            self._was_first = True
            prompt = _json(self._prompt_ids())
        return b"".join(
            (
                self._head,
                b'"text":',
                _encode(delta.text),
                b',"logprobs":',
                b"null" if logprobs is None else _json(logprobs),
                b',"finish_reason":',
                finish,
                b',"stop_reason":',
                b"null" if delta.stop_reason is None else _json(delta.stop_reason),
                b',"prompt_token_ids":',
                prompt,
                b',"token_ids":',
                b"[%d]" % delta.token_id if ids else b"null",
                b"}]",
                self._running_usage(),
                b"}\n\n",
            )
        )

    def _chat_chunk(self, delta: Delta, finish: bytes, logprobs: object) -> bytes:
        stop = b""
        if delta.finish_reason:
            stop = b'"stop_reason":%b,' % _json(delta.stop_reason)
        return b'%b"delta":{"content":%b},"logprobs":%b,"finish_reason":%b,%b"token_ids":%b}]%b}\n\n' % (
            self._head,
            _encode(delta.text),
            b"null" if logprobs is None else _json(logprobs),
            finish,
            stop,
            b"[%d]" % delta.token_id if self._request.returns_token_ids else b"null",
            self._running_usage(),
        )

    def _running_usage(self) -> bytes:
        if not self._request.has_continuous_usage:
            return b""
        answer = self._answer
        return b',"usage":%b' % _json(usage(answer.prompt_tokens, answer.output_tokens))

    def _prompt_ids(self) -> list[int] | None:
        if not self._request.returns_token_ids:
            return None
        return self._answer.all_ids[: self._answer.prompt_tokens]


def usage(prompt_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def total_usage(request: Generation, answers: Sequence[Answer]) -> dict[str, int]:
    """Usage of the whole response: each prompt counts once, however many choices it has."""
    prompt_tokens = sum(len(prompt) for prompt in request.prompts)
    return usage(prompt_tokens, sum(answer.output_tokens for answer in answers))


def usage_chunk(request: Generation, answers: Sequence[Answer], response_id: str, created: int) -> bytes:
    """The last chunk before [DONE] when `stream_options.include_usage` is set."""
    kind = "chat.completion.chunk" if request.kind == "chat" else "text_completion"
    body = {
        "id": response_id,
        "object": kind,
        "created": created,
        "model": request.model,
        "choices": [],
        "usage": total_usage(request, answers),
    }
    return b"data: %b\n\n" % _json(body)


def error_chunks(message: str) -> bytes:
    """How vLLM ends a stream whose engine died: an error chunk, then [DONE] all the same."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return b"data: %b\n\n%b" % (_json({"error": error}), DONE)


def whole_body(
    request: Generation,
    answers: Sequence[Answer],
    endings: Sequence[Delta],
    logprobs: Sequence[object],
    response_id: str,
    created: int,
) -> bytes:
    """The body of an answer that is not streamed."""
    is_chat = request.kind == "chat"
    choices: list[dict[str, object]] = []
    for answer, ending, probabilities in zip(answers, endings, logprobs, strict=True):
        choice: dict[str, object] = {"index": answer.index}
        ids = answer.output_ids if request.returns_token_ids else None
        if is_chat:
            choice["message"] = {
                "role": "assistant",
                "content": "".join(answer.text),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": [],
                "reasoning": None,
            }
        else:
            choice["text"] = "".join(answer.text)
        choice |= {
            "logprobs": probabilities,
            "finish_reason": ending.finish_reason,
            "stop_reason": ending.stop_reason,
            "token_ids": ids,
        }
        if not is_chat:
            prompt = answer.all_ids[: answer.prompt_tokens]
            choice["prompt_token_ids"] = prompt if request.returns_token_ids else None
            choice["prompt_logprobs"] = None
        choices.append(choice)
    body: dict[str, object] = {
        "id": response_id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created,
        "model": request.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {**total_usage(request, answers), "prompt_tokens_details": None},
    }
    if is_chat:
        body["prompt_logprobs"] = None
        body["prompt_token_ids"] = request.prompts[0] if request.returns_token_ids else None
    body["kv_transfer_params"] = None
    return _json(body)
