"""A language model with a real cache, token by token: keys and values are deleted from transformers' DynamicCache, and
positions are given. Slow and obvious; it imports nothing from assay.attention."""

import math

import torch
from transformers import AttentionInterface, DynamicCache


def logits(model, ids, rules, slots, *, chunk=1):
    """Logits of one sequence under each rule, a row of a batch: the cache of a row holds `slots` keys per head after
    every `chunk` tokens, or the rule's share of them in each layer. Rows that share a tensor have caches of one
    length: a rule with shares, or that skips layers, comes alone."""
    model.set_attn_implementation("eager")
    cache, found = DynamicCache(config=model.config), []
    by_layer = [
        [Layer(rule, int(rule.get("shares", [1.0] * (number + 1))[number] * slots), number) for rule in rules]
        for number in range(model.config.num_hidden_layers)
    ]
    # One query sees its whole cache; a mask of the model's own would be as long as the first layer's, which may differ.
    own = {"skips", "shares"} & set().union(*rules)
    seen = {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=model.dtype)} if own else {}
    for t, token in enumerate(ids.tolist()):
        out = model(
            torch.full((len(rules), 1), token),
            past_key_values=cache,
            position_ids=torch.full((len(rules), 1), t),
            use_cache=True,
            output_attentions=True,
            **seen,
        )
        found.append(out.logits[:, -1])
        for layers, stored, weights in zip(by_layer, cache.layers, out.attentions, strict=True):
            for layer, keys, own_weights in zip(layers, stored.keys, weights, strict=True):
                layer.see(t, keys, own_weights[:, 0])
            if (t + 1) % chunk == 0:
                kept = torch.tensor([layer.keep(t, keys) for layer, keys in zip(layers, stored.keys, strict=True)])
                stored.keys, stored.values = (
                    torch.stack(
                        [
                            torch.stack([x[row, head, kept[row, head]] for head in range(x.shape[1])])
                            for row in range(len(x))
                        ]
                    )
                    for x in (stored.keys, stored.values)
                )
    return torch.stack(found, dim=1)


class Layer:
    """What a rule remembers of the keys in one layer's cache: a list per head of keys, in the cache's order."""

    def __init__(self, rule, slots, number):
        self.rule, self.slots, self.number = rule, slots, number
        self.positions, self.received, self.latest = None, None, None

    def see(self, t, keys, weights):
        heads = len(keys)
        if self.positions is None:
            self.positions, self.received = ([[] for _ in range(heads)] for _ in range(2))
        group = len(weights) // heads
        self.latest = [[0.0] * keys.shape[1] for _ in range(heads)]
        for h in range(heads):
            self.positions[h].append(t)
            self.received[h].append(0.0)
            for head in weights[h * group : (h + 1) * group].tolist():
                for place, weight in enumerate(head):
                    self.received[h][place] += weight
                    self.latest[h][place] += weight

    def keep(self, t, keys):
        """The places that stay, for each head; what leaves is forgotten."""
        excess = 0 if self.number in self.rule.get("skips", ()) else len(self.positions[0]) - self.slots
        if excess <= 0:
            return [list(range(len(one))) for one in self.positions]
        scores = [self.score(h, keys[h]) for h in range(len(keys))]
        if self.rule["layer"]:
            mean = [sum(column) / len(scores) for column in zip(*scores, strict=True)]
            scores = [mean] * len(scores)
        kept = []
        for h, score in enumerate(scores):
            latest = int(self.rule.get("latest", 0) * self.slots)
            free = [
                place
                for place, position in enumerate(self.positions[h])
                if position >= self.rule.get("first", 0) and position <= t - latest
            ]
            gone = sorted(free, key=lambda place: (score[place], place))[:excess]
            kept.append([place for place in range(len(score)) if place not in gone])
            for remembered in (self.positions, self.received):
                remembered[h] = [remembered[h][place] for place in kept[h]]
        return kept

    def score(self, h, keys):
        match self.rule["score"]:
            case "received":
                return self.received[h]
            case "present query":
                return self.latest[h]
            case "short":
                parts = [math.frexp(math.sqrt(sum(x * x for x in key))) for key in keys.tolist()]
                return [-round(mantissa * 4096) * 2.0**exponent for mantissa, exponent in parts]  # to 12 digits
            case "unlike the mean":
                units = keys / keys.norm(dim=-1, keepdim=True)
                return (-(units @ units.mean(0)) / units.mean(0).norm()).tolist()
            case "drawn":
                return [self.rule["numbers"][self.number][position][h] for position in self.positions[h]]
            case "age":
                return self.positions[h]


