"""Eviction as one would write it at a desk: one sequence, one head of keys, one token at a time, keys deleted from a
dictionary. Slow and obvious; it imports nothing from assay.attention."""

import math

import torch


def softmax(scores):
    top = max(scores.values())
    exps = {j: math.exp(s - top) for j, s in scores.items()}
    total = sum(exps.values())
    return {j: e / total for j, e in exps.items()}


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def twelve_digits(x):
    """x, rounded to 12 binary digits."""
    mantissa, exponent = math.frexp(x)
    return round(mantissa * 4096) / 4096 * 2.0**exponent


def unit(vector):
    length = math.sqrt(dot(vector, vector))
    return [x / length for x in vector]


class Heads:
    """The caches of one layer for one sequence: for each head of keys, position -> key, and what the rule remembers."""

    def __init__(self, rule, slots, kv_heads, chunk=1):
        self.rule, self.chunk = rule, chunk
        self.slots = slots if isinstance(slots, list) else [slots] * kv_heads
        self.keys = [{} for _ in range(kv_heads)]
        self.total = [{} for _ in range(kv_heads)]

    def token(self, t, queries, keys, visible):
        """queries[h][g] and keys[h] of token t; gives the positions that each head of keys attended to."""
        attended, weights = [], []
        for h, key in enumerate(keys):
            self.keys[h][t] = key
            self.total[h][t] = 0.0
            seen = [j for j in self.keys[h] if visible[t][j]]
            attended.append(sorted(seen))
            weights.append(
                [softmax({j: dot(q, self.keys[h][j]) / math.sqrt(len(q)) for j in seen}) for q in queries[h]]
            )
            for head in weights[h]:
                for j, weight in head.items():
                    self.total[h][j] += weight
        if (t + 1) % self.chunk == 0:
            for h, order in enumerate(self.victims(t, weights, visible)):
                for gone in order[: max(0, len(self.keys[h]) - self.slots[h])]:
                    del self.keys[h][gone], self.total[h][gone]
        return attended

    def victims(self, t, weights, visible):
        """For each head, who would leave: the first one first."""
        scores = [getattr(self, self.rule["score"])(h, weights[h]) for h in range(len(self.keys))]
        if self.rule["granularity"] == "layer":
            scores = [{j: sum(score[j] for score in scores) for j in scores[0]}] * len(scores)
        first, chosen = self.rule.get("first", 0), []
        for h, score in enumerate(scores):
            latest = int(self.rule.get("latest", 0) * self.slots[h])
            hidden = sorted(j for j in self.keys[h] if not visible[t][j])
            free = [j for j in self.keys[h] if first <= j <= t - latest and j not in hidden]
            chosen.append(hidden + sorted(free, key=lambda j, score=score: (score[j], j)))
        return chosen

    def received(self, h, weights):
        return self.total[h]

    def present_query(self, h, weights):
        return {j: sum(head.get(j, 0.0) for head in weights) for j in self.keys[h]}

    def unlike_the_mean(self, h, weights):
        units = {j: unit(key) for j, key in self.keys[h].items()}
        anchor = unit([sum(column) / len(units) for column in zip(*units.values(), strict=True)])
        return {j: -dot(key, anchor) for j, key in units.items()}

    def short(self, h, weights):
        return {j: -twelve_digits(math.sqrt(dot(key, key))) for j, key in self.keys[h].items()}

    def age(self, h, weights):
        return {j: j for j in self.keys[h]}

    def drawn(self, h, weights):
        return {j: self.rule["numbers"][h][j] for j in self.keys[h]}


def attended(rule, slots, q, k, visible, chunk=1):
    """q (heads, time, d) and k (kv_heads, time, d) of one sequence -> (heads, time, time), whether attended to; slots
    for every head, or a list of those of each."""
    kv_heads, time, _ = k.shape
    group = q.shape[0] // kv_heads
    cache, mask = Heads(rule, slots, kv_heads, chunk), torch.zeros(q.shape[0], time, time, dtype=torch.bool)
    q, k, visible = q.tolist(), k.tolist(), visible.tolist()
    for t in range(time):
        queries = [[q[h * group + g][t] for g in range(group)] for h in range(kv_heads)]
        for h, seen in enumerate(cache.token(t, queries, [k[h][t] for h in range(kv_heads)], visible)):
            for g in range(group):
                mask[h * group + g, t, seen] = True
    return mask
