"""Writes kvpress.safetensors: which keys of a prefix kvpress 0.5.5 keeps, and the loss of what follows.

    python3 -m venv /tmp/kvpress && /tmp/kvpress/bin/pip install 'torch>=2.6,<2.14' kvpress==0.5.5
    /tmp/kvpress/bin/python tests/golden/make_kvpress.py

A Llama of random weights, sharp enough that attention prefers some keys, reads 96 tokens densely, 48 of which stay in
each KV head, and then 32 more, one at a time.
"""

import json
from pathlib import Path
from unittest.mock import patch

import torch
from kvpress import (
    AdaKVPress,
    ChunkKVPress,
    CURPress,
    ExpectedAttentionPress,
    FinchPress,
    KeyDiffPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    ObservedAttentionPress,
    SimLayerKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from safetensors.torch import save_file
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

TIME, PREFIX, LAZY = 128, 96, 0.5
CONFIG = {
    "vocab_size": TIME, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip


def presses(ratio, width, *, window=8, lag=16, chunk=12):
    """The presses by assay's words. Leverage scores are exact: see `unsketched`. TOVAPress is not assay's `tova`, since
    it always keeps the last token, which the paper lets go. Those of `kvpress:` are compared where it is installed."""
    leverage = {"compression_ratio": ratio, "sketch_dimension": width}
    snapkv = {"compression_ratio": ratio, "window_size": window, "kernel_size": 5}
    return {
        "streaming_llm": StreamingLLMPress(ratio, n_sink=4),
        "keydiff": KeyDiffPress(ratio),
        f"snapkv:window_size={window}": SnapKVPress(**snapkv),
        f"ada:method=(snapkv:window_size={window}):rule=floor": AdaKVPress(SnapKVPress(**snapkv)),
        "observed": ObservedAttentionPress(ratio),
        f"lagkv:lag_size={lag}": LagKVPress(ratio, n_sink=4, lag_size=lag),
        "leverage": LeverageScorePress(**leverage),
        f"chunkkv:method=leverage:chunk_size={chunk}": ChunkKVPress(LeverageScorePress(**leverage), chunk_length=chunk),
        "expected_attention": ExpectedAttentionPress(ratio),
        "ada:method=expected_attention:rule=floor": AdaKVPress(ExpectedAttentionPress(ratio)),
        f"finch:question_size={window}": finch(ratio, window),
        # Of its recent keys it keeps one less than it counts: 44, and 4 sinks.
        f"simlayerkv:last_queries=1:threshold={LAZY}": SimLayerKVPress(lazy_threshold=LAZY, n_recent=45),
        "kvpress:press=TOVAPress": TOVAPress(ratio),
        "kvpress:press=StreamingLLMPress": StreamingLLMPress(ratio),
        f"kvpress:press=SnapKVPress:options=window_size={window}": SnapKVPress(ratio, window_size=window),
        "kvpress:press=ObservedAttentionPress": ObservedAttentionPress(ratio),
        "kvpress:press=ExpectedAttentionPress": ExpectedAttentionPress(ratio),
        "kvpress:press=NonCausalAttnPress": NonCausalAttnPress(ratio),
        "kvpress:press=CURPress": CURPress(ratio),
    }


def finch(ratio, window):
    """Without a delimiter in the text: the question has a length."""
    press = FinchPress(ratio, rerotate_keys=False)
    press.window_size, press.delimiter_token_id = window, -1
    return press


def unsketched(*shape, **options):
    """The identity in place of a random sketch that is as wide as the keys, so that scores are exact."""
    *_, d, k = shape
    assert d == k
    return torch.eye(d, **options).expand(shape) * k**0.5


@torch.no_grad()
def kept_and_loss(model, press, ids, prefix):
    """(layers, kv_heads, prefix) booleans, and the loss of each token after the prefix but the first."""
    model.set_attn_implementation("eager" if isinstance(press, ObservedAttentionPress) else "sdpa")
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None  # eager attention does not forget those of the press before
    whole, cache = DynamicCache(), DynamicCache()
    model(ids[:, :prefix], past_key_values=whole)
    with patch("torch.randn", unsketched), press(model):
        model(ids[:, :prefix], past_key_values=cache)
    masks = []
    for layer, full, held in zip(model.model.layers, whole.layers, cache.layers, strict=True):
        mask = (full.keys[0, :, :, None] == held.keys[0, :, None]).all(-1).any(-1)  # a key is found by its numbers
        if (gone := layer.self_attn.masked_key_indices) is not None:
            mask[gone[1], gone[2]] = False
        masks.append(mask)
    losses = []
    for t in range(prefix, ids.shape[1] - 1):
        logits = model(ids[:, t : t + 1], past_key_values=cache, position_ids=torch.tensor([[t]])).logits[0, -1]
        losses.append(-logits.log_softmax(-1)[ids[0, t + 1]])
    return torch.stack(masks), torch.stack(losses)


def golden():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.mul_(12 if "q_proj" in name or "k_proj" in name else 8)
    ids = torch.randperm(TIME)[None]  # no token twice: in layer 0 that would be two equal keys, and a tie
    found = {f"model.{name}": weight.clone() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    found["ids"] = ids
    for word, press in presses(0.5, CONFIG["hidden_size"] // CONFIG["num_attention_heads"]).items():
        kept, loss = kept_and_loss(model, press, ids, PREFIX)
        print(f"{word}: {kept.sum(-1).tolist()}, loss {loss.mean():.4f}")
        found |= {f"{word} kept": kept, f"{word} loss": loss}
    save_file(found, Path(__file__).parent / "kvpress.safetensors", {"config": json.dumps(CONFIG)})


if __name__ == "__main__":
    golden()
