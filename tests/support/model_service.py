"""A service of language models by OpenAI's protocol, in its own process, which errs as real ones do.

    POST /v1/embeddings, /v1/chat/completions

A vector is made of its text; a chat answers with the rows, JSON texts, that `Service.set_rows` has set for its prompt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

# As a program it is isolated from the environment, and so from its own folder too.
sys.path.insert(0, os.path.dirname(__file__))

from service import Handler, Service, main

KEY = "sk-test-4711-abcdefgh"
"""The only valid key."""

Document = dict[str, Any]


class ModelService(Service):
    """Starts and controls the service; in addition to the faults of `Service`, those of models."""

    program = __file__

    def err(self, kind: str, times: int | None = None, **how: Any) -> None:
        """Change the next responses by one of `FAULTS`, or one of the handler's own."""
        self._inject(kind, times, **how)

    def bodies(self) -> list[Document]:
        """Return the bodies of the received requests."""
        return [request.keys[1] for request in self.requests()]


def vector_of(text: str, dimensions: int = 3) -> list[float]:
    """Return the vector of a text, of numbers that a float can store."""
    return [len(text) + number / 4 for number in range(dimensions)]


def tokens_of(text: str) -> int:
    """Return how many tokens a text has in this model."""
    return len(text.encode()) // 4 + 1


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


def embeddings(body: Document) -> Document:
    """Return the response to a request for vectors."""
    data = [
        {"object": "embedding", "index": number, "embedding": vector_of(text, body.get("dimensions", 3))}
        for number, text in enumerate(body["input"])
    ]
    tokens = sum(map(tokens_of, body["input"]))
    return {"object": "list", "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def chat(body: Document, rows: Mapping[str, Any]) -> Document:
    """Return the response to a chat: one row, or a list if the schema has one; rows are JSON texts."""
    prompt = body["messages"][-1]["content"]
    found = rows.get(prompt, [])
    has_many = "rows" in body["response_format"]["json_schema"]["schema"]["properties"]
    content = f'{{"rows": [{",".join(found)}]}}' if has_many else found[0] if found else '{"sorry": 1}'
    usage = {"prompt_tokens": tokens_of(prompt), "completion_tokens": tokens_of(content)}
    message = {"role": "assistant", "content": content, "refusal": None}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def _refuse(document: Document) -> None:
    document["choices"][0]["message"] |= {"content": None, "refusal": "I cannot help with that."}


def _finish(document: Document, reason: str) -> None:
    choice = document["choices"][0]
    choice["finish_reason"] = reason
    choice["message"]["content"] = choice["message"]["content"][:5]


def _content(document: Document, text: str | None) -> None:
    document["choices"][0]["message"]["content"] = text


def _entry(document: Document, number: int, **members: Any) -> None:
    document["data"][number] |= members


FAULTS: dict[str, Callable[..., Any]] = {
    "refuse": _refuse,
    "finish": _finish,
    "content": _content,
    "entry": _entry,
    "reverse": lambda document: document["data"].reverse(),
    "drop": lambda document, number: document["data"].pop(number),
    "usage": lambda document, **usage: document.update(usage=usage or None),
    "error": lambda document: (document.clear(), document.update(error={"message": "overloaded"})),
}
"""What may be wrong in a response."""


class ModelHandler(Handler):
    """A persistent connection."""

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        """Respond to a request, or execute a command."""
        if self.path.startswith("/steer/"):
            super().do_POST()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "")
        self._serve([key, body], lambda: self._document(key, body))

    def _document(self, key: str, body: Document) -> Document:
        return embeddings(body) if self.path.endswith("/embeddings") else chat(body, self.state.rows)

    def _serve(self, keys: list[Any], rows: Any) -> None:
        if keys[0] == f"Bearer {KEY}":
            super()._serve(keys, rows)
            return
        self.state.enter(self.command, self.path, keys)
        self.state.leave()
        self._send({"error": {"message": f"Incorrect API key provided: {keys[0]}"}}, 401)

    def __getattr__(self, name: str) -> Any:
        """Return the method that applies one of `FAULTS`."""
        if (change := FAULTS.get(name.removeprefix("_"))) is None:
            raise AttributeError(name)

        def respond(rows: Any, **how: Any) -> None:
            document = rows()
            change(document, **how)
            self._send(document)

        return respond

    def _redirect(self, rows: Any, to: str) -> None:
        self._send({}, 307, {"Location": to})

    def _quota(self, rows: Any) -> None:
        self._send({"error": {"code": "insufficient_quota"}}, 429)

    def _truncate(self, rows: Any) -> None:
        """Send a complete response with a part of the document, as a proxy may."""
        body = json.dumps(rows()).encode()[:-9]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    main(ModelHandler)
