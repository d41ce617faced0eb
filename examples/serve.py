#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Serves the GPT-2 of characters that train_gpt.py trained, over HTTP, on four ranks.

    python examples/train_gpt.py --checkpoint gpt --picture none
    python examples/serve.py gpt [--mesh tp=4] [--groups 2] [--port 8000]
    curl -N localhost:8000/v1/completions -d '{"prompt": "The statement", "max_tokens": 40, "stream": true}'

The ranks are those of data-parallel attention: in each of the groups they attend to requests of their
own, and together they compute the other layers. For each second of steps a line says how many tokens
were computed and how many pages are in use. A request may have "max_tokens", "temperature", "seed", "stop"
(tokens or characters, which end the text) and "stream".
"""

import argparse
import http.server
import json
import os
import pathlib
import sys
import threading
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import meshwright as mw
import torch
import transformers
from train_gpt import make_net, mesh_of, read_text


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path, help="the folder that train_gpt.py --checkpoint wrote")
    parser.add_argument("--mesh", type=mesh_of, default={"tp": 4}, help="axes, as in tp=4")
    parser.add_argument("--groups", type=int, default=2, help="groups of data-parallel attention")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--requests", type=int, default=16, help="requests of a group at once")
    for name, value in (("tokens", 64), ("width", 96), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=value, help="as train_gpt.py was given it")
    parser.add_argument("--text", type=pathlib.Path, help="as train_gpt.py was given it")
    return parser.parse_args()


def load(options):
    """The trained module, in evaluation mode, and its letters."""
    letters = sorted(set(read_text(options.text)))
    net = make_net(len(letters), options)
    ids = torch.zeros(1, options.tokens, dtype=torch.long)
    model = mw.from_torch(net, (), dict(input_ids=ids, labels=ids), training=True)
    train = model.train(mw.AdamW(weight_decay=0.1), clip_norm=1.0)
    with train.parallelize(mesh={"dp": 1}).start(state=options.checkpoint) as session:
        net.load_state_dict(session.state_dict()["model"])
    return net.eval(), letters


class Engine:
    """Runs the steps of a session on a thread, for requests of other threads."""

    def __init__(self, session, letters):
        self.session, self.letters = session, letters
        self.changed = threading.Condition()
        self.failure = None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        computed, busy = 0, 0.0
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.session.requests)
                began = time.monotonic()
                try:
                    computed += self.session.step()
                except mw.Error as error:
                    self.failure = error
                self.changed.notify_all()
                if self.failure:
                    return
                pages = self.session.stats()["pages"]
            busy += time.monotonic() - began
            if busy >= 1:
                used = pages["total"] - pages["free"]
                print(f"{computed / busy:.0f} tokens/s, {used} of {pages['total']} pages in use", flush=True)
                computed, busy = 0, 0.0

    def tokens(self, name, text):
        """The tokens of a text; tokens stay as they are."""
        if not isinstance(text, str):
            return text
        unknown = sorted(set(text) - set(self.letters))
        if unknown:
            raise mw.InputError(f"{name}: expected characters of the model's text, got {''.join(unknown)!r}")
        return [self.letters.index(letter) for letter in text]

    def submit(self, body):
        prompt = self.tokens("prompt", body.get("prompt", ""))
        stop = body.get("stop")
        stop = [] if stop is None else stop if isinstance(stop, list) else [stop]
        for end in stop:
            if isinstance(end, str) and len(end) != 1:
                raise mw.InputError(f"stop: expected tokens, or texts of one character, got {end!r}")
        stop = [token for end in stop for token in (self.tokens("stop", end) if isinstance(end, str) else [end])]
        if body.get("n", 1) != 1:
            raise mw.InputError(f"n: expected 1, the completions of a request, got {body['n']!r}")
        with self.changed:
            request = self.session.submit(
                prompt,
                max_new_tokens=body.get("max_tokens", 16),
                stop=stop,
                temperature=body.get("temperature", 0),
                seed=body.get("seed", 0),
            )
            self.changed.notify_all()
        return request

    def pieces(self, request):
        """The text of new tokens as they come."""
        sent, done = 0, False
        while not done:
            with self.changed:
                self.changed.wait_for(lambda: request.done or len(request.tokens) > sent or self.failure)
                if self.failure:
                    raise self.failure
                tokens, done = request.tokens, request.done
            yield "".join(self.letters[token] for token in tokens[sent:])
            sent = len(tokens)

    def cancel(self, request):
        with self.changed:
            self.session.cancel(request)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def do_POST(self):
        if self.path != "/v1/completions":
            return self.answer(404, {"error": {"message": f"{self.path}: expected /v1/completions"}})
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            if not isinstance(body, dict):
                raise mw.InputError("expected a JSON object")
            request = self.engine.submit(body)
        except (ValueError, mw.Error) as error:
            return self.answer(400, {"error": {"message": str(error)}})
        try:
            if body.get("stream"):
                self.stream(request)
            else:
                text = "".join(self.engine.pieces(request))
                self.answer(200, self.completion(request, text))
        except OSError:  # the client has gone
            self.engine.cancel(request)
        except mw.Error as error:
            self.answer(500, {"error": {"message": str(error)}})

    def completion(self, request, text):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": request.reason}
        prompt, new = len(request.prompt), len(request.tokens)
        usage = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return {"object": "text_completion", "model": "gpt", "choices": [choice], "usage": usage}

    def stream(self, request):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for text in self.engine.pieces(request):
            self.wfile.write(f"data: {json.dumps(self.completion(request, text))}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def main():
    options = parse()
    transformers.logging.set_verbosity_error()
    net, letters = load(options)
    model = mw.from_torch(net, (torch.zeros(1, options.tokens, dtype=torch.long),))
    served = model.serve(max_length=options.tokens, page_size=8, max_requests=options.requests)
    more = {"data_parallel_attention": options.groups} if options.groups > 1 else {}
    with served.parallelize(mesh=options.mesh, **more).start() as session:
        session.warm_up()
        Handler.engine = Engine(session, letters)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
        print(f"serving on http://127.0.0.1:{server.server_port}/v1/completions", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


if __name__ == "__main__":
    try:
        main()
    except mw.Error as error:
        sys.exit(f"error: {error}")
