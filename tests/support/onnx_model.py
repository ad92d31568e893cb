"""A real model behind HTTP: a small language model of characters, run by ONNX Runtime, that streams its tokens.

`python -m tests.support.onnx_model make FILE` makes the model: trained by counting which character follows which three
in a text, put into an ONNX graph as the weights of two matrix products. `… serve FILE` serves it as the emulated model
of the demo does (`POST /v1/generate` with `prompt`, `tokens`, `stream`, `seed`), at WEFT_PORT.
"""

import asyncio
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,'-"
CONTEXT = 3
TEXT = """a gpu that is shared serves more than one. a job that waits learns why. a node is told what it should run, and
says what it sees. nothing is lost that was acknowledged. a service grows with its load, and gives back what it took."""
TOKENS_MAX = 4096
MOST_DONE_SECONDS = 20.0


def codes(text: str) -> list[int]:
    return [max(0, LETTERS.find(letter)) for letter in text.lower()]


def features(context: list[int]) -> np.ndarray[Any, Any]:
    """One row: which letter stands at each of the last places."""
    row = np.zeros((1, CONTEXT * len(LETTERS)), dtype=np.float32)
    for place, code in enumerate(context[-CONTEXT:]):
        row[0, place * len(LETTERS) + code] = 1.0
    return row


def make(path: Path) -> None:
    """Write the model: features → a hidden layer of everything that the text has → the logits of the next letter."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    text = codes(" ".join(TEXT.split()))
    contexts = sorted({tuple(text[at : at + CONTEXT]) for at in range(len(text) - CONTEXT)})
    known = {context: number for number, context in enumerate(contexts)}
    first = np.concatenate([features(list(context)) for context in contexts]).T  # a hidden unit for each context
    second = np.zeros((len(contexts), len(LETTERS)), dtype=np.float32)
    for at in range(len(text) - CONTEXT):
        second[known[tuple(text[at : at + CONTEXT])], text[at + CONTEXT]] += 1.0
    weights = [
        numpy_helper.from_array(first.astype(np.float32), "first"),
        numpy_helper.from_array(np.array([-(CONTEXT - 1.0)], dtype=np.float32), "bias"),
        numpy_helper.from_array(second * 12.0, "second"),
    ]
    nodes = [
        helper.make_node("MatMul", ["seen", "first"], ["sums"]),
        helper.make_node("Add", ["sums", "bias"], ["shifted"]),
        helper.make_node("Relu", ["shifted"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["chances"], axis=-1),
    ]
    seen = helper.make_tensor_value_info("seen", TensorProto.FLOAT, ["batch", CONTEXT * len(LETTERS)])
    chances = helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["batch", len(LETTERS)])
    graph = helper.make_graph(nodes, "letters", [seen], [chances], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


class Server:
    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._thread = ThreadPoolExecutor(1)

    async def next(self, context: list[int], rng: np.random.Generator) -> int:
        work = asyncio.get_running_loop().run_in_executor
        [chances] = await work(self._thread, self._session.run, ["chances"], {"seen": features(context)})
        return int(rng.choice(len(LETTERS), p=chances[0] / chances[0].sum()))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        tokens, prompt = asked.get("tokens", 32), str(asked.get("prompt", "a gpu"))
        if not isinstance(tokens, int) or not 1 <= tokens <= TOKENS_MAX:
            raise web.HTTPBadRequest(text=f"tokens: a whole number from 1 to {TOKENS_MAX}")
        rng = np.random.default_rng(int(asked.get("seed", 0)))
        context, said = codes(prompt.rjust(CONTEXT)), ""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"}) if asked.get("stream") else None
        if answer is not None:
            await answer.prepare(request)
        for _ in range(tokens):
            context.append(await self.next(context, rng))
            said += LETTERS[context[-1]]
            if answer is not None:
                await answer.write(f"data: {json.dumps({'token': said[-1]})}\n\n".encode())
        if answer is None:
            return web.json_response({"text": said, "tokens": tokens, "rank": os.environ.get("WEFT_RANK", "")})
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer


async def healthy(_: web.Request) -> web.Response:
    return web.json_response({"ready": True})


async def serve(path: Path, port: int) -> None:
    server = Server(path)
    app = web.Application()
    app.add_routes([web.get("/healthz", healthy), web.post("/v1/generate", server.generate)])
    runner = web.AppRunner(app, shutdown_timeout=MOST_DONE_SECONDS, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    sys.stderr.write(f"listens at port {port}\n")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()


def main(arguments: list[str]) -> int:
    if arguments[0] == "make":
        make(Path(arguments[1]))
    else:
        asyncio.run(serve(Path(arguments[1]), int(os.environ["WEFT_PORT"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
