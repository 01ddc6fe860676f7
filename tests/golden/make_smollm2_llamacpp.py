"""The loss of SmolLM2-135M by llama.cpp, on the very windows that `assay reproduce smollm2-llamacpp` scores.

python tests/golden/make_smollm2_llamacpp.py windows WINDOWS.json             with assay: the tokens and the GGUF
python tests/golden/make_smollm2_llamacpp.py score WINDOWS.json OUT.json      with llama-cpp-python: their loss
"""

import json
import sys
from pathlib import Path

DATASET = {"name": "pydoc", "sha256": None, "longest": 256, "max_samples": 8, "max_windows": 1}


def windows(out: Path) -> None:
    from assay.core.run import canonical
    from assay.data import smollm2
    from assay.studies.perplexity.execution import located, spans_for, tokenizer_for
    from assay.studies.perplexity.windows import bos_of, windows_of

    spans = spans_for(canonical(DATASET), canonical(located(smollm2.NAME, None)), 256, 42).found
    bos = bos_of(tokenizer_for(smollm2.NAME, None))
    found = [
        {"cluster": window.span, "inputs": window.inputs.tolist(), "targets": window.targets.tolist()}
        for window in windows_of(spans, context=256, bos=bos)
    ]
    out.write_text(json.dumps({"gguf": str(smollm2.CARRIED.fetch()), "windows": found}))


def score(source: Path, out: Path) -> None:
    import llama_cpp
    import numpy as np

    given = json.loads(source.read_text())
    model = llama_cpp.Llama(given["gguf"], n_ctx=512, n_threads=1, logits_all=True, verbose=False)
    losses = []
    for window in given["windows"]:
        model.reset()
        model.eval(window["inputs"])
        logits = np.array(model.scores[: len(window["inputs"])], dtype=np.float64)
        top = logits.max(axis=1, keepdims=True)
        normaliser = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        chosen = logits[np.arange(len(window["targets"])), window["targets"]]
        losses.append({"cluster": window["cluster"], "nll": float((normaliser - chosen).sum()), "tokens": len(chosen)})
    tokens = sum(one["tokens"] for one in losses)
    whole = {"llama_cpp_python": llama_cpp.__version__, "cross_entropy": sum(one["nll"] for one in losses) / tokens}
    out.write_text(json.dumps(whole | {"windows": losses}, indent=1) + "\n")
    print(whole)


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    {"windows": windows, "score": score}[verb](*map(Path, paths))
