"""A model of any architecture decodes token by token, with a cache of keys and values that are really deleted. Slow and
obvious: it imports nothing from assay, and knows no rotation: the model itself gives the keys of a token for every
position that they may take."""

import math
from unittest.mock import patch

import torch
from torch.nn import functional
from transformers import AttentionInterface


def h2o(model, ids, *, slots):
    """Logits of one sequence; half of the slots are for the latest keys, the others for those most attended to."""
    return decoded(model, ids, lambda head, t: least_attended(head, t, slots // 2), slots=slots, places=None)


def streaming_in_cache(model, ids, *, sinks, slots):
    """Logits of one sequence; keys are as far from the query as they are in the cache."""
    return decoded(model, ids, lambda head, t: sinks, slots=slots, places=slots + 1)


def streaming(model, ids, *, sinks, slots):
    """The same with positions of the text; slots of each head of each layer."""
    return decoded(model, ids, lambda head, t: sinks, slots=slots, places=None)


def decoded(model, ids, victim, *, slots, places):
    """Logits of one sequence. With `places` every token is read at each of these positions at once, and its key in a
    place of the cache is the one of that position; else its key is that of its position in the text."""
    caches, rows, state = {}, [], None
    for t, token in enumerate(ids.tolist()):
        attention = reading(model.config, caches, victim, t, slots=slots, in_cache=places is not None)
        positions = torch.tensor([[t]]) if places is None else torch.arange(places)[:, None]
        with Asking(model, attention):
            out = model(
                torch.full_like(positions, token), position_ids=positions, past_key_values=state, use_cache=True
            )
        state = out.past_key_values
        rows.append(out.logits[0, -1])
    return torch.stack(rows)


def reading(config, caches, victim, t, *, slots, in_cache):
    """An attention function for token t, over the caches of all layers."""

    def attention(layer, q, k, v, scale, cap=None, sinks=None):
        heads = caches.setdefault(layer, [[] for _ in range(k.shape[1])])
        group, mixed = q.shape[1] // k.shape[1], []
        for h, head in enumerate(heads):
            head.append({"t": t, "k": k[:, h, -1], "v": v[0, h, -1], "received": 0.0})
            here = len(head) - 1
            seen = [
                place
                for place, key in enumerate(head)
                if sees(config, layer, *((here, place) if in_cache else (t, key["t"])))
            ]
            for query in range(h * group, (h + 1) * group):
                scores = [
                    float(q[here if in_cache else 0, query, -1] @ head[place]["k"][place if in_cache else 0]) * scale
                    for place in seen
                ]
                scores = [cap * math.tanh(score / cap) for score in scores] if cap else scores
                total = sum(map(math.exp, scores)) + (math.exp(sinks[query]) if sinks is not None else 0.0)
                weights = [math.exp(score) / total for score in scores]
                mixed.append(sum(w * head[place]["v"] for w, place in zip(weights, seen, strict=True)))
                for weight, place in zip(weights, seen, strict=True):
                    head[place]["received"] += weight
            if len(head) > (slots if isinstance(slots, int) else slots[layer][h]):
                hidden = [place for place in range(len(head)) if place not in seen]
                del head[hidden[0] if hidden and not in_cache else victim(head, t)]
        return torch.stack(mixed).expand(len(q), -1, -1)  # of every row: only positions differ

    return attention


def least_attended(head, t, latest):
    free = [place for place, key in enumerate(head) if key["t"] <= t - latest]
    return min(free, key=lambda place: (head[place]["received"], head[place]["t"]))


def sees(config, layer, query, key):
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds and kinds[layer] == "chunked_attention":
        return query // config.attention_chunk_size == key // config.attention_chunk_size
    if window and (kinds is None or kinds[layer] == "sliding_attention"):
        return query - key < window
    return True


class Asking:
    """The model asks this function for attention: by the interface, or where it calls torch's own."""

    def __init__(self, model, attention):
        self.model, self.attention, self.count = model, attention, 0

    def __enter__(self):
        def interface(module, q, k, v, mask, scaling=None, softcap=None, s_aux=None, **_):
            scale = q.shape[-1] ** -0.5 if scaling is None else scaling
            return self.attention(module.layer_idx, q, k, v, scale, softcap, s_aux)[:, None], None

        def torch_s_own(q, k, v, **_):
            self.count += 1
            layer, repeated = self.count - 1, k.shape[1] // getattr(self.model.config, "num_kv_heads", k.shape[1])
            if not self.model.config.new_decoder_architecture:
                repeated = 1
            out = self.attention(layer, q, k[:, ::repeated], v[:, ::repeated], q.shape[-1] ** -0.5)
            return out[:, :, None]

        if self.model._can_set_attn_implementation():
            AttentionInterface.register("token_loop", interface)
            self.model.set_attn_implementation("token_loop")
            self.patched = None
        else:
            self.patched = patch.object(functional, "scaled_dot_product_attention", torch_s_own)
            self.patched.start()

    def __exit__(self, *_):
        if self.patched:
            self.patched.stop()
        else:
            self.model.set_attn_implementation("eager")
