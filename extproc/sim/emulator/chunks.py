"""JSON of answers in vLLM's exact shapes: stream chunks and whole bodies, for both routes. Pure.

A stream chunk is put together from pieces encoded once per choice, since one is made for every token.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extproc.sim.emulator.answer import Answer, Delta
from extproc.sim.emulator.logprobs import chat_logprobs, completion_logprobs
from extproc.sim.emulator.parsing import OutputParser, parsed_message, plain_message
from extproc.sim.emulator.request import Generation
from extproc.sim.tokenizer import decode

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.30.0-emulated"


class StreamShape:
    """Chunks of one choice of a streamed answer."""

    __slots__ = (
        "_answer",
        "_around_text",
        "_head",
        "_is_chat",
        "_is_plain",
        "_offset",
        "_parser",
        "_request",
        "_returns_ids",
        "_was_first",
    )

    def __init__(self, request: Generation, answer: Answer, response_id: str, created: int) -> None:
        self._request = request
        self._answer = answer
        self._is_chat = request.kind == "chat"
        self._was_first = False
        self._offset = 0
        kind = b"chat.completion.chunk" if self._is_chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[{"index":%d,' % (
            _encode(response_id),
            kind,
            created,
            _encode(request.model),
            answer.index,
        )
        self._returns_ids = request.returns_token_ids
        self._is_plain = request.logprobs is None and not request.has_continuous_usage and not request.parses
        self._parser = OutputParser(request.tool) if request.parses else None
        if self._is_chat:
            after = b'},"logprobs":null,"finish_reason":null,"token_ids":'
            self._around_text = (self._head + b'"delta":{"content":', after)
        else:
            after = (
                b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
                b'"prompt_token_ids":null,"token_ids":'
            )
            self._around_text = (self._head + b'"text":', after)

    def opening(self) -> bytes:
        """What precedes the first token: the role chunk of a chat (it carries no token), else nothing."""
        if not self._is_chat:
            return b""
        prompt = b',"prompt_token_ids":%b,"prompt_text":null' % _encode(self._prompt_ids())
        return (
            self._head
            + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b}\n\n'
            % prompt
        )

    def chunk(self, delta: Delta) -> bytes:
        """The chunk of one token."""
        if self._is_plain and delta.finish_reason is None and self._was_first:
            before, after = self._around_text
            token = b"[%d]}]}\n\n" % delta.token_id if self._returns_ids else b"null}]}\n\n"
            return before + _encode(delta.text) + after + token
        logprobs = self._logprobs(delta)
        finish = b'"%b"' % delta.finish_reason.encode() if delta.finish_reason else b"null"
        if self._is_chat:
            self._was_first = True
            return self._chat_chunk(delta, finish, logprobs)
        prompt, text = b"null", delta.text
        if not self._was_first:
            self._was_first = True
            prompt = _encode(self._prompt_ids())
            text = echoed(self._request, self._answer) + text
        return b"".join(
            (
                self._head,
                b'"text":',
                _encode(text),
                b',"logprobs":',
                b"null" if logprobs is None else _encode(logprobs),
                b',"finish_reason":',
                finish,
                b',"stop_reason":',
                b"null" if delta.stop_reason is None else _encode(delta.stop_reason),
                b',"prompt_token_ids":',
                prompt,
                b',"token_ids":',
                b"[%d]" % delta.token_id if self._returns_ids else b"null",
                b"}]",
                self._ending(delta),
                b"}\n\n",
            )
        )

    def _chat_chunk(self, delta: Delta, finish: bytes, logprobs: object) -> bytes:
        stop, shown = b"", b'{"content":%b}' % _encode(delta.text)
        if self._parser is not None:
            shown = _encode(self._parser.shown(delta.token_id, delta.text))
            if delta.finish_reason and self._parser.has_call:
                finish = b'"tool_calls"'
        if delta.finish_reason:
            stop = b'"stop_reason":%b,' % _encode(delta.stop_reason)
        return b'%b"delta":%b,"logprobs":%b,"finish_reason":%b,%b"token_ids":%b}]%b}\n\n' % (
            self._head,
            shown,
            b"null" if logprobs is None else _encode(logprobs),
            finish,
            stop,
            b"[%d]" % delta.token_id if self._returns_ids else b"null",
            self._ending(delta),
        )

    def _logprobs(self, delta: Delta) -> object:
        top = self._request.logprobs
        if top is None:
            return None
        if self._is_chat:
            return chat_logprobs([delta.token_id], top)
        offset = self._offset
        self._offset += len(delta.text)
        return completion_logprobs([delta.token_id], [delta.text], offset, top)

    def _ending(self, delta: Delta) -> bytes:
        """What follows the choices: usage where each chunk carries it; the last chunk names the server."""
        if delta.finish_reason and not self._request.includes_usage:
            return b',"system_fingerprint":%b' % _encode(FINGERPRINT)
        if not self._request.has_continuous_usage:
            return b""
        answer = self._answer
        return b',"usage":%b' % _encode(usage(answer.prompt_tokens, answer.output_tokens))

    def _prompt_ids(self) -> list[int] | None:
        if not self._request.returns_token_ids:
            return None
        return self._answer.all_ids[: self._answer.prompt_tokens]


def echoed(request: Generation, answer: Answer) -> str:
    """The prompt's text where it is asked for; with `return_token_ids` vLLM echoes nothing."""
    if not request.echoes or request.returns_token_ids:
        return ""
    return decode(answer.all_ids[: answer.prompt_tokens])


