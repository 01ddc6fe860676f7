"""Write the table of architectures into docs/perplexity.md: which families of methods run on which, or why not.

    python docs/models_perplexity.py

Each architecture is built with random weights and a few layers, and every family is run on it, with the losses that
`assay perplexity` computes. A new one has its row by an entry in MODELS and running this again.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from masks_perplexity import between

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane
from assay.core.errors import UserError
from assay.models.causal_lm import sparse_lanes
from assay.models.reader import Reader
from assay.nn.random import initialised_from, stream

PAGE = Path(__file__).parent / "perplexity.md"
TIME, VOCAB, WINDOW, SLOTS = 32, 64, 14, 8
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.3,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Of the Llama kind; weights are larger than a real model's, so that attention is not flat."""


def sizes(*without: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in (SIZES | more).items() if key not in without}


def rope(**parameters: Any) -> dict[str, Any]:
    return sizes(rope_parameters={"rope_theta": 10000.0} | parameters)


GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}
NARROW = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "moe_intermediate_size": 16,
}  # fmt: skip
GRANITE = {"logits_scaling": 8.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 4.0}
LOCAL = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": WINDOW}
NEXT = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
JAMBA = {
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False,
}  # fmt: skip
FALCON = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4} | {
    "initializer_range": 0.3, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2Config", GPT),
    "OPT": ("OPTConfig", sizes("intermediate_size", "head_dim", "num_key_value_heads", "initializer_range", **OPT)),
    "Llama": ("LlamaConfig", SIZES),
    "Llama, YaRN": ("LlamaConfig", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "Llama, dynamic NTK": ("LlamaConfig", rope(rope_type="dynamic", factor=4.0)),
    "Mistral": ("MistralConfig", sizes(sliding_window=WINDOW)),
    "Mixtral": ("MixtralConfig", sizes(sliding_window=None, **EXPERTS)),
    "Qwen2": ("Qwen2Config", SIZES),
    "Qwen3": ("Qwen3Config", SIZES),
    "Gemma": ("GemmaConfig", SIZES),
    "Gemma 2": ("Gemma2Config", sizes(query_pre_attn_scalar=8, attn_logit_softcapping=2.0, **LOCAL)),
    "Gemma 3": ("Gemma3TextConfig", sizes(query_pre_attn_scalar=8, **LOCAL)),
    "Phi-3": ("Phi3Config", sizes(sliding_window=None)),
    "GPT-NeoX": ("GPTNeoXConfig", sizes("num_key_value_heads", "head_dim")),
    "OLMo 2": ("Olmo2Config", SIZES),
    "StarCoder2": ("Starcoder2Config", sizes(sliding_window=WINDOW)),
    "DeepSeek-V3": ("DeepseekV3Config", sizes("head_dim", **NARROW, **DEEPSEEK)),
    "SmolLM3": ("SmolLM3Config", sizes(no_rope_layer_interval=2)),
    "gpt-oss": ("GptOssConfig", sizes(**EXPERTS, **LOCAL)),
    "Falcon": ("FalconConfig", FALCON),
    "Falcon, the 40B's form": ("FalconConfig", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon with ALiBi": ("FalconConfig", FALCON | {"alibi": True}),
    "Cohere": ("CohereConfig", sizes("head_dim")),
    "Cohere 2": ("Cohere2Config", sizes(**LOCAL)),
    "Granite": ("GraniteConfig", sizes("head_dim", **GRANITE)),
    "Llama 4": ("Llama4TextConfig", sizes(intermediate_size_mlp=48, attention_chunk_size=WINDOW, num_local_experts=2)),
    "LFM2": ("Lfm2Config", sizes(layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)),
    "Qwen3-Next": ("Qwen3NextConfig", sizes(**NEXT)),
    "Jamba": ("JambaConfig", sizes("head_dim", **JAMBA)),
    "GPT-J": ("GPTJConfig", GPT | {"rotary_dim": 4}),
    "BLOOM": ("BloomConfig", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "Mamba": ("MambaConfig", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}),
}
HALF = {"prefix": TIME // 2}
FAMILIES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dense": (["dense"], {}),
    "pattern, select": (["streaming_llm", "oracle_topk", "cab_v4:block_size=2"], {}),
    "evict": (["h2o"], {}),
    "prefix": (["snapkv:window_size=4"], HALF),
    "expected attention, leverage": (["expected_attention", "leverage"], HALF),
    "cache positions": (["streaming_llm"], {"positions": "cache"}),
}
"""A column, and the methods that stand for it."""


def built(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of this architecture with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind, options = MODELS[name]
    with initialised_from(0, "models"), warnings.catch_warnings(action="ignore"):
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**options))
        for part, weight in model.named_parameters():
            if part.endswith("sinks"):  # empty as they are made
                torch.nn.init.normal_(weight)
    if dtype is torch.float64:
        model.set_experts_implementation("eager")  # the fused one knows no float64
    return model.to(dtype).eval().requires_grad_(False)


def tokens() -> torch.Tensor:
    return torch.randint(3, VOCAB, (1, TIME), generator=stream(0, "tokens"))


def family_lanes(family: str) -> list[Lane]:
    words, options = FAMILIES[family]
    return [Lane(attention.parse(word), Budget(slots=SLOTS), **options) for word in words]


def outcomes(model: Any) -> dict[str, str]:
    """`runs`, or why not, for each family; where one of several methods is refused, the reason names it."""
    try:
        reader = Reader(model)
    except UserError as error:
        return dict.fromkeys(FAMILIES, str(error))
    return {family: outcome(reader, family) for family in FAMILIES}


def outcome(reader: Reader, family: str) -> str:
    said = []
    for lane in family_lanes(family):
        try:
            with torch.no_grad(), sparse_lanes(reader.model, [lane]):
                logits = reader.logits(reader.body(tokens(), use_cache=False)[0])
            assert logits.isfinite().all(), (type(reader.model), family)
        except UserError as error:
            said.append(str(error))
    return " ".join(dict.fromkeys(said)) or "runs"


def table() -> str:
    """The table, and under it the reasons that its numbers name."""
    rows, reasons = [], list[str]()
    for name in MODELS:
        cells = list(outcomes(built(name)).values())
        refused = [cell for cell in dict.fromkeys(cells) if cell != "runs" and cell not in reasons]
        reasons += refused
        rows.append([name, *("runs" if cell == "runs" else f"refused ({reasons.index(cell) + 1})" for cell in cells)])
    head = [["architecture", *FAMILIES], ["---"] * (1 + len(FAMILIES))]
    lines = ["| " + " | ".join(row) + " |" for row in (*head, *rows)]
    said = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *said])


def placed(page: str) -> str:
    return between(page, "models", table())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