def logits_in_cache(model, ids, *, sinks, slots):
    """StreamingLLM as published: keys are cached before they are turned, and turned by their place in the cache."""
    config, d = model.config, model.config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    frequencies = config.rope_parameters["rope_theta"] ** (-torch.arange(0, d, 2) / d)
    caches, rows = [[] for _ in model.model.layers], []
    for token in ids.tolist():
        x = model.model.embed_tokens.weight[token]
        for block, cache in zip(model.model.layers, caches, strict=True):
            h, attn = block.input_layernorm(x), block.self_attn
            q = attn.q_proj(h).view(heads, d)
            cache.append((attn.k_proj(h).view(kv_heads, d), attn.v_proj(h).view(kv_heads, d)))
            keys, values = (torch.stack(kept) for kept in zip(*cache, strict=True))
            keys, mixed = turned(keys, torch.arange(len(cache))[:, None, None], frequencies), []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                query = turned(q[head], len(cache) - 1, frequencies)
                weights = (keys[:, shared] @ query / math.sqrt(d)).softmax(0)
                mixed.append(weights @ values[:, shared])
            x = x + attn.o_proj(torch.cat(mixed))
            x = x + block.mlp(block.post_attention_layernorm(x))
            if len(cache) > slots:
                del cache[sinks]
        rows.append(model.lm_head(model.model.norm(x)))
    return torch.stack(rows)


def logits_in_sliding_cache(model, ids, *, sinks, sizes):
    """The same for a model with sliding windows, which span places of the cache; a row for each number of slots. Every
    token is given to the model at position 0, so that its queries and keys come unturned to an attention function with
    caches of its own."""
    config = model.config
    caches = [[[] for _ in sizes] for _ in range(config.num_hidden_layers)]

    def attention(module, query, key, value, mask, scaling, **_):
        kind = getattr(config, "layer_types", None) or ["sliding_attention"] * len(caches)
        kind, rows = kind[module.layer_idx], []
        theta = config.rope_parameters.get(kind, config.rope_parameters)["rope_theta"]
        frequencies = theta ** (-torch.arange(0, query.shape[-1], 2) / query.shape[-1])
        for row, (cache, slots) in enumerate(zip(caches[module.layer_idx], sizes, strict=True)):
            cache.append((key[row, :, 0], value[row, :, 0]))
            window = config.sliding_window if kind == "sliding_attention" else len(cache)
            keys, values = (torch.stack(kept[-window:]) for kept in zip(*cache, strict=True))
            keys = turned(keys, torch.arange(len(cache))[-window:, None, None], frequencies)
            mixed, group = [], query.shape[1] // key.shape[1]
            for head in range(query.shape[1]):
                q = turned(query[row, head, 0], len(cache) - 1, frequencies)
                mixed.append((keys[:, head // group] @ q * scaling).softmax(0) @ values[:, head // group])
            if len(cache) > slots:
                del cache[sinks]
            rows.append(torch.stack(mixed))
        return torch.stack(rows)[:, None], None

    AttentionInterface.register("oracle", attention)
    model.set_attn_implementation("oracle")
    places = torch.zeros(len(sizes), 1, dtype=torch.long)
    found = [model(token.expand(len(sizes), 1), position_ids=places, use_cache=False).logits[:, -1] for token in ids]
    model.set_attn_implementation("eager")
    return torch.stack(found, dim=1)


def turned(x, position, frequencies):
    one, other = x[..., : len(frequencies)], x[..., len(frequencies) :]
    cos, sin = (position * frequencies).cos(), (position * frequencies).sin()
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