def _all_logprobs(request: Generation, answer: Answer) -> object:
    if request.logprobs is None:
        return None
    if request.kind == "chat":
        return chat_logprobs(answer.output_ids, request.logprobs)
    return completion_logprobs(answer.output_ids, answer.text, 0, request.logprobs)


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
        "system_fingerprint": FINGERPRINT,
    }
    return b"data: %b\n\n" % _encode(body)


def error_chunks(message: str) -> bytes:
    """How vLLM ends a stream whose engine died: an error chunk, then [DONE] all the same."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return b"data: %b\n\n%b" % (_encode({"error": error}), DONE)


def whole_body(
    request: Generation,
    answers: Sequence[Answer],
    endings: Sequence[Delta],
    response_id: str,
    created: int,
) -> bytes:
    """The body of an answer that is not streamed."""
    is_chat = request.kind == "chat"
    choices = [_choice(request, *pair) for pair in zip(answers, endings, strict=True)]
    body: dict[str, object] = {
        "id": response_id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created,
        "model": request.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            **total_usage(request, answers),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }
    if is_chat:
        body["prompt_logprobs"] = None
        body["prompt_token_ids"] = request.prompts[0] if request.returns_token_ids else None
        body["prompt_text"] = None
    return _encode({**body, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def _choice(request: Generation, answer: Answer, ending: Delta) -> dict[str, object]:
    """One entry of `choices` of a whole body."""
    ids, prompt = answer.output_ids, answer.all_ids[: answer.prompt_tokens]
    choice: dict[str, object] = {"index": answer.index}
    finish_reason = ending.finish_reason
    if request.kind == "chat":
        message = plain_message("".join(answer.text))
        if request.parses:
            message = parsed_message(zip(ids, answer.text, strict=True), request.tool)
            finish_reason = "tool_calls" if "tool_calls" in message else finish_reason
        choice["message"] = message
    else:
        choice["text"] = echoed(request, answer) + "".join(answer.text)
        choice["prompt_token_ids"] = prompt if request.returns_token_ids else None
        choice["prompt_logprobs"] = None
    return choice | {
        "logprobs": _all_logprobs(request, answer),
        "finish_reason": finish_reason,
        "stop_reason": ending.stop_reason,
        "token_ids": ids if request.returns_token_ids else None,
        "routed_experts": None,
    }
